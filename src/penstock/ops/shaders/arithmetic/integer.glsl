// INT and UINT are int and uint, or the 64-bit types of a device that has them; WIDTH is their size.
// Integers of 8 and 16 bits are computed here, too: they are sign- or zero-extended to 32 bits, and
// the low bits of a result are what the narrow type gives.
//
// Sums, products and powers wrap. What drivers disagree about is written out: a divisor of zero
// gives zero (as in NumPy), the smallest integer divided by -1 is itself, and a shift by the width
// or more gives zero or, to the right, the sign. Signed sums are made of unsigned ones, since C++
// leaves their overflow undefined.

INT ps_add(INT a, INT b) { return INT(UINT(a) + UINT(b)); }
UINT ps_add(UINT a, UINT b) { return a + b; }

INT ps_subtract(INT a, INT b) { return INT(UINT(a) - UINT(b)); }
UINT ps_subtract(UINT a, UINT b) { return a - b; }

INT ps_multiply(INT a, INT b) { return INT(UINT(a) * UINT(b)); }
UINT ps_multiply(UINT a, UINT b) { return a * b; }

INT ps_square(INT x) { return INT(UINT(x) * UINT(x)); }
UINT ps_square(UINT x) { return x * x; }

INT ps_negative(INT x) { return INT(UINT(0) - UINT(x)); }
UINT ps_negative(UINT x) { return UINT(0) - x; }

INT ps_positive(INT x) { return x; }
UINT ps_positive(UINT x) { return x; }

INT ps_conj(INT x) { return x; }
UINT ps_conj(UINT x) { return x; }

INT ps_real(INT x) { return x; }
UINT ps_real(UINT x) { return x; }

INT ps_imag(INT x) { return INT(0); }
UINT ps_imag(UINT x) { return UINT(0); }

INT ps_floor(INT x) { return x; }
UINT ps_floor(UINT x) { return x; }

INT ps_ceil(INT x) { return x; }
UINT ps_ceil(UINT x) { return x; }

INT ps_trunc(INT x) { return x; }
UINT ps_trunc(UINT x) { return x; }

INT ps_round(INT x) { return x; }
UINT ps_round(UINT x) { return x; }

INT ps_abs(INT x) { return x < INT(0) ? INT(UINT(0) - UINT(x)) : x; }
UINT ps_abs(UINT x) { return x; }

INT ps_sign(INT x) { return x > INT(0) ? INT(1) : x < INT(0) ? INT(-1) : INT(0); }
UINT ps_sign(UINT x) { return x == UINT(0) ? UINT(0) : UINT(1); }

// The quotient is that of the absolute values: no driver is asked to divide negative numbers. The
// absolute value of the smallest integer is right as an unsigned one.
UINT ps_floor_divide(UINT a, UINT b) {
    UINT d = b == UINT(0) ? UINT(1) : b;
    return b == UINT(0) ? UINT(0) : a / d;
}
INT ps_floor_divide(INT a, INT b) {
    UINT n = UINT(ps_abs(a)), d = b == INT(0) ? UINT(1) : UINT(ps_abs(b));
    UINT q = n / d;
    bool opposite = (a ^ b) < INT(0);
    q = opposite ? UINT(0) - (q + (q * d != n ? UINT(1) : UINT(0))) : q;
    return b == INT(0) ? INT(0) : INT(q);
}

UINT ps_remainder(UINT a, UINT b) {
    UINT d = b == UINT(0) ? UINT(1) : b;
    return b == UINT(0) ? UINT(0) : a - a / d * d;
}
INT ps_remainder(INT a, INT b) {
    UINT n = UINT(ps_abs(a)), d = b == INT(0) ? UINT(1) : UINT(ps_abs(b));
    UINT r = n - n / d * d;
    r = a < INT(0) ? UINT(0) - r : r;
    r += r != UINT(0) && (a ^ b) < INT(0) ? UINT(b) : UINT(0);
    return b == INT(0) ? INT(0) : INT(r);
}

INT ps_minimum(INT a, INT b) { return a < b ? a : b; }
UINT ps_minimum(UINT a, UINT b) { return a < b ? a : b; }

INT ps_maximum(INT a, INT b) { return a > b ? a : b; }
UINT ps_maximum(UINT a, UINT b) { return a > b ? a : b; }

INT ps_clip(INT x, INT low, INT high) { return ps_minimum(ps_maximum(x, low), high); }
UINT ps_clip(UINT x, UINT low, UINT high) { return ps_minimum(ps_maximum(x, low), high); }

// The power by squaring, one bit of the exponent at a time, without a loop: a loop would count
// towards the iterations that a driver allows an invocation.
#define PS_POWER_1_UINT y = (n & UINT(1)) != UINT(0) ? y * x : y; x = x * x; n = n >> 1;
#define PS_POWER_4_UINT PS_POWER_1_UINT PS_POWER_1_UINT PS_POWER_1_UINT PS_POWER_1_UINT
#define PS_POWER_16_UINT PS_POWER_4_UINT PS_POWER_4_UINT PS_POWER_4_UINT PS_POWER_4_UINT
#define PS_POWER_32_UINT PS_POWER_16_UINT PS_POWER_16_UINT
#define PS_POWER_64_UINT PS_POWER_32_UINT PS_POWER_32_UINT
UINT ps_pow(UINT a, UINT b) {
    UINT x = a, n = b, y = UINT(1);
    PS_POWER_WIDTH_UINT
    return y;
}
INT ps_pow(INT a, INT b) {
    INT odd = (b & INT(1)) == INT(0) ? INT(1) : a;
    INT down = a == INT(1) ? a : a == INT(-1) ? odd : INT(0);
    return b < INT(0) ? down : INT(ps_pow(UINT(a), UINT(b)));
}

INT ps_bitwise_and(INT a, INT b) { return a & b; }
UINT ps_bitwise_and(UINT a, UINT b) { return a & b; }

INT ps_bitwise_or(INT a, INT b) { return a | b; }
UINT ps_bitwise_or(UINT a, UINT b) { return a | b; }

INT ps_bitwise_xor(INT a, INT b) { return a ^ b; }
UINT ps_bitwise_xor(UINT a, UINT b) { return a ^ b; }

INT ps_bitwise_invert(INT x) { return ~x; }
UINT ps_bitwise_invert(UINT x) { return ~x; }

// A negative count is as large as a count can be, as in NumPy.
UINT ps_bitwise_left_shift(UINT a, UINT b) {
    return b < UINT(WIDTH) ? a << uint(b & UINT(WIDTH - 1)) : UINT(0);
}
INT ps_bitwise_left_shift(INT a, INT b) { return INT(ps_bitwise_left_shift(UINT(a), UINT(b))); }

UINT ps_bitwise_right_shift(UINT a, UINT b) {
    return b < UINT(WIDTH) ? a >> uint(b & UINT(WIDTH - 1)) : UINT(0);
}
INT ps_bitwise_right_shift(INT a, INT b) {
    return a >> (UINT(b) < UINT(WIDTH) ? uint(b) : uint(WIDTH - 1));
}

bool ps_equal(INT a, INT b) { return a == b; }
bool ps_equal(UINT a, UINT b) { return a == b; }

bool ps_not_equal(INT a, INT b) { return a != b; }
bool ps_not_equal(UINT a, UINT b) { return a != b; }

bool ps_less(INT a, INT b) { return a < b; }
bool ps_less(UINT a, UINT b) { return a < b; }

bool ps_less_equal(INT a, INT b) { return a <= b; }
bool ps_less_equal(UINT a, UINT b) { return a <= b; }

bool ps_greater(INT a, INT b) { return a > b; }
bool ps_greater(UINT a, UINT b) { return a > b; }

bool ps_greater_equal(INT a, INT b) { return a >= b; }
bool ps_greater_equal(UINT a, UINT b) { return a >= b; }

bool ps_isfinite(INT x) { return true; }
bool ps_isfinite(UINT x) { return true; }

bool ps_isinf(INT x) { return false; }
bool ps_isinf(UINT x) { return false; }

bool ps_isnan(INT x) { return false; }
bool ps_isnan(UINT x) { return false; }

bool ps_logical_not(INT x) { return x == INT(0); }
bool ps_logical_not(UINT x) { return x == UINT(0); }

bool ps_logical_and(INT a, INT b) { return a != INT(0) && b != INT(0); }
bool ps_logical_and(UINT a, UINT b) { return a != UINT(0) && b != UINT(0); }

bool ps_logical_or(INT a, INT b) { return (a | b) != INT(0); }
bool ps_logical_or(UINT a, UINT b) { return (a | b) != UINT(0); }

bool ps_logical_xor(INT a, INT b) { return (a != INT(0)) != (b != INT(0)); }
bool ps_logical_xor(UINT a, UINT b) { return (a != UINT(0)) != (b != UINT(0)); }
