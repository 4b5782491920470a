// 64-bit integers of a device that has them: their casts. `integer.glsl` has the functions.

ps_i64 ps_i64_of(uvec2 words) { return int64_t(uint64_t(words.y) << 32 | uint64_t(words.x)); }

ps_u64 ps_u64_of(uvec2 words) { return uint64_t(words.y) << 32 | uint64_t(words.x); }

// The two words of one, the low word first.
uvec2 ps_words(ps_i64 x) { return uvec2(uint(x), uint(uint64_t(x) >> 32)); }
uvec2 ps_words(ps_u64 x) { return uvec2(uint(x), uint(x >> 32)); }

bool ps_bool(ps_i64 x) { return x != int64_t(0); }
bool ps_bool(ps_u64 x) { return x != uint64_t(0); }

int ps_int32(ps_i64 x) { return int(x); }
int ps_int32(ps_u64 x) { return int(x); }

uint ps_uint32(ps_i64 x) { return uint(x); }
uint ps_uint32(ps_u64 x) { return uint(x); }

float ps_float32(ps_i64 x) { return float(x); }
float ps_float32(ps_u64 x) { return float(x); }

ps_i64 ps_int64(bool x) { return int64_t(x ? 1 : 0); }
ps_i64 ps_int64(int x) { return int64_t(x); }
ps_i64 ps_int64(uint x) { return int64_t(x); }
ps_i64 ps_int64(ps_i64 x) { return x; }
ps_i64 ps_int64(ps_u64 x) { return int64_t(x); }
ps_i64 ps_int64(float x) { return int64_t(x); }

ps_u64 ps_uint64(bool x) { return uint64_t(x ? 1 : 0); }
ps_u64 ps_uint64(int x) { return uint64_t(int64_t(x)); }
ps_u64 ps_uint64(uint x) { return uint64_t(x); }
ps_u64 ps_uint64(ps_i64 x) { return uint64_t(x); }
ps_u64 ps_uint64(ps_u64 x) { return x; }
ps_u64 ps_uint64(float x) { return x < 0.0f ? uint64_t(int64_t(x)) : uint64_t(x); }
