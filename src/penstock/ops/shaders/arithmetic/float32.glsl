// float: bits, polynomials and constants. `real.glsl` and `transcendental.glsl` build on them.
//
// NaN, infinities and signs are tested by their bits: drivers drop them from GLSL's own functions.

bool ps_isnan(float x) { return (floatBitsToUint(x) & 0x7fffffffu) > 0x7f800000u; }

bool ps_isinf(float x) { return (floatBitsToUint(x) & 0x7fffffffu) == 0x7f800000u; }

bool ps_isfinite(float x) { return (floatBitsToUint(x) & 0x7fffffffu) < 0x7f800000u; }

bool ps_signbit(float x) { return floatBitsToUint(x) >= 0x80000000u; }

float ps_abs(float x) { return uintBitsToFloat(floatBitsToUint(x) & 0x7fffffffu); }

float ps_negative(float x) { return uintBitsToFloat(floatBitsToUint(x) ^ 0x80000000u); }

float ps_copysign(float x, float y) {
    return uintBitsToFloat((floatBitsToUint(x) & 0x7fffffffu) | (floatBitsToUint(y) & 0x80000000u));
}

#define PS_NAN_float uintBitsToFloat(0x7fc00000u)

#define PS_INFINITY_float uintBitsToFloat(0x7f800000u)

// An integer whose order is that of the numbers, -0 before +0; NaN is beyond the infinities.
int ps_order(float x) {
    int bits = floatBitsToInt(x);
    return bits < 0 ? bits ^ 0x7fffffff : bits;
}

// Whether a number is less, or the same but -0 where the other is +0. Subnormal numbers count, also
// on a device that flushes them to zero when it computes.
bool ps_before(float a, float b) { return ps_order(a) < ps_order(b); }

// The neighbours of a number differ by one in the order, but for the two zeros, which are equal.
float ps_nextafter(float x, float y) {
    if (ps_isnan(x) || ps_isnan(y)) return PS_NAN_float;
    int from = ps_order(x), to = ps_order(y);
    from = from < 0 ? from + 1 : from;
    to = to < 0 ? to + 1 : to;
    int next = from < to ? from + 1 : from - 1;
    uint bits = next < 0 ? uint(0 - next) | 0x80000000u : uint(next);
    // Down from the smallest positive number is +0, up from the largest negative one is -0.
    bits |= next == 0 && from < 0 ? 0x80000000u : 0u;
    return from == to ? y : uintBitsToFloat(bits);
}

float ps_floor(float x) { return floor(x); }

float ps_ceil(float x) { return ceil(x); }

float ps_trunc(float x) { return trunc(x); }

float ps_round(float x) { return roundEven(x); }

// Casts.

bool ps_bool(float x) { return (floatBitsToUint(x) & 0x7fffffffu) != 0u; }

int ps_int32(float x) { return int(x); }

uint ps_uint32(float x) { return x < 0.0 ? uint(int(x)) : uint(x); }

// SwiftShader rounds a uint wrongly: both of its halves are exact, and only the sum rounds.
float ps_float32(bool x) { return x ? 1.0 : 0.0; }
float ps_float32(int x) { return float(x); }
precise float ps_float32(uint x) { return float(int(x >> 16)) * 65536.0 + float(int(x & 0xffffu)); }
float ps_float32(float x) { return x; }

// What transcendental.glsl needs.

const float PS_PI_HIGH_float = 3.14159274;
const float PS_PI_LOW_float = -8.74227766e-8;

const float PS_LOG2_E_float = 1.44269502;

const float PS_LOG10_E_float = 0.43429448190325176;

const float PS_LN2_float = 0.693147182;

// ln 2 and log10 2, of which the high parts have so few bits that products with exponents are exact.
const float PS_LN2_HIGH_float = 0.693359375;
const float PS_LN2_LOW_float = -2.12194442e-4;

const float PS_LOG10_2_HIGH_float = 0.301025390625;
const float PS_LOG10_2_LOW_float = 4.60503907e-6;

// 1 / ln 2 and 1 / ln 10, of which the high parts have 12 bits.
const float PS_LOG2_E_HIGH_float = 1.44238281;
const float PS_LOG2_E_LOW_float = 3.12228408e-4;

const float PS_LOG10_E_HIGH_float = 0.434204102;
const float PS_LOG10_E_LOW_float = 9.03803369e-5;

// Beyond these exp overflows, or is zero.
const float PS_EXP_MOST_float = 90.0;
const float PS_EXP_LEAST_float = -104.0;

const float PS_EXP2_MOST_float = 130.0;
const float PS_EXP2_LEAST_float = -152.0;

const float PS_POW_MOST_float = 4294967296.0;

// One is lost when it is added to the vast, and the square of the tiny when it is added to it.
const float PS_VAST_float = 1073741824.0;

const float PS_TINY_float = 2.98023224e-8;

// Squares beyond these may overflow or lose bits to underflow.
const float PS_SQUARE_MOST_float = 9.2233720e18;
const float PS_SQUARE_LEAST_float = 8.8817842e-16;
const float PS_SCALE_DOWN_float = 1.2621774483536189e-29;
const float PS_ROOT_SCALE_DOWN_float = 3.552713678800501e-15;
const float PS_LN_SCALE_float = 66.54212933375474;
const float PS_SCALE_UP_float = 7.9228162514264338e28;

// The nearest integer, for numbers below 2²²: adding 1.5·2²³ leaves no bits for a fraction.
precise float ps_nearest(float x) { return x + 12582912.0 - 12582912.0; }

// x·2^k in two steps, since 2^k itself may overflow; rounds at most once if x is near 1.
precise float ps_scaled(float x, int k) {
    int half_ = k >> 1;
    float most = uintBitsToFloat(uint(127 + half_) << 23);
    float rest = uintBitsToFloat(uint(127 + k - half_) << 23);
    return x * most * rest;
}

// The upper 12 bits of a number.
float ps_high(float x) { return uintBitsToFloat(floatBitsToUint(x) & 0xfffff000u); }

// A number as an integer times a power of two.
float ps_mantissa(float x) {
    uint bits = floatBitsToUint(x);
    return float((bits & 0x7fffffu) | ((bits & 0x7f800000u) == 0u ? 0u : 0x800000u));
}
int ps_exponent(float x) { return max(int(floatBitsToUint(x) >> 23 & 0xffu), 1) - 150; }

// x = (1 + f)·2^k with 1 + f between √½ and √2: f and k.
precise vec2 ps_log_parts(float x) {
    bool small = x < 1.17549435e-38;
    uint bits = floatBitsToUint(small ? x * 8388608.0 : x) + 0x004afb0du;
    float f = uintBitsToFloat((bits & 0x7fffffu) + 0x3f3504f3u) - 1.0;
    return vec2(f, float(int(bits >> 23) - (small ? 150 : 127)));
}

// exp(r) = 1 + r + r²·P(r) for |r| up to ln 2 / 2.
precise float ps_exp_polynomial(float r) {
    return 0.4999999305 + r * (0.1666651479 + r * (0.04166845681 + r * (0.008369419321 +
        r * 0.00138131457)));
}

// expm1(r) = r + r²/2 + r³·P(r) there.
precise float ps_expm1_polynomial(float r) {
    return 0.1666666678 + r * (0.04166647456 + r * (0.008333280092 + r * (0.001393420138 +
        r * 0.0001991105542)));
}

// 2^f = 1 + f·P(f) for |f| up to a half.
precise float ps_exp2_polynomial(float f) {
    return 0.6931471807 + f * (0.2402265107 + f * (0.0555041036 + f * (0.009618037406 +
        f * (0.001333393786 + f * (0.0001546700853 + f * 1.519597715e-5)))));
}

// 2·atanh(s) = 2·s + s·z·P(z) with z = s², for 1 + f = (1 + s) / (1 - s) as above.
precise float ps_log_polynomial(float z) {
    return 0.6666666564 + z * (0.4000033623 + z * (0.2853723778 + z * 0.2358357899));
}

// sin(r) = r + r·z·P(z) and cos(r) = 1 - z/2 + z²·P(z) with z = r², for |r| up to π/4.
precise float ps_sin_polynomial(float z) {
    return -0.1666665487 + z * (0.008332173529 + z * -0.000195166542);
}

precise float ps_cos_polynomial(float z) {
    return 0.04166664556 + z * (-0.001388731 + z * 2.443242886e-5);
}

// tan(r) = r + r·z·P(z) there.
precise float ps_tan_polynomial(float z) {
    return 0.3333335174 + z * (0.1333259949 + z * (0.05406674919 + z * (0.02124860474 +
        z * (0.01091919105 + z * (-1.2222853e-5 + z * 0.004424805459)))));
}

// asin(x) = x + x·z·P(z) with z = x², for |x| up to a half.
precise float ps_asin_polynomial(float z) {
    return 0.1666675268 + z * (0.07495288721 + z * (0.04547160738 + z * (0.02417293245 +
        z * 0.04217828121)));
}

// atan(x) = x + x·z·P(z) with z = x², for |x| up to tan(π/8).
precise float ps_atan_polynomial(float z) {
    return -0.3333331542 + z * (0.1999848401 + z * (-0.1424373885 + z * (0.1059513965 +
        z * -0.06081154668)));
}

// The nearest quarter turn (modulo four) of an angle of at least π/4, and the angle from there.
//
// x is m·2^p with an integer m, and 2/π a string of bits. Those that stand for multiples of four
// when multiplied by 2^p are left out, 96 bits follow, and their product with m (modulo 2^96) has
// the quarter turns in its upper two bits and then the fraction of one, 62 bits of which are used.
precise vec2 ps_quarter_turns(float x) {
    uint bits = floatBitsToUint(x);
    uint m = (bits & 0x7fffffu) | 0x800000u;
    uint start = (bits >> 23 & 0xffu) - 120u;  // from 0 for π/4 on: the bits of 2/π begin at 32
    uint word = start >> 5, shift = start & 31u;
    bool a = word == 1u, b = word == 2u, c = word == 3u, d = word == 4u;
    uint t0 = d ? 0xf534ddc0u : c ? 0xfc2757d1u : b ? 0x4e441529u : a ? 0xa2f9836eu : 0u;
    uint t1 = d ? 0xdb629599u : c ? 0xf534ddc0u : b ? 0xfc2757d1u : a ? 0x4e441529u : 0xa2f9836eu;
    uint t2 = d ? 0x3c439041u : c ? 0xdb629599u : b ? 0xf534ddc0u : a ? 0xfc2757d1u : 0x4e441529u;
    uint t3 = d ? 0xfe5163abu : c ? 0x3c439041u : b ? 0xdb629599u : a ? 0xf534ddc0u : 0xfc2757d1u;
    uint rest = 31u - shift;
    uint w0 = t0 << shift | t1 >> 1 >> rest;
    uint w1 = t1 << shift | t2 >> 1 >> rest;
    uint w2 = t2 << shift | t3 >> 1 >> rest;
    uint high, low, carried, unused;
    umulExtended(m, w1, high, low);
    umulExtended(m, w2, carried, unused);
    low += carried;
    high += m * w0 + (low < carried ? 1u : 0u);
    float turns = float((high >> 30) + (high >> 29 & 1u) & 3u);
    // The fraction of a quarter turn is signed, as seen from the nearest; its bits are those of its
    // absolute value, but for one in the last place. Its upper 24 bits and 32 more, times π/2 in two
    // parts, are rounded about once.
    uint sign = (high & 0x20000000u) != 0u ? ~0u : 0u;
    uint upper = (high << 2 | low >> 30) ^ sign, lower = low << 2 ^ sign;
    float f = float(int(upper & ~0xffu));
    float extra = float(int(upper & 0xffu)) + float(int(lower >> 8)) * 5.9604644775390625e-8;
    float g = ps_high(f);
    float r = g * 3.6561687011271715e-10 + ((f - g) * 3.6561687011271715e-10 + (f * 1.1264970347594355e-13 + extra * 3.657295198e-10));
    return vec2(sign == 0u ? r : ps_negative(r), turns);
}
