// REAL is float or double, PAIR two of them. Within 4 units in the last place, and without branches:
// the drivers for CPUs run both sides of one. `precise` keeps every operation as it is written; no
// driver may be asked for a fused multiply-add, since those that have none do not say so.

// Sums and products with their rounding errors: high + low is the exact value.

precise PAIR ps_quick_sum(REAL a, REAL b) {
    REAL s = a + b;
    return PAIR(s, b - (s - a));
}

precise PAIR ps_exact_sum(REAL a, REAL b) {
    REAL s = a + b;
    REAL t = s - a;
    return PAIR(s, (a - (s - t)) + (b - t));
}

precise PAIR ps_exact_product(REAL a, REAL b) {
    REAL p = a * b;
    REAL ah = ps_high(a), bh = ps_high(b);
    REAL al = a - ah, bl = b - bh;
    return PAIR(p, ((ah * bh - p) + ah * bl + al * bh) + al * bl);
}

precise PAIR ps_pair_product(PAIR a, PAIR b) {
    PAIR p = ps_exact_product(a.x, b.x);
    return ps_quick_sum(p.x, p.y + (a.x * b.y + a.y * b.x));
}

// Exponentials: x = n·ln 2 + r.

// exp(x)·2^scale
precise REAL ps_exp_scaled(REAL x, int scale) {
    REAL y = x > PS_EXP_MOST_REAL ? PS_EXP_MOST_REAL : x < PS_EXP_LEAST_REAL ? PS_EXP_LEAST_REAL : x;
    REAL n = ps_nearest(y * PS_LOG2_E_REAL);
    REAL r = (y - n * PS_LN2_HIGH_REAL) - n * PS_LN2_LOW_REAL;
    REAL e = REAL(1) + (r + r * r * ps_exp_polynomial(r));
    return ps_scaled(e, int(n) + scale);
}

REAL ps_exp(REAL x) { return ps_exp_scaled(x, 0); }

precise REAL ps_exp2(REAL x) {
    REAL most = PS_EXP2_MOST_REAL, least = PS_EXP2_LEAST_REAL;
    REAL y = x > most ? most : x < least ? least : x;
    REAL n = ps_nearest(y);
    REAL f = y - n;
    return ps_scaled(REAL(1) + f * ps_exp2_polynomial(f), int(n));
}

// expm1(x)·2^scale
precise REAL ps_expm1_scaled(REAL x, int scale) {
    REAL least = REAL(-40);
    REAL y = x > PS_EXP_MOST_REAL ? PS_EXP_MOST_REAL : x < least ? least : x;
    REAL n = ps_nearest(y * PS_LOG2_E_REAL);
    REAL high = y - n * PS_LN2_HIGH_REAL, low = n * PS_LN2_LOW_REAL;
    REAL r = high - low;
    REAL z = r * r;
    REAL lost = (high - r) - low;
    REAL e = r + (REAL(0.5) * z + (r * z * ps_expm1_polynomial(r) + lost));
    // 1 - 2^-n, of which 2^-n is lost, or would overflow, when n is large.
    int k = int(n);
    REAL one = k > 60 ? REAL(1) : REAL(1) - ps_scaled(REAL(1), 0 - min(k, 60));
    return ps_scaled(e + one, k + scale);
}

REAL ps_expm1(REAL x) {
    return ps_abs(x) < PS_TINY_REAL ? x : ps_expm1_scaled(x, 0);
}

REAL ps_sinh(REAL x) {
    REAL t = ps_expm1_scaled(ps_abs(x), -1);
    REAL y = t > PS_VAST_REAL ? t : t + t / (t + t + REAL(1));
    return ps_abs(x) < PS_TINY_REAL ? x : ps_copysign(y, x);
}

REAL ps_cosh(REAL x) {
    REAL e = ps_exp_scaled(ps_abs(x), -1);
    return e + REAL(0.25) / e;
}

REAL ps_tanh(REAL x) {
    REAL a = ps_abs(x);
    REAL t = ps_expm1_scaled(a > REAL(22) ? REAL(44) : a + a, 0);
    return a < PS_TINY_REAL ? x : ps_copysign(t / (t + REAL(2)), x);
}

// Logarithms: x = (1 + f)·2^k, and log(1 + f) = f - (f²/2 - s·(f²/2 + R)) with s = f / (2 + f).

// s·(f²/2 + R): log(1 + f) but for f - f²/2
precise REAL ps_log_rest(REAL f) {
    REAL s = f / (REAL(2) + f);
    REAL z = s * s;
    return s * (REAL(0.5) * f * f + z * ps_log_polynomial(z));
}

// The logarithm for zero, infinity, negative numbers and NaN; y otherwise.
REAL ps_log_special(REAL x, REAL y) {
    REAL special = ps_isnan(x) || x > REAL(0) ? x : ps_bool(x) ? PS_NAN_REAL : ps_negative(PS_INFINITY_REAL);
    return ps_isfinite(x) && x > REAL(0) ? y : special;
}

precise REAL ps_log(REAL x) {
    PAIR parts = ps_log_parts(x);
    REAL f = parts.x, k = parts.y;
    REAL rest = ps_log_rest(f) + k * PS_LN2_LOW_REAL;
    return ps_log_special(x, k * PS_LN2_HIGH_REAL + (f - (REAL(0.5) * f * f - rest)));
}

// log(1 + x): 1 + x is rounded, and what was lost is added, divided by it.
precise REAL ps_log1p(REAL x) {
    REAL u = REAL(1) + x;
    REAL lost = x > REAL(1) ? REAL(1) - (u - x) : x - (u - REAL(1));
    PAIR parts = ps_log_parts(u);
    REAL k = parts.y, f = k == REAL(0) ? x : parts.x;
    lost = k == REAL(0) ? REAL(0) : lost / u;
    REAL rest = ps_log_rest(f) + (k * PS_LN2_LOW_REAL + lost);
    REAL y = k * PS_LN2_HIGH_REAL + (f - (REAL(0.5) * f * f - rest));
    return ps_abs(x) < PS_TINY_REAL ? x : ps_log_special(u, y);
}

// A logarithm of another base, from 1/ln(base) and log(2), each in two parts.
precise REAL ps_log_base(REAL x, PAIR scale, PAIR two) {
    PAIR parts = ps_log_parts(x);
    REAL f = parts.x, k = parts.y;
    REAL square = REAL(0.5) * f * f;
    REAL high = ps_high(f - square);
    REAL low = ((f - high) - square) + ps_log_rest(f);
    PAIR sum = ps_exact_sum(k * two.x, high * scale.x);
    REAL y = sum.x + (sum.y + ((low + high) * scale.y + low * scale.x + k * two.y));
    return ps_log_special(x, y);
}

REAL ps_log2(REAL x) {
    PAIR scale = PAIR(PS_LOG2_E_HIGH_REAL, PS_LOG2_E_LOW_REAL);
    return ps_log_base(x, scale, PAIR(REAL(1), REAL(0)));
}

REAL ps_log10(REAL x) {
    PAIR scale = PAIR(PS_LOG10_E_HIGH_REAL, PS_LOG10_E_LOW_REAL);
    return ps_log_base(x, scale, PAIR(PS_LOG10_2_HIGH_REAL, PS_LOG10_2_LOW_REAL));
}

// The largest of both, and how much the other adds: where both cancel, the error is that of the
// larger operand.
REAL ps_logaddexp(REAL a, REAL b) {
    REAL most = a > b ? a : b;
    REAL y = most + (a == b ? PS_LN2_REAL : ps_log1p(ps_exp(ps_negative(ps_abs(a - b)))));
    return ps_isnan(a) || ps_isnan(b) ? PS_NAN_REAL : ps_isinf(most) ? most : y;
}

REAL ps_asinh(REAL x) {
    REAL a = ps_abs(x);
    bool vast = a > PS_VAST_REAL;
    REAL y = ps_log1p(vast ? a : a + a * a / (REAL(1) + sqrt(a * a + REAL(1))));
    return a < PS_TINY_REAL ? x : ps_copysign(vast ? y + PS_LN2_REAL : y, x);
}

REAL ps_acosh(REAL x) {
    REAL t = x - REAL(1);
    bool vast = x > PS_VAST_REAL;
    REAL y = ps_log1p(vast ? x : t + sqrt(t * (t + REAL(2))));
    return x < REAL(1) ? PS_NAN_REAL : vast ? y + PS_LN2_REAL : y;
}

REAL ps_atanh(REAL x) {
    REAL a = ps_abs(x);
    REAL y = REAL(0.5) * ps_log1p((a + a) / (REAL(1) - a));
    return a < PS_TINY_REAL ? x : a > REAL(1) ? PS_NAN_REAL : ps_copysign(y, x);
}

// Powers: 2^(y·log2(x)), with the logarithm in two parts.

// 2·atanh(t) - 2·t. In float its rounding errors, of a small part, are small enough; in double, whose
// exponents are larger, its first term is computed in two parts.
precise PAIR ps_log_series_float(PAIR t) {
    REAL z = t.x * t.x;
    return PAIR(t.x * (z * ps_log_polynomial(z)), REAL(0));
}

precise PAIR ps_log_series_double(PAIR t) {
    PAIR z = ps_pair_product(t, t);
    PAIR r = ps_pair_product(z, PAIR(PS_TWO_THIRDS_HIGH_REAL, PS_TWO_THIRDS_LOW_REAL));
    r = ps_quick_sum(r.x, r.y + z.x * z.x * ps_log_tail(z.x));
    return ps_pair_product(r, t);
}

// log2 of a positive, finite number
precise PAIR ps_log2_pair(REAL x) {
    PAIR parts = ps_log_parts(x);
    REAL f = parts.x;
    REAL d = REAL(2) + f;
    REAL s = f / d;
    PAIR p = ps_exact_product(s, d);
    PAIR t = PAIR(s, (((f - p.x) - p.y) - s * (f - (d - REAL(2)))) / d);
    PAIR r = ps_log_series_REAL(t);
    PAIR sum = ps_quick_sum(REAL(2) * t.x, r.x);
    sum = ps_quick_sum(sum.x, sum.y + (r.y + REAL(2) * t.y));
    PAIR log2_e = PAIR(PS_LOG2_E_HIGH_REAL, PS_LOG2_E_LOW_REAL);
    PAIR scaled = ps_pair_product(sum, log2_e);
    PAIR whole = ps_exact_sum(parts.y, scaled.x);
    return ps_quick_sum(whole.x, whole.y + scaled.y);
}

// Larger exponents give the same as this one, for any base but 1, and it leaves products exact.
precise REAL ps_pow_positive(REAL x, REAL y) {
    REAL most = PS_POW_MOST_REAL, b = y > most ? most : y < ps_negative(most) ? ps_negative(most) : y;
    PAIR l = ps_log2_pair(x);
    PAIR p = ps_exact_product(l.x, b);
    REAL low = p.y + l.y * b;
    bool over = p.x > PS_EXP2_MOST_REAL, under = p.x < PS_EXP2_LEAST_REAL;
    REAL high = over ? PS_EXP2_MOST_REAL : under ? PS_EXP2_LEAST_REAL : p.x;
    REAL n = ps_nearest(high);
    REAL f = (high - n) + (over || under ? REAL(0) : low);
    return ps_scaled(REAL(1) + f * ps_exp2_polynomial(f), int(n));
}

REAL ps_pow(REAL x, REAL y) {
    REAL a = ps_abs(x);
    REAL half_ = y * REAL(0.5);
    bool whole = ps_floor(y) == y, odd = whole && ps_isfinite(y) && ps_floor(half_) != half_;
    bool up = y > REAL(0), vast = ps_isinf(a) || ps_isinf(y);
    // The size of the result. An infinite exponent, or an infinite or zero base, gives 0, 1 or inf.
    bool large = ps_isinf(y) ? a > REAL(1) == up : ps_isinf(a) == up;
    REAL end = large ? PS_INFINITY_REAL : REAL(0);
    REAL size = vast || !ps_bool(x) ? end : ps_pow_positive(a, y);
    size = a == REAL(1) || !ps_bool(y) ? REAL(1) : size;
    REAL signed_ = ps_signbit(x) && odd ? ps_negative(size) : size;
    bool undefined = x < REAL(0) && !ps_isinf(x) && !whole && !ps_isinf(y);
    bool nan = ps_isnan(x) && ps_bool(y) || ps_isnan(y) && x != REAL(1) || undefined;
    return nan ? PS_NAN_REAL : signed_;
}

// Angles: x is a whole number of quarter turns and r.

// The remaining angle, at most π/4, and the quarter turns, modulo four.
PAIR ps_reduced(REAL x) {
    REAL a = ps_abs(x);
    return a < REAL(0.78125) ? PAIR(a, REAL(0)) : ps_quarter_turns(a);
}

precise REAL ps_sin_reduced(REAL r) {
    REAL z = r * r;
    return r + r * (z * ps_sin_polynomial(z));
}

precise REAL ps_cos_reduced(REAL r) {
    REAL z = r * r, h = REAL(0.5) * z;
    REAL c = REAL(1) - h;
    return c + (((REAL(1) - c) - h) + z * z * ps_cos_polynomial(z));
}

REAL ps_sin(REAL x) {
    PAIR reduced = ps_reduced(x);
    int turns = int(reduced.y);
    REAL y = (turns & 1) != 0 ? ps_cos_reduced(reduced.x) : ps_sin_reduced(reduced.x);
    bool minus = (turns & 2) != 0;
    y = minus != ps_signbit(x) ? ps_negative(y) : y;
    return ps_abs(x) < PS_TINY_REAL ? x : ps_isfinite(x) ? y : PS_NAN_REAL;
}

REAL ps_cos(REAL x) {
    PAIR reduced = ps_reduced(x);
    int turns = int(reduced.y);
    REAL y = (turns & 1) != 0 ? ps_sin_reduced(reduced.x) : ps_cos_reduced(reduced.x);
    y = (turns + 1 & 2) != 0 ? ps_negative(y) : y;
    return ps_isfinite(x) ? y : PS_NAN_REAL;
}

precise REAL ps_tan_reduced(REAL r) {
    REAL z = r * r;
    return r + r * (z * ps_tan_polynomial(z));
}

REAL ps_tan(REAL x) {
    PAIR reduced = ps_reduced(x);
    REAL t = ps_tan_reduced(reduced.x);
    REAL y = (int(reduced.y) & 1) != 0 ? REAL(-1) / t : t;
    y = ps_signbit(x) ? ps_negative(y) : y;
    return ps_abs(x) < PS_TINY_REAL ? x : ps_isfinite(x) ? y : PS_NAN_REAL;
}

// Inverse functions of angles.

// asin of x up to a half, or of √((1 - x) / 2): half the angle between x and 1.
precise REAL ps_asin_near(REAL a) {
    bool far = a > REAL(0.5);
    REAL z = far ? REAL(0.5) * (REAL(1) - a) : a * a;
    REAL s = far ? sqrt(z) : a;
    return s + s * (z * ps_asin_polynomial(z));
}

precise REAL ps_asin(REAL x) {
    REAL a = ps_abs(x), p = ps_asin_near(a);
    REAL y = REAL(0.5) * PS_PI_HIGH_REAL - (REAL(2) * p - REAL(0.5) * PS_PI_LOW_REAL);
    y = ps_copysign(a > REAL(0.5) ? y : p, x);
    return a < PS_TINY_REAL ? x : a <= REAL(1) ? y : PS_NAN_REAL;
}

precise REAL ps_acos(REAL x) {
    REAL a = ps_abs(x), p = ps_asin_near(a);
    REAL near = REAL(0.5) * PS_PI_HIGH_REAL - (ps_copysign(p, x) - REAL(0.5) * PS_PI_LOW_REAL);
    REAL left = PS_PI_HIGH_REAL - (REAL(2) * p - PS_PI_LOW_REAL);
    REAL y = a <= REAL(0.5) ? near : x < REAL(0) ? left : REAL(2) * p;
    return a <= REAL(1) ? y : PS_NAN_REAL;
}

// The angle of (b, a) in the first quadrant: atan(a / b), or its distance from π/4 or π/2; or, on the
// left, π minus that.
precise REAL ps_atan_ratio(REAL a, REAL b, bool left) {
    bool steep = a > REAL(2.4140625) * b, middle = a > REAL(0.4140625) * b;
    REAL t = (steep ? ps_negative(b) : middle ? a - b : a) / (steep ? a : middle ? a + b : b);
    REAL turn = steep ? REAL(0.5) : middle ? REAL(0.25) : REAL(0), z = t * t;
    REAL rest = t * (z * ps_atan_polynomial(z));
    t = left ? ps_negative(t) : t;
    rest = left ? ps_negative(rest) : rest;
    turn = left ? REAL(1) - turn : turn;
    return turn * PS_PI_HIGH_REAL + (t + (rest + turn * PS_PI_LOW_REAL));
}

REAL ps_atan(REAL x) {
    REAL a = ps_abs(x);
    REAL y = ps_atan_ratio(a, REAL(1), false);
    return a < PS_TINY_REAL || ps_isnan(x) ? x : ps_copysign(y, x);
}

precise REAL ps_atan2(REAL y, REAL x) {
    REAL a = ps_abs(y), b = ps_abs(x);
    bool both = ps_isinf(a) && ps_isinf(b);
    REAL most = a > b ? a : b;
    REAL scale = most > PS_SQUARE_MOST_REAL ? REAL(0.25) : REAL(1);
    scale = most < PS_SQUARE_LEAST_REAL ? PS_SCALE_UP_REAL : scale;
    bool left = ps_signbit(x);
    REAL r = ps_atan_ratio(both ? REAL(1) : a * scale, both ? REAL(1) : b * scale, left);
    r = ps_bool(y) ? r : left ? PS_PI_HIGH_REAL : REAL(0);
    return ps_isnan(x) || ps_isnan(y) ? PS_NAN_REAL : ps_copysign(r, y);
}

precise REAL ps_hypot(REAL x, REAL y) {
    REAL a = ps_abs(x), b = ps_abs(y);
    REAL most = a > b ? a : b;
    bool large = most > PS_SQUARE_MOST_REAL, small = most < PS_SQUARE_LEAST_REAL;
    REAL down = large ? PS_SCALE_DOWN_REAL : small ? PS_SCALE_UP_REAL : REAL(1);
    REAL up = large ? PS_SCALE_UP_REAL : small ? PS_SCALE_DOWN_REAL : REAL(1);
    REAL c = a * down, d = b * down;
    REAL r = sqrt(c * c + d * d) * up;
    bool nan = ps_isnan(x) || ps_isnan(y);
    r = !ps_bool(x) ? b : !ps_bool(y) ? a : nan ? PS_NAN_REAL : r;
    return ps_isinf(a) || ps_isinf(b) ? PS_INFINITY_REAL : r;
}

// The exact remainder of a division that truncates. With integers m and n,
// m·2^p mod n·2^q = (m·2^(p - q) mod n)·2^q, and 2^(p - q) mod n by repeated squaring.

// a·b mod n for integers a, b < n without rounding. The quotient may be wrong by one.
precise REAL ps_product_modulo(REAL a, REAL b, REAL n) {
    PAIR p = ps_exact_product(a, b);
    REAL q = ps_trunc(p.x / n);
    PAIR w = ps_exact_product(q, n);
    REAL t = p.x - w.x, u = p.y - w.y;
    t = t < REAL(0) ? t + n : t;
    t = t >= n ? t - n : t;
    REAL r = u > REAL(0) ? (t - n) + u : t + u;
    r = r < REAL(0) ? r + n : r;
    r = r < REAL(0) ? r + n : r;
    return r >= n ? r - n : r;
}

precise REAL ps_square_twice_modulo(REAL x, bool twice, REAL n) {
    REAL y = ps_product_modulo(x, x, n);
    REAL z = y - (n - y);  // 2·y - n, without rounding
    return !twice ? y : z >= REAL(0) ? z : y + y;
}

// 2^k mod n: from a power of two that is exact, one bit of k at a time.
precise REAL ps_power_modulo_float(int k, REAL n) {
    REAL x = ps_scaled(REAL(1), k >> 4);
    x = x - ps_trunc(x / n) * n;
    x = ps_square_twice_modulo(x, (k & 8) != 0, n);
    x = ps_square_twice_modulo(x, (k & 4) != 0, n);
    x = ps_square_twice_modulo(x, (k & 2) != 0, n);
    return ps_square_twice_modulo(x, (k & 1) != 0, n);
}

precise REAL ps_power_modulo_double(int k, REAL n) {
    REAL x = ps_scaled(REAL(1), k >> 6);
    x = x - ps_trunc(x / n) * n;
    x = ps_square_twice_modulo(x, (k & 32) != 0, n);
    x = ps_square_twice_modulo(x, (k & 16) != 0, n);
    x = ps_square_twice_modulo(x, (k & 8) != 0, n);
    x = ps_square_twice_modulo(x, (k & 4) != 0, n);
    x = ps_square_twice_modulo(x, (k & 2) != 0, n);
    return ps_square_twice_modulo(x, (k & 1) != 0, n);
}

precise REAL ps_fmod(REAL a, REAL b) {
    REAL m = ps_mantissa(a), n = ps_mantissa(b);
    int q = ps_exponent(b);
    int d = ps_exponent(a) - q;
    REAL safe = ps_bool(n) ? n : REAL(1);
    REAL x = ps_power_modulo_REAL(d < 0 ? 0 : d, safe);
    REAL rest = m - ps_trunc(m / safe) * safe;
    REAL r = ps_copysign(ps_scaled(ps_product_modulo(x, rest, safe), q), a);
    bool nan = ps_isnan(a) || ps_isnan(b) || ps_isinf(a) || !ps_bool(b);
    return nan ? PS_NAN_REAL : d < 0 || ps_isinf(b) ? a : r;
}
