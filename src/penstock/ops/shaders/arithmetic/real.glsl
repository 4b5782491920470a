// REAL is float or double: exact functions, rounded once like +, -, ×, ÷ and √ themselves.

precise REAL ps_add(REAL a, REAL b) { return a + b; }

precise REAL ps_subtract(REAL a, REAL b) { return a - b; }

precise REAL ps_multiply(REAL a, REAL b) { return a * b; }

precise REAL ps_divide(REAL a, REAL b) { return a / b; }

precise REAL ps_reciprocal(REAL x) { return REAL(1) / x; }

precise REAL ps_square(REAL x) { return x * x; }

REAL ps_positive(REAL x) { return x; }

REAL ps_conj(REAL x) { return x; }

REAL ps_real(REAL x) { return x; }

REAL ps_imag(REAL x) { return REAL(0); }

REAL ps_sqrt(REAL x) { return x < REAL(0) ? PS_NAN_REAL : ps_bool(x) ? sqrt(x) : x; }

REAL ps_sign(REAL x) {
    return ps_isnan(x) ? x : ps_bool(x) ? ps_copysign(REAL(1), x) : REAL(0);
}

// NaN wins, and -0 is less than +0.
REAL ps_minimum(REAL a, REAL b) {
    return ps_isnan(a) || !ps_isnan(b) && ps_before(a, b) ? a : b;
}

REAL ps_maximum(REAL a, REAL b) {
    return ps_isnan(a) || !ps_isnan(b) && ps_before(b, a) ? a : b;
}

REAL ps_clip(REAL x, REAL low, REAL high) { return ps_minimum(ps_maximum(x, low), high); }

bool ps_equal(REAL a, REAL b) { return a == b; }

bool ps_not_equal(REAL a, REAL b) { return !(a == b); }

bool ps_less(REAL a, REAL b) { return a < b; }

bool ps_less_equal(REAL a, REAL b) { return a <= b; }

bool ps_greater(REAL a, REAL b) { return a > b; }

bool ps_greater_equal(REAL a, REAL b) { return a >= b; }

bool ps_logical_not(REAL x) { return !ps_bool(x); }

bool ps_logical_and(REAL a, REAL b) { return ps_bool(a) && ps_bool(b); }

bool ps_logical_or(REAL a, REAL b) { return ps_bool(a) || ps_bool(b); }

bool ps_logical_xor(REAL a, REAL b) { return ps_bool(a) != ps_bool(b); }

// Python's remainder: it has the sign of the divisor.
precise REAL ps_remainder(REAL a, REAL b) {
    REAL r = ps_fmod(a, b);
    r = ps_signbit(r) != ps_signbit(b) && r != REAL(0) ? r + b : r;
    return r == REAL(0) ? ps_copysign(r, b) : r;
}

// The standard's quotient: that of an infinity, by an infinity or by zero is a / b, where Python and
// NumPy have NaN or -1.
precise REAL ps_floor_divide(REAL a, REAL b) {
    REAL r = ps_fmod(a, b);
    REAL q = (a - r) / b;
    q = ps_signbit(r) != ps_signbit(b) && r != REAL(0) ? q - REAL(1) : q;
    REAL whole = ps_floor(q);
    whole = q - whole > REAL(0.5) ? whole + REAL(1) : whole;
    whole = whole == REAL(0) ? ps_copysign(whole, a / b) : whole;
    return ps_isinf(a) || ps_isinf(b) || !ps_bool(b) ? a / b : whole;
}
