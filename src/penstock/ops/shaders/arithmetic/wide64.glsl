// 64-bit integers and double, on a device that has both.

double ps_float64(ps_i64 x) { return double(x); }
double ps_float64(ps_u64 x) { return double(x); }

ps_i64 ps_int64(double x) { return int64_t(x); }

ps_u64 ps_uint64(double x) { return x < double(0) ? uint64_t(int64_t(x)) : uint64_t(x); }
