// REAL is float or double, PAIR two of them, BITS the integer of as many bits. HIP's mathematical
// library is accurate, has double, and knows the special values: this replaces float32.glsl,
// float64.glsl and transcendental.glsl.

bool ps_isnan(REAL x) { return x != x; }

bool ps_isinf(REAL x) { return fabs(x) == PS_INFINITY_REAL; }

bool ps_isfinite(REAL x) { return fabs(x) < PS_INFINITY_REAL; }

bool ps_signbit(REAL x) { return ps_bits(x) >> (8 * sizeof(REAL) - 1) != 0; }

REAL ps_abs(REAL x) { return fabs(x); }

REAL ps_negative(REAL x) { return -x; }

REAL ps_copysign(REAL x, REAL y) { return copysign(x, y); }

bool ps_before(REAL a, REAL b) { return a < b || (a == b && ps_signbit(a) && !ps_signbit(b)); }

REAL ps_nextafter(REAL x, REAL y) {
    BITS next = ps_bits(x) + (x < y == x > REAL(0) ? BITS(1) : ~BITS(0));
    REAL away = x == REAL(0) ? copysign(ps_of_bits(BITS(1)), y) : ps_of_bits(next);
    return x != x || y != y ? PS_NAN_REAL : x == y ? y : away;
}

REAL ps_floor(REAL x) { return floor(x); }

REAL ps_ceil(REAL x) { return ceil(x); }

REAL ps_trunc(REAL x) { return trunc(x); }

REAL ps_round(REAL x) { return rint(x); }

bool ps_bool(REAL x) { return !(x == REAL(0)); }

int ps_int32(REAL x) { return int(x); }

uint ps_uint32(REAL x) { return x < REAL(0) ? uint(int(x)) : uint(x); }

REAL ps_WIDTH(bool x) { return x ? REAL(1) : REAL(0); }
REAL ps_WIDTH(int x) { return REAL(x); }
REAL ps_WIDTH(uint x) { return REAL(x); }
REAL ps_WIDTH(float x) { return REAL(x); }
REAL ps_WIDTH(double x) { return REAL(x); }

PAIR ps_quick_sum(REAL a, REAL b) {
    REAL s = a + b;
    return PAIR(s, b - (s - a));
}

PAIR ps_exact_sum(REAL a, REAL b) {
    REAL s = a + b, t = s - a;
    return PAIR(s, (a - (s - t)) + (b - t));
}

PAIR ps_exact_product(REAL a, REAL b) {
    REAL p = a * b;
    return PAIR(p, fma(a, b, -p));
}

REAL ps_exp(REAL x) { return exp(x); }

REAL ps_exp2(REAL x) { return exp2(x); }

REAL ps_expm1(REAL x) { return expm1(x); }

REAL ps_log(REAL x) { return log(x); }

REAL ps_log1p(REAL x) { return log1p(x); }

REAL ps_log2(REAL x) { return log2(x); }

REAL ps_log10(REAL x) { return log10(x); }

REAL ps_sin(REAL x) { return sin(x); }

REAL ps_cos(REAL x) { return cos(x); }

REAL ps_tan(REAL x) { return tan(x); }

REAL ps_asin(REAL x) { return asin(x); }

REAL ps_acos(REAL x) { return acos(x); }

REAL ps_atan(REAL x) { return atan(x); }

REAL ps_sinh(REAL x) { return sinh(x); }

REAL ps_cosh(REAL x) { return cosh(x); }

REAL ps_tanh(REAL x) { return tanh(x); }

REAL ps_asinh(REAL x) { return asinh(x); }

REAL ps_acosh(REAL x) { return acosh(x); }

REAL ps_atanh(REAL x) { return atanh(x); }

REAL ps_atan2(REAL y, REAL x) { return atan2(y, x); }

REAL ps_hypot(REAL x, REAL y) { return hypot(x, y); }

REAL ps_pow(REAL x, REAL y) { return pow(x, y); }

REAL ps_fmod(REAL a, REAL b) { return fmod(a, b); }

REAL ps_logaddexp(REAL a, REAL b) {
    REAL most = a > b ? a : b;
    REAL y = most + (a == b ? PS_LN2_REAL : log1p(exp(-fabs(a - b))));
    return a != a || b != b ? PS_NAN_REAL : ps_isinf(most) ? most : y;
}
