// 64-bit integers as two words, the low word first, on a device without shaderInt64. The functions
// are those of `integer.glsl`. The types are structs, so that no operator applies to them by mistake.

struct ps_i64 { uvec2 words; };

struct ps_u64 { uvec2 words; };

ps_i64 ps_i64_of(uvec2 words) { return ps_i64(words); }

ps_u64 ps_u64_of(uvec2 words) { return ps_u64(words); }

uvec2 ps_words(ps_i64 x) { return x.words; }
uvec2 ps_words(ps_u64 x) { return x.words; }

// Arithmetic of words, which does not depend on a sign.

bool ps_same_words(uvec2 a, uvec2 b) { return a.x == b.x && a.y == b.y; }

bool ps_less_words(uvec2 a, uvec2 b) { return a.y < b.y || a.y == b.y && a.x < b.x; }

uvec2 ps_add_words(uvec2 a, uvec2 b) {
    uint low = a.x + b.x;
    return uvec2(low, a.y + b.y + (low < a.x ? 1u : 0u));
}

uvec2 ps_subtract_words(uvec2 a, uvec2 b) {
    return uvec2(a.x - b.x, a.y - b.y - (a.x < b.x ? 1u : 0u));
}

uvec2 ps_minus_words(uvec2 x) { return ps_subtract_words(uvec2(0u), x); }

uvec2 ps_multiply_words(uvec2 a, uvec2 b) {
    uint high, low;
    umulExtended(a.x, b.x, high, low);
    return uvec2(low, high + a.x * b.y + a.y * b.x);
}

// Shifts by less than 64. A shift of a word by its width is undefined, hence the extra one.
uvec2 ps_left_words(uvec2 a, uint n) {
    uint k = n & 31u;
    uint high = a.y << k | a.x >> 1 >> (31u - k), low = a.x << k;
    return n < 32u ? uvec2(low, high) : uvec2(0u, low);
}

uvec2 ps_right_words(uvec2 a, uint n, uint fill) {
    uint k = n & 31u;
    uint low = a.x >> k | a.y << 1 << (31u - k), high = a.y >> k | fill << 1 << (31u - k);
    return n < 32u ? uvec2(low, high) : uvec2(high, fill);
}

// One digit of a quotient of 16-bit digits: an estimate that is at most two too large.
uvec2 ps_quotient_digit(uint above, uint digit, uint d) {
    uint dh = d >> 16, dl = d & 0xffffu;
    uint q = above / dh, r = above - q * dh;
    bool over = q > 0xffffu || q * dl > (r << 16 | digit);
    q -= over ? 1u : 0u;
    r += over ? dh : 0u;
    over = over && r < 0x10000u && (q > 0xffffu || q * dl > (r << 16 | digit));
    q -= over ? 1u : 0u;
    return uvec2(q, (above << 16 | digit) - q * d);
}

// The quotient of two words, of which the upper is less than d, by a word whose upper bit is set.
uint ps_quotient_word(uvec2 n, uint d) {
    uvec2 first = ps_quotient_digit(n.y, n.x >> 16, d);
    uvec2 second = ps_quotient_digit(first.y, n.x & 0xffffu, d);
    return first.x << 16 | second.x & 0xffffu;
}

// A divisor of one word takes two such quotients, the upper a plain one. A larger divisor takes one,
// by its upper 32 bits: at most one too large, if the last bit of n is left out.
uvec2 ps_divide_words(uvec2 n, uvec2 d) {
    bool one = d.y == 0u;
    uint top = one ? d.x : d.y;
    uint shift = 31u - uint(findMSB(top));
    uint high = one ? n.y / d.x : 0u;
    uvec2 rest = one ? uvec2(n.x, n.y - high * d.x) : ps_right_words(n, 1u, 0u);
    rest = one ? ps_left_words(rest, shift) : rest;
    uint q = ps_quotient_word(rest, ps_left_words(d, shift + (one ? 32u : 0u)).y);
    uint small = q >> (31u - shift);
    small -= small == 0u ? 0u : 1u;
    uvec2 left = ps_subtract_words(n, ps_multiply_words(uvec2(small, 0u), d));
    small += ps_less_words(left, d) ? 0u : 1u;
    return one ? uvec2(q, high) : uvec2(small, 0u);
}

// The smallest integer is its own absolute value, which is right if it is unsigned.
uvec2 ps_size_words(uvec2 x) { return int(x.y) < 0 ? ps_minus_words(x) : x; }

// The nearest float, half to even, by its bits.
float ps_float_of_words(uvec2 x) {
    int top = x.y == 0u ? findMSB(x.x) : findMSB(x.y) + 32;
    uvec2 all = ps_left_words(x, uint(63 - top) & 63u);
    uint kept = all.y >> 8, lost = all.y & 0xffu;
    bool up = lost > 0x80u || lost == 0x80u && (all.x != 0u || (kept & 1u) != 0u);
    uint bits = (uint(top + 126) << 23) + kept + (up ? 1u : 0u);
    return ps_same_words(x, uvec2(0u)) ? 0.0 : uintBitsToFloat(bits);
}

// The integer part of a float of less than 2^64, without its sign.
uvec2 ps_words_of_float(float x) {
    uint bits = floatBitsToUint(x);
    uvec2 m = uvec2((bits & 0x7fffffu) | 0x800000u, 0u);
    int k = int(bits >> 23 & 0xffu) - 150;
    uvec2 size = k < 0 ? ps_right_words(m, uint(0 - k) & 63u, 0u) : ps_left_words(m, uint(k) & 63u);
    return k < -23 ? uvec2(0u) : size;
}

// Casts.

bool ps_bool(ps_i64 x) { return (x.words.x | x.words.y) != 0u; }
bool ps_bool(ps_u64 x) { return (x.words.x | x.words.y) != 0u; }

int ps_int32(ps_i64 x) { return int(x.words.x); }
int ps_int32(ps_u64 x) { return int(x.words.x); }

uint ps_uint32(ps_i64 x) { return x.words.x; }
uint ps_uint32(ps_u64 x) { return x.words.x; }

float ps_float32(ps_i64 x) {
    float size = ps_float_of_words(ps_size_words(x.words));
    return int(x.words.y) < 0 ? -size : size;
}
float ps_float32(ps_u64 x) { return ps_float_of_words(x.words); }

ps_i64 ps_int64(bool x) { return ps_i64(uvec2(x ? 1u : 0u, 0u)); }
ps_i64 ps_int64(int x) { return ps_i64(uvec2(uint(x), x < 0 ? ~0u : 0u)); }
ps_i64 ps_int64(uint x) { return ps_i64(uvec2(x, 0u)); }
ps_i64 ps_int64(ps_i64 x) { return x; }
ps_i64 ps_int64(ps_u64 x) { return ps_i64(x.words); }
ps_i64 ps_int64(float x) {
    uvec2 size = ps_words_of_float(x);
    return ps_i64(x < 0.0 ? ps_minus_words(size) : size);
}

ps_u64 ps_uint64(bool x) { return ps_u64(uvec2(x ? 1u : 0u, 0u)); }
ps_u64 ps_uint64(int x) { return ps_u64(uvec2(uint(x), x < 0 ? ~0u : 0u)); }
ps_u64 ps_uint64(uint x) { return ps_u64(uvec2(x, 0u)); }
ps_u64 ps_uint64(ps_i64 x) { return ps_u64(x.words); }
ps_u64 ps_uint64(ps_u64 x) { return x; }
ps_u64 ps_uint64(float x) {
    uvec2 size = ps_words_of_float(x);
    return ps_u64(x < 0.0 ? ps_minus_words(size) : size);
}

// The functions.

ps_i64 ps_add(ps_i64 a, ps_i64 b) { return ps_i64(ps_add_words(a.words, b.words)); }
ps_u64 ps_add(ps_u64 a, ps_u64 b) { return ps_u64(ps_add_words(a.words, b.words)); }

ps_i64 ps_subtract(ps_i64 a, ps_i64 b) { return ps_i64(ps_subtract_words(a.words, b.words)); }
ps_u64 ps_subtract(ps_u64 a, ps_u64 b) { return ps_u64(ps_subtract_words(a.words, b.words)); }

ps_i64 ps_multiply(ps_i64 a, ps_i64 b) { return ps_i64(ps_multiply_words(a.words, b.words)); }
ps_u64 ps_multiply(ps_u64 a, ps_u64 b) { return ps_u64(ps_multiply_words(a.words, b.words)); }

ps_i64 ps_square(ps_i64 x) { return ps_i64(ps_multiply_words(x.words, x.words)); }
ps_u64 ps_square(ps_u64 x) { return ps_u64(ps_multiply_words(x.words, x.words)); }

ps_i64 ps_negative(ps_i64 x) { return ps_i64(ps_minus_words(x.words)); }
ps_u64 ps_negative(ps_u64 x) { return ps_u64(ps_minus_words(x.words)); }

ps_i64 ps_positive(ps_i64 x) { return x; }
ps_u64 ps_positive(ps_u64 x) { return x; }

ps_i64 ps_conj(ps_i64 x) { return x; }
ps_u64 ps_conj(ps_u64 x) { return x; }

ps_i64 ps_real(ps_i64 x) { return x; }
ps_u64 ps_real(ps_u64 x) { return x; }

ps_i64 ps_imag(ps_i64 x) { return ps_i64(uvec2(0u)); }
ps_u64 ps_imag(ps_u64 x) { return ps_u64(uvec2(0u)); }

ps_i64 ps_floor(ps_i64 x) { return x; }
ps_u64 ps_floor(ps_u64 x) { return x; }

ps_i64 ps_ceil(ps_i64 x) { return x; }
ps_u64 ps_ceil(ps_u64 x) { return x; }

ps_i64 ps_trunc(ps_i64 x) { return x; }
ps_u64 ps_trunc(ps_u64 x) { return x; }

ps_i64 ps_round(ps_i64 x) { return x; }
ps_u64 ps_round(ps_u64 x) { return x; }

ps_i64 ps_abs(ps_i64 x) { return ps_i64(ps_size_words(x.words)); }
ps_u64 ps_abs(ps_u64 x) { return x; }

ps_i64 ps_sign(ps_i64 x) {
    bool minus = int(x.words.y) < 0;
    return ps_i64(minus ? uvec2(~0u) : uvec2((x.words.x | x.words.y) != 0u ? 1u : 0u, 0u));
}
ps_u64 ps_sign(ps_u64 x) { return ps_u64(uvec2((x.words.x | x.words.y) != 0u ? 1u : 0u, 0u)); }

ps_u64 ps_floor_divide(ps_u64 a, ps_u64 b) {
    bool none = ps_same_words(b.words, uvec2(0u));
    uvec2 q = ps_divide_words(a.words, none ? uvec2(1u, 0u) : b.words);
    return ps_u64(none ? uvec2(0u) : q);
}
ps_i64 ps_floor_divide(ps_i64 a, ps_i64 b) {
    bool none = ps_same_words(b.words, uvec2(0u));
    uvec2 n = ps_size_words(a.words), d = none ? uvec2(1u, 0u) : ps_size_words(b.words);
    uvec2 q = ps_divide_words(n, d);
    bool rest = !ps_same_words(ps_multiply_words(q, d), n);
    uvec2 minus = ps_minus_words(ps_add_words(q, uvec2(rest ? 1u : 0u, 0u)));
    q = int(a.words.y ^ b.words.y) < 0 ? minus : q;
    return ps_i64(none ? uvec2(0u) : q);
}

ps_u64 ps_remainder(ps_u64 a, ps_u64 b) {
    bool none = ps_same_words(b.words, uvec2(0u));
    uvec2 d = none ? uvec2(1u, 0u) : b.words;
    uvec2 r = ps_subtract_words(a.words, ps_multiply_words(ps_divide_words(a.words, d), d));
    return ps_u64(none ? uvec2(0u) : r);
}
ps_i64 ps_remainder(ps_i64 a, ps_i64 b) {
    bool none = ps_same_words(b.words, uvec2(0u));
    uvec2 n = ps_size_words(a.words), d = none ? uvec2(1u, 0u) : ps_size_words(b.words);
    uvec2 r = ps_subtract_words(n, ps_multiply_words(ps_divide_words(n, d), d));
    bool rest = !ps_same_words(r, uvec2(0u));
    r = int(a.words.y) < 0 ? ps_minus_words(r) : r;
    r = rest && int(a.words.y ^ b.words.y) < 0 ? ps_add_words(r, b.words) : r;
    return ps_i64(none ? uvec2(0u) : r);
}

bool ps_less(ps_i64 a, ps_i64 b) {
    uvec2 sign = uvec2(0u, 0x80000000u);
    return ps_less_words(a.words ^ sign, b.words ^ sign);
}
bool ps_less(ps_u64 a, ps_u64 b) { return ps_less_words(a.words, b.words); }

bool ps_less_equal(ps_i64 a, ps_i64 b) { return !ps_less(b, a); }
bool ps_less_equal(ps_u64 a, ps_u64 b) { return !ps_less(b, a); }

bool ps_greater(ps_i64 a, ps_i64 b) { return ps_less(b, a); }
bool ps_greater(ps_u64 a, ps_u64 b) { return ps_less(b, a); }

bool ps_greater_equal(ps_i64 a, ps_i64 b) { return !ps_less(a, b); }
bool ps_greater_equal(ps_u64 a, ps_u64 b) { return !ps_less(a, b); }

bool ps_equal(ps_i64 a, ps_i64 b) { return ps_same_words(a.words, b.words); }
bool ps_equal(ps_u64 a, ps_u64 b) { return ps_same_words(a.words, b.words); }

bool ps_not_equal(ps_i64 a, ps_i64 b) { return !ps_same_words(a.words, b.words); }
bool ps_not_equal(ps_u64 a, ps_u64 b) { return !ps_same_words(a.words, b.words); }

ps_i64 ps_minimum(ps_i64 a, ps_i64 b) { return ps_i64(ps_less(a, b) ? a.words : b.words); }
ps_u64 ps_minimum(ps_u64 a, ps_u64 b) { return ps_u64(ps_less(a, b) ? a.words : b.words); }

ps_i64 ps_maximum(ps_i64 a, ps_i64 b) { return ps_i64(ps_less(a, b) ? b.words : a.words); }
ps_u64 ps_maximum(ps_u64 a, ps_u64 b) { return ps_u64(ps_less(a, b) ? b.words : a.words); }

ps_i64 ps_clip(ps_i64 x, ps_i64 low, ps_i64 high) { return ps_minimum(ps_maximum(x, low), high); }
ps_u64 ps_clip(ps_u64 x, ps_u64 low, ps_u64 high) { return ps_minimum(ps_maximum(x, low), high); }

// One bit of the exponent at a time, for each of its words.
#define PS_POWER_1 y = (n & 1u) != 0u ? ps_multiply_words(y, x) : y; x = ps_multiply_words(x, x); n = n >> 1;
#define PS_POWER_4 PS_POWER_1 PS_POWER_1 PS_POWER_1 PS_POWER_1
#define PS_POWER_16 PS_POWER_4 PS_POWER_4 PS_POWER_4 PS_POWER_4
uvec2 ps_power_words(uvec2 a, uvec2 b) {
    uvec2 x = a, y = uvec2(1u, 0u);
    uint n = b.x;
    PS_POWER_16 PS_POWER_16
    n = b.y;
    PS_POWER_16 PS_POWER_16
    return y;
}

ps_u64 ps_pow(ps_u64 a, ps_u64 b) { return ps_u64(ps_power_words(a.words, b.words)); }
ps_i64 ps_pow(ps_i64 a, ps_i64 b) {
    uvec2 one = uvec2(1u, 0u);
    bool minus = ps_same_words(a.words, uvec2(~0u));
    uvec2 odd = (b.words.x & 1u) == 0u ? one : a.words;
    uvec2 down = ps_same_words(a.words, one) ? one : minus ? odd : uvec2(0u);
    return ps_i64(int(b.words.y) < 0 ? down : ps_power_words(a.words, b.words));
}

ps_i64 ps_bitwise_and(ps_i64 a, ps_i64 b) { return ps_i64(a.words & b.words); }
ps_u64 ps_bitwise_and(ps_u64 a, ps_u64 b) { return ps_u64(a.words & b.words); }

ps_i64 ps_bitwise_or(ps_i64 a, ps_i64 b) { return ps_i64(a.words | b.words); }
ps_u64 ps_bitwise_or(ps_u64 a, ps_u64 b) { return ps_u64(a.words | b.words); }

ps_i64 ps_bitwise_xor(ps_i64 a, ps_i64 b) { return ps_i64(a.words ^ b.words); }
ps_u64 ps_bitwise_xor(ps_u64 a, ps_u64 b) { return ps_u64(a.words ^ b.words); }

ps_i64 ps_bitwise_invert(ps_i64 x) { return ps_i64(~x.words); }
ps_u64 ps_bitwise_invert(ps_u64 x) { return ps_u64(~x.words); }

bool ps_is_width(uvec2 n) { return n.y != 0u || n.x > 63u; }

ps_u64 ps_bitwise_left_shift(ps_u64 a, ps_u64 b) {
    uvec2 shifted = ps_left_words(a.words, b.words.x & 63u);
    return ps_u64(ps_is_width(b.words) ? uvec2(0u) : shifted);
}
ps_i64 ps_bitwise_left_shift(ps_i64 a, ps_i64 b) {
    uvec2 shifted = ps_left_words(a.words, b.words.x & 63u);
    return ps_i64(ps_is_width(b.words) ? uvec2(0u) : shifted);
}

ps_u64 ps_bitwise_right_shift(ps_u64 a, ps_u64 b) {
    uvec2 shifted = ps_right_words(a.words, b.words.x & 63u, 0u);
    return ps_u64(ps_is_width(b.words) ? uvec2(0u) : shifted);
}
ps_i64 ps_bitwise_right_shift(ps_i64 a, ps_i64 b) {
    uint fill = int(a.words.y) < 0 ? ~0u : 0u;
    uvec2 shifted = ps_right_words(a.words, b.words.x & 63u, fill);
    return ps_i64(ps_is_width(b.words) ? uvec2(fill) : shifted);
}

bool ps_isfinite(ps_i64 x) { return true; }
bool ps_isfinite(ps_u64 x) { return true; }

bool ps_isinf(ps_i64 x) { return false; }
bool ps_isinf(ps_u64 x) { return false; }

bool ps_isnan(ps_i64 x) { return false; }
bool ps_isnan(ps_u64 x) { return false; }

bool ps_logical_not(ps_i64 x) { return !ps_bool(x); }
bool ps_logical_not(ps_u64 x) { return !ps_bool(x); }

bool ps_logical_and(ps_i64 a, ps_i64 b) { return ps_bool(a) && ps_bool(b); }
bool ps_logical_and(ps_u64 a, ps_u64 b) { return ps_bool(a) && ps_bool(b); }

bool ps_logical_or(ps_i64 a, ps_i64 b) { return ps_bool(a) || ps_bool(b); }
bool ps_logical_or(ps_u64 a, ps_u64 b) { return ps_bool(a) || ps_bool(b); }

bool ps_logical_xor(ps_i64 a, ps_i64 b) { return ps_bool(a) != ps_bool(b); }
bool ps_logical_xor(ps_u64 a, ps_u64 b) { return ps_bool(a) != ps_bool(b); }
