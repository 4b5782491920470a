// COMPLEX is two REALs: vec2 of float, or dvec2 of double. Special values are those of the Array API
// standard, which are those of C's Annex G; products and quotients are the textbook's, as in NumPy.
//
// Only constructors and components are used, so that this is HIP C++ as well.

bool ps_bool(COMPLEX z) { return ps_bool(z.x) || ps_bool(z.y); }

bool ps_isnan(COMPLEX z) { return ps_isnan(z.x) || ps_isnan(z.y); }

bool ps_isinf(COMPLEX z) { return ps_isinf(z.x) || ps_isinf(z.y); }

bool ps_isfinite(COMPLEX z) { return ps_isfinite(z.x) && ps_isfinite(z.y); }

bool ps_equal(COMPLEX a, COMPLEX b) { return a.x == b.x && a.y == b.y; }

bool ps_not_equal(COMPLEX a, COMPLEX b) { return !(a.x == b.x && a.y == b.y); }

bool ps_logical_not(COMPLEX z) { return !ps_bool(z); }

bool ps_logical_and(COMPLEX a, COMPLEX b) { return ps_bool(a) && ps_bool(b); }

bool ps_logical_or(COMPLEX a, COMPLEX b) { return ps_bool(a) || ps_bool(b); }

bool ps_logical_xor(COMPLEX a, COMPLEX b) { return ps_bool(a) != ps_bool(b); }

REAL ps_real(COMPLEX z) { return z.x; }

REAL ps_imag(COMPLEX z) { return z.y; }

REAL ps_abs(COMPLEX z) { return ps_hypot(z.x, z.y); }

COMPLEX ps_positive(COMPLEX z) { return z; }

COMPLEX ps_negative(COMPLEX z) { return COMPLEX(ps_negative(z.x), ps_negative(z.y)); }

COMPLEX ps_conj(COMPLEX z) { return COMPLEX(z.x, ps_negative(z.y)); }

COMPLEX ps_round(COMPLEX z) { return COMPLEX(ps_round(z.x), ps_round(z.y)); }

precise COMPLEX ps_add(COMPLEX a, COMPLEX b) { return COMPLEX(a.x + b.x, a.y + b.y); }

precise COMPLEX ps_subtract(COMPLEX a, COMPLEX b) { return COMPLEX(a.x - b.x, a.y - b.y); }

precise COMPLEX ps_multiply(COMPLEX a, COMPLEX b) {
    return COMPLEX(a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x);
}

COMPLEX ps_square(COMPLEX z) { return ps_multiply(z, z); }

// A power of two that brings a number near enough to one for its square; and z times it.
REAL ps_safe_scale(REAL most) {
    REAL scale = most < PS_SQUARE_LEAST_REAL ? PS_SCALE_UP_REAL : REAL(1);
    return most > PS_SQUARE_MOST_REAL ? PS_SCALE_DOWN_REAL : scale;
}

REAL ps_largest_part(COMPLEX z) {
    REAL a = ps_abs(z.x), b = ps_abs(z.y);
    return a > b ? a : b;
}

// x·s·t, of which the product s·t may overflow, but is one if the scales cancel.
precise REAL ps_scaled_twice(REAL x, REAL s, REAL t) { return s * t == REAL(1) ? x : x * s * t; }

// Smith's quotient, of operands that are scaled so that nothing in between overflows.
precise COMPLEX ps_divide(COMPLEX a, COMPLEX b) {
    REAL s = ps_safe_scale(ps_largest_part(b)), t = ps_safe_scale(ps_largest_part(a));
    REAL c = b.x * s, d = b.y * s, e = a.x * t, f = a.y * t;
    bool level = ps_abs(c) >= ps_abs(d);
    REAL ratio = level ? d / c : c / d;
    REAL size = level ? c + d * ratio : c * ratio + d;
    REAL x = (level ? e + f * ratio : e * ratio + f) / size;
    REAL y = (level ? f - e * ratio : f * ratio - e) / size;
    REAL up = t == REAL(1) ? t : REAL(1) / t;
    COMPLEX zero = COMPLEX(a.x / ps_abs(b.x), a.y / ps_abs(b.x));
    COMPLEX quotient = COMPLEX(ps_scaled_twice(x, s, up), ps_scaled_twice(y, s, up));
    return ps_bool(b) ? quotient : zero;
}

// The quotient 0/0 is written out: drivers take zero divided by anything for zero.
COMPLEX ps_reciprocal(COMPLEX z) {
    COMPLEX quotient = ps_divide(COMPLEX(REAL(1), REAL(0)), z);
    return ps_bool(z) ? quotient : COMPLEX(PS_INFINITY_REAL, PS_NAN_REAL);
}

// The direction of z; that of one infinite part is known, that of two is not.
COMPLEX ps_sign(COMPLEX z) {
    REAL scale = ps_safe_scale(ps_largest_part(z));
    bool x = ps_isinf(z.x), y = ps_isinf(z.y);
    REAL a = x || y ? ps_copysign(x ? REAL(1) : REAL(0), z.x) : z.x * scale;
    REAL b = x || y ? ps_copysign(y ? REAL(1) : REAL(0), z.y) : z.y * scale;
    REAL size = ps_hypot(a, b);
    COMPLEX direction = ps_bool(z) ? COMPLEX(a / size, b / size) : COMPLEX(REAL(0), REAL(0));
    return ps_isnan(z) || x && y ? COMPLEX(PS_NAN_REAL, PS_NAN_REAL) : direction;
}

precise COMPLEX ps_sqrt(COMPLEX z) {
    REAL most = ps_largest_part(z);
    bool large = most > PS_SQUARE_MOST_REAL, small = most < PS_SQUARE_LEAST_REAL;
    REAL scale = large ? REAL(0.0625) : small ? PS_SCALE_UP_REAL : REAL(1);
    REAL back = large ? REAL(4) : small ? PS_ROOT_SCALE_DOWN_REAL : REAL(1);
    REAL a = z.x * scale, b = z.y * scale;
    REAL t = sqrt(REAL(0.5) * (ps_abs(a) + ps_hypot(a, b)));
    REAL u = REAL(0.5) * ps_abs(b) / t;
    bool left = ps_signbit(z.x);
    COMPLEX root = COMPLEX((left ? u : t) * back, ps_copysign((left ? t : u) * back, z.y));
    root = ps_bool(z) ? root : COMPLEX(REAL(0), z.y);
    // Of an infinite real part; NaN stays.
    REAL rest = ps_isnan(z.y) ? z.y : REAL(0), infinity = PS_INFINITY_REAL;
    COMPLEX leftmost = COMPLEX(rest, ps_copysign(infinity, z.y));
    COMPLEX rightmost = COMPLEX(infinity, ps_copysign(rest, z.y));
    root = ps_isinf(z.x) ? left ? leftmost : rightmost : root;
    root = ps_isnan(z.x) || ps_isnan(z.y) && !ps_isinf(z.x) ? COMPLEX(PS_NAN_REAL, PS_NAN_REAL) : root;
    return ps_isinf(z.y) ? COMPLEX(infinity, z.y) : root;
}

// x·exp(a), where exp(a) alone may overflow.
precise REAL ps_times_exp(REAL x, REAL a) {
    bool large = a > PS_EXP_MOST_REAL - REAL(4);
    REAL e = ps_exp(large ? REAL(0.5) * a : a);
    return large ? x * e * e : x * e;
}

COMPLEX ps_exp(COMPLEX z) {
    REAL x = ps_times_exp(ps_cos(z.y), z.x), y = ps_times_exp(ps_sin(z.y), z.x);
    bool infinite = ps_isinf(z.x), left = infinite && ps_signbit(z.x);
    bool strange = infinite && !ps_isfinite(z.y);
    x = strange ? left ? REAL(0) : PS_INFINITY_REAL : ps_bool(z.y) ? x : ps_exp(z.x);
    y = strange && left ? REAL(0) : ps_bool(z.y) ? y : z.y;
    return COMPLEX(x, y);
}

// The real part is expm1(a)·cos(b) - 2·sin(b/2)² or, the same, expm1(a) - 2·exp(a)·sin(b/2)².
COMPLEX ps_expm1(COMPLEX z) {
    COMPLEX e = ps_exp(z);
    REAL s = ps_sin(REAL(0.5) * z.y);
    REAL right = ps_expm1(z.x) * ps_cos(z.y) - REAL(2) * s * s;
    REAL x = z.x < REAL(0) ? ps_expm1(z.x) - REAL(2) * ps_exp(z.x) * s * s : right;
    bool left = ps_isinf(z.x) && ps_signbit(z.x);
    x = z.x > REAL(40) ? e.x : left ? REAL(-1) : ps_bool(z.y) ? x : ps_expm1(z.x);
    return COMPLEX(ps_bool(x) ? x : REAL(0), e.y);
}

// log(√(1 + t)) of t in two parts, if it is near zero.
precise REAL ps_half_log1p(PAIR t) { return REAL(0.5) * (ps_log1p(t.x) + t.y / (REAL(1) + t.x)); }

// x + y·y, in two parts
precise PAIR ps_plus_square(PAIR x, REAL y) {
    PAIR p = ps_exact_product(y, y);
    PAIR s = ps_exact_sum(x.x, p.x);
    return ps_quick_sum(s.x, s.y + (x.y + p.y));
}

// log(hypot(a, b)). Near one, from a² + b² - 1, since the logarithm would lose what hypot rounded.
precise REAL ps_log_size(REAL a, REAL b) {
    REAL most = ps_largest_part(COMPLEX(a, b)), scale = ps_safe_scale(most);
    REAL shift = scale == REAL(1) ? REAL(0) : scale < REAL(1) ? PS_LN_SCALE_REAL : ps_negative(PS_LN_SCALE_REAL);
    REAL y = ps_log(ps_hypot(a * scale, b * scale)) + shift;
    REAL least = ps_abs(a) < ps_abs(b) ? ps_abs(a) : ps_abs(b);
    bool unit = most < REAL(2) && most > REAL(0.25) && !ps_isnan(COMPLEX(a, b));
    PAIR t = ps_plus_square(ps_plus_square(PAIR(REAL(-1), REAL(0)), unit ? most : REAL(1)), unit ? least : REAL(0));
    return unit && t.x > REAL(-0.8) && t.x < REAL(3) ? ps_half_log1p(t) : y;
}

COMPLEX ps_log(COMPLEX z) { return COMPLEX(ps_log_size(z.x, z.y), ps_atan2(z.y, z.x)); }

// log|1 + z|, near one from 2·a + a² + b².
COMPLEX ps_log1p(COMPLEX z) {
    REAL u = REAL(1) + z.x;
    bool unit = ps_largest_part(z) < REAL(2);
    REAL a = unit ? z.x : REAL(0), b = unit ? z.y : REAL(0);
    PAIR t = ps_plus_square(ps_plus_square(PAIR(REAL(2) * a, REAL(0)), a), b);
    bool close = unit && t.x > REAL(-0.8) && t.x < REAL(3);
    return COMPLEX(close ? ps_half_log1p(t) : ps_log_size(u, z.y), ps_atan2(z.y, u));
}

COMPLEX ps_log2(COMPLEX z) {
    COMPLEX l = ps_log(z);
    return COMPLEX(l.x * PS_LOG2_E_REAL, l.y * PS_LOG2_E_REAL);
}

COMPLEX ps_log10(COMPLEX z) {
    COMPLEX l = ps_log(z);
    return COMPLEX(l.x * PS_LOG10_E_REAL, l.y * PS_LOG10_E_REAL);
}

// Small whole exponents by squaring, others as exp(w·log(z)), whose error grows with |w·log(z)|.
#define PS_SQUARING y = (n & 1) != 0 ? ps_multiply(y, x) : y; x = ps_multiply(x, x); n = n >> 1;
COMPLEX ps_pow(COMPLEX z, COMPLEX w) {
    COMPLEX one = COMPLEX(REAL(1), REAL(0)), x = z, y = one;
    bool whole = !ps_bool(w.y) && ps_abs(w.x) < REAL(64) && ps_floor(w.x) == w.x;
    int n = whole ? int(ps_abs(w.x)) : 0;
    PS_SQUARING PS_SQUARING PS_SQUARING PS_SQUARING PS_SQUARING PS_SQUARING
    y = w.x < REAL(0) ? ps_divide(one, y) : y;
    COMPLEX general = ps_exp(ps_multiply(w, ps_log(z)));
    REAL of_zero = w.x > REAL(0) && !ps_isnan(w) ? REAL(0) : PS_NAN_REAL;
    COMPLEX power = ps_bool(z) ? general : COMPLEX(of_zero, of_zero);
    return !ps_bool(w) ? one : whole && ps_bool(z) ? y : power;
}

// sinh(a)·cos(b) + cosh(a)·sin(b)·j
COMPLEX ps_sinh(COMPLEX z) {
    REAL a = ps_abs(z.x), s = ps_sin(z.y), c = ps_cos(z.y);
    bool large = a > PS_EXP_MOST_REAL - REAL(4);
    REAL x = large ? ps_times_exp(REAL(0.5) * c, a) : ps_sinh(a) * c;
    REAL y = large ? ps_times_exp(REAL(0.5) * s, a) : ps_cosh(a) * s;
    bool strange = !ps_isfinite(z.y) && (ps_isinf(a) || !ps_bool(a));
    x = strange ? a : ps_bool(z.y) ? x : ps_sinh(a);
    x = ps_signbit(z.x) ? ps_negative(x) : x;
    return COMPLEX(x, ps_bool(z.y) ? y : z.y);
}

// cosh(a)·cos(b) + sinh(a)·sin(b)·j
COMPLEX ps_cosh(COMPLEX z) {
    REAL a = ps_abs(z.x), s = ps_sin(z.y), c = ps_cos(z.y);
    bool large = a > PS_EXP_MOST_REAL - REAL(4);
    REAL x = large ? ps_times_exp(REAL(0.5) * c, a) : ps_cosh(a) * c;
    REAL y = large ? ps_times_exp(REAL(0.5) * s, a) : ps_sinh(a) * s;
    bool strange = !ps_isfinite(z.y);
    x = strange && ps_isinf(a) ? a : ps_bool(z.y) ? x : ps_cosh(a);
    y = strange && !ps_bool(a) ? a : ps_bool(z.y) ? y : z.y;
    return COMPLEX(x, ps_signbit(z.x) ? ps_negative(y) : y);
}

// With t = tan(b), s = sinh(a): (√(1 + s²)·s·(1 + t²) + t·j) / (1 + s²·(1 + t²)).
COMPLEX ps_tanh(COMPLEX z) {
    REAL a = ps_abs(z.x), t = ps_tan(z.y), s = ps_sinh(a > REAL(24) ? REAL(24) : a);
    REAL b = REAL(1) + t * t, d = REAL(1) + b * s * s;
    bool far = a > REAL(22);
    REAL e = ps_exp(ps_negative(a));
    REAL x = far ? REAL(1) : b * sqrt(REAL(1) + s * s) * s / d;
    REAL y = far ? REAL(4) * ps_sin(z.y) * ps_cos(z.y) * e * e : t / d;
    y = ps_isinf(a) ? ps_copysign(REAL(0), z.y) : y;
    x = ps_isnan(a) ? a : !ps_isfinite(z.y) && !ps_isinf(a) && ps_bool(a) ? PS_NAN_REAL : x;
    x = ps_bool(a) ? x : a;
    return COMPLEX(ps_copysign(x, z.x), ps_bool(z.y) ? y : z.y);
}

// z·j and -z·j
COMPLEX ps_turned(COMPLEX z) { return COMPLEX(ps_negative(z.y), z.x); }

COMPLEX ps_turned_back(COMPLEX z) { return COMPLEX(z.y, ps_negative(z.x)); }

COMPLEX ps_sin(COMPLEX z) { return ps_turned_back(ps_sinh(ps_turned(z))); }

COMPLEX ps_cos(COMPLEX z) { return ps_cosh(ps_turned(z)); }

COMPLEX ps_tan(COMPLEX z) { return ps_turned_back(ps_tanh(ps_turned(z))); }

// Of z = x + y·j in the first quadrant, by Hull, Fairgrieve and Tang ("Implementing the complex
// arcsine and arccosine functions using exception handling"): with the distances r and s of z from
// -1 and 1, a = (r + s)/2 and b = x/a, asin(z) is asin(b) + acosh(a)·j.

// √(a² - x²), without cancellation: sin and cos of the angle are x and this, divided by a.
precise REAL ps_arc_side(REAL x, REAL y, REAL r, REAL s, REAL a) {
    REAL inner = (a + x) * (y * y / (r + x + REAL(1)) + (s + (REAL(1) - x)));
    REAL outer = (a + x) / (r + x + REAL(1)) + (a + x) / (s + (x - REAL(1)));
    return x <= REAL(1) ? sqrt(REAL(0.5) * inner) : y * sqrt(REAL(0.5) * outer);
}

// acosh(a), from a - 1 where it is small.
precise REAL ps_arc_height(REAL x, REAL y, REAL r, REAL s, REAL a) {
    REAL near = y * y / (r + (x + REAL(1)));
    REAL low = REAL(0.5) * (near + (x < REAL(1) ? y * y / (s + (REAL(1) - x)) : s + (x - REAL(1))));
    REAL below = a < REAL(1.5) ? ps_log1p(low + sqrt(low * (a + REAL(1)))) : ps_log(a + sqrt(a * a - REAL(1)));
    // y² is lost when y is tiny.
    REAL inside = y / sqrt((REAL(1) + x) * (REAL(1) - x));
    REAL away = ps_log1p((x - REAL(1)) + sqrt((x - REAL(1)) * (x + REAL(1))));
    REAL tiny = x < REAL(1) ? inside : x > REAL(1) ? away : sqrt(y);
    return y < PS_SQUARE_LEAST_REAL ? tiny : below;
}

// asin of z: its angle, or that of acos, is that of a triangle with the sides x and √(a² - x²).
precise COMPLEX ps_arc(REAL x, REAL y, bool cosine, bool left) {
    REAL r = ps_hypot(x + REAL(1), y), s = ps_hypot(x - REAL(1), y);
    REAL a = REAL(0.5) * (r + s);
    bool vast = x > PS_SQUARE_MOST_REAL || y > PS_SQUARE_MOST_REAL;
    REAL side = vast ? y : ps_arc_side(x, y, r, s, a), signed_ = left ? ps_negative(x) : x;
    REAL angle = ps_atan2(cosine ? side : x, cosine ? signed_ : side);
    REAL height = vast ? ps_log_size(x, y) + PS_LN2_REAL : ps_arc_height(x, y, r, s, a);
    return COMPLEX(angle, height);
}

COMPLEX ps_acos(COMPLEX z) {
    COMPLEX arc = ps_arc(ps_abs(z.x), ps_abs(z.y), true, ps_signbit(z.x));
    REAL height = ps_isinf(z) ? PS_INFINITY_REAL : ps_isnan(z) ? PS_NAN_REAL : arc.y;
    REAL angle = ps_bool(z.x) ? PS_NAN_REAL : REAL(0.5) * PS_PI_HIGH_REAL;
    angle = ps_isnan(z) ? angle : arc.x;
    return COMPLEX(angle, ps_signbit(z.y) ? height : ps_negative(height));
}

COMPLEX ps_acosh(COMPLEX z) {
    COMPLEX turned = ps_acos(z);
    return COMPLEX(ps_abs(turned.y), ps_copysign(turned.x, z.y));
}

COMPLEX ps_asinh(COMPLEX z) {
    COMPLEX arc = ps_arc(ps_abs(z.y), ps_abs(z.x), false, false);
    REAL height = ps_isinf(z) ? PS_INFINITY_REAL : ps_isnan(z) ? PS_NAN_REAL : arc.y;
    REAL angle = !ps_isnan(z) ? arc.x : ps_bool(z.y) ? PS_NAN_REAL : REAL(0);
    return COMPLEX(ps_copysign(height, z.x), ps_copysign(angle, z.y));
}

COMPLEX ps_asin(COMPLEX z) { return ps_turned_back(ps_asinh(ps_turned(z))); }

// log1p(4·x / ((1 - x)² + y²)) / 4 and atan2(2·y, (1 - x)·(1 + x) - y²) / 2
precise COMPLEX ps_atanh(COMPLEX z) {
    REAL x = ps_abs(z.x), y = ps_abs(z.y), d = REAL(1) - x;
    REAL real = REAL(0.25) * ps_log1p(REAL(4) * x / (d * d + y * y));
    real = ps_bool(d) || y > REAL(0.0009765625) ? real : REAL(0.5) * ps_log(sqrt(REAL(4) + y * y) / y);
    REAL angle = REAL(0.5) * ps_atan2(REAL(2) * y, d * (REAL(1) + x) - y * y);
    // Far from the origin: 1/z, but for a quarter turn.
    REAL most = x > y ? x : y;
    bool far = most > PS_SQUARE_MOST_REAL * REAL(0.25);
    REAL u = x / most, v = y / most;
    real = far ? u / (u * u + v * v) / most : real;
    angle = far ? REAL(0.5) * PS_PI_HIGH_REAL : angle;
    bool infinite = ps_isinf(z);
    real = infinite || !ps_bool(x) ? REAL(0) : ps_isnan(z) ? PS_NAN_REAL : real;
    angle = ps_isnan(z) && !ps_isinf(y) ? PS_NAN_REAL : infinite ? REAL(0.5) * PS_PI_HIGH_REAL : angle;
    return COMPLEX(ps_copysign(real, z.x), ps_copysign(angle, z.y));
}

COMPLEX ps_atan(COMPLEX z) { return ps_turned_back(ps_atanh(ps_turned(z))); }
