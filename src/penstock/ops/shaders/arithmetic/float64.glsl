// double: bits, polynomials and constants, as float32.glsl has them for float. GLSL has no double
// versions of most functions, and drivers round some that it has wrongly.

// unpackDouble2x32 gives the low word first.

uint ps_high_word(double x) { return unpackDouble2x32(x).y & 0x7fffffffu; }

bool ps_isnan(double x) {
    uint high = ps_high_word(x);
    return high > 0x7ff00000u || high == 0x7ff00000u && unpackDouble2x32(x).x != 0u;
}

bool ps_isinf(double x) { return ps_high_word(x) == 0x7ff00000u && unpackDouble2x32(x).x == 0u; }

bool ps_isfinite(double x) { return ps_high_word(x) < 0x7ff00000u; }

bool ps_signbit(double x) { return unpackDouble2x32(x).y >= 0x80000000u; }

double ps_abs(double x) {
    uvec2 bits = unpackDouble2x32(x);
    return packDouble2x32(uvec2(bits.x, bits.y & 0x7fffffffu));
}

double ps_negative(double x) {
    uvec2 bits = unpackDouble2x32(x);
    return packDouble2x32(uvec2(bits.x, bits.y ^ 0x80000000u));
}

double ps_copysign(double x, double y) {
    uvec2 bits = unpackDouble2x32(x);
    uint sign = unpackDouble2x32(y).y & 0x80000000u;
    return packDouble2x32(uvec2(bits.x, (bits.y & 0x7fffffffu) | sign));
}

bool ps_bool(double x) { return (ps_high_word(x) | unpackDouble2x32(x).x) != 0u; }

// Whether a number is less, or the same but -0 where the other is +0.
bool ps_before(double a, double b) { return a < b || a == b && ps_signbit(a) && !ps_signbit(b); }

#define PS_NAN_double packDouble2x32(uvec2(0u, 0x7ff80000u))

#define PS_INFINITY_double packDouble2x32(uvec2(0u, 0x7ff00000u))

// The bits of neighbours are consecutive integers.
double ps_nextafter(double x, double y) {
    uvec2 bits = unpackDouble2x32(x);
    bool away = x < y == !ps_signbit(x);
    uint low = away ? bits.x + 1u : bits.x - 1u;
    uint high = away ? bits.y + (low == 0u ? 1u : 0u) : bits.y - (bits.x == 0u ? 1u : 0u);
    uvec2 least = uvec2(1u, unpackDouble2x32(y).y & 0x80000000u);
    double next = packDouble2x32(ps_bool(x) ? uvec2(low, high) : least);
    return ps_isnan(x) || ps_isnan(y) ? PS_NAN_double : x == y ? y : next;
}

// Adding 2^52 to a smaller number leaves no bits for a fraction; larger ones have none.
precise double ps_round(double x) {
    double a = ps_abs(x);
    double whole = a + 4503599627370496.0lf - 4503599627370496.0lf;
    return a < 4503599627370496.0lf ? ps_copysign(whole, x) : x;
}

precise double ps_floor(double x) {
    double whole = ps_round(x);
    return whole > x ? whole - 1.0lf : whole;
}

precise double ps_ceil(double x) {
    double whole = ps_round(x);
    return whole < x ? ps_copysign(whole + 1.0lf, x) : whole;
}

precise double ps_trunc(double x) {
    double whole = ps_round(x);
    return ps_abs(whole) > ps_abs(x) ? ps_copysign(ps_abs(whole) - 1.0lf, x) : whole;
}

// Casts.

int ps_int32(double x) { return int(x); }

uint ps_uint32(double x) { return x < 0.0lf ? uint(int(x)) : uint(x); }

float ps_float32(double x) { return float(x); }

double ps_float64(bool x) { return x ? 1.0lf : 0.0lf; }
double ps_float64(int x) { return double(x); }
double ps_float64(uint x) { return double(x); }
double ps_float64(float x) { return double(x); }
double ps_float64(double x) { return x; }

// What transcendental.glsl needs: as in float32.glsl, where the names are explained.

const double PS_PI_HIGH_double = 3.141592653589793lf;
const double PS_PI_LOW_double = 1.2246467991473532e-16lf;

const double PS_LOG2_E_double = 1.4426950408889634lf;

const double PS_LOG10_E_double = 0.43429448190325176lf;

const double PS_LN2_double = 0.6931471805599453lf;

const double PS_LN2_HIGH_double = 0.6931471805598903lf;
const double PS_LN2_LOW_double = 5.497923018708371e-14lf;

const double PS_LOG10_2_HIGH_double = 0.30102999566395283lf;
const double PS_LOG10_2_LOW_double = 2.8363394551044964e-14lf;

const double PS_LOG2_E_HIGH_double = 1.4426950216293335lf;
const double PS_LOG2_E_LOW_double = 1.9259629911266175e-08lf;

const double PS_LOG10_E_HIGH_double = 0.4342944771051407lf;
const double PS_LOG10_E_LOW_double = 4.798111141615973e-09lf;

const double PS_TWO_THIRDS_HIGH_double = 0.6666666666666666lf;
const double PS_TWO_THIRDS_LOW_double = 3.700743415417188e-17lf;

const double PS_EXP_MOST_double = 712.0lf;
const double PS_EXP_LEAST_double = -746.0lf;

const double PS_EXP2_MOST_double = 1030.0lf;
const double PS_EXP2_LEAST_double = -1080.0lf;

const double PS_POW_MOST_double = 18446744073709551616.0lf;

const double PS_VAST_double = 1152921504606846976.0lf;

const double PS_TINY_double = 2.7755575615628914e-17lf;

const double PS_SQUARE_MOST_double = 6.703903964971299e+153lf;
const double PS_SQUARE_LEAST_double = 3.4395525670743494e-136lf;
const double PS_SCALE_DOWN_double = 1.90109156629516e-211lf;
const double PS_ROOT_SCALE_DOWN_double = 4.3601508761683463e-106lf;
const double PS_LN_SCALE_double = 485.2030263919617lf;
const double PS_SCALE_UP_double = 5.260135901548374e+210lf;

precise double ps_nearest(double x) { return x + 6755399441055744.0lf - 6755399441055744.0lf; }

precise double ps_scaled(double x, int k) {
    int half_ = k >> 1;
    double most = packDouble2x32(uvec2(0u, uint(1023 + half_) << 20));
    double rest = packDouble2x32(uvec2(0u, uint(1023 + k - half_) << 20));
    return x * most * rest;
}

// The upper 26 bits of a number: rounded, so that the rest has 26 bits and a sign.
precise double ps_high(double x) {
    double wide = x * 134217729.0lf;
    return wide - (wide - x);
}

precise double ps_mantissa(double x) {
    uvec2 bits = unpackDouble2x32(x);
    uint high = (bits.y & 0xfffffu) | ((bits.y & 0x7ff00000u) == 0u ? 0u : 0x100000u);
    return double(high) * 4294967296.0lf + double(bits.x);
}
int ps_exponent(double x) { return max(int(ps_high_word(x) >> 20), 1) - 1075; }

precise dvec2 ps_log_parts(double x) {
    bool small = x < 2.2250738585072014e-308lf;
    uvec2 bits = unpackDouble2x32(small ? x * 18014398509481984.0lf : x);
    uint high = bits.y + 0x95f62u;
    double f = packDouble2x32(uvec2(bits.x, (high & 0xfffffu) + 0x3fe6a09eu)) - 1.0lf;
    return dvec2(f, double(int(high >> 20) - (small ? 1077 : 1023)));
}

precise double ps_exp_polynomial(double r) {
    return 0.500000000000001166lf + r * (0.166666666666663832lf + r * (0.0416666666665193287lf + r
        * (0.00833333333350905469lf + r * (0.00138888889468959132lf + r *
        (0.000198412694839693754lf + r * (0.0000248014893639794993lf + r *
        (2.75575986262348388e-6lf + r * (2.76316861602974656e-7lf + r *
        2.49986564487606078e-8lf))))))));
}

precise double ps_expm1_polynomial(double r) {
    return 0.166666666666666775lf + r * (0.0416666666666666922lf + r * (0.00833333333332075222lf +
        r * (0.00138888888888687091lf + r * (0.000198412698886815586lf + r *
        (0.0000248015873592017571lf + r * (2.75572413513332144e-6lf + r *
        (2.75572428263401773e-7lf + r * (2.51101204493820598e-8lf + r *
        2.09246311009134533e-9lf))))))));
}

precise double ps_exp2_polynomial(double f) {
    return 0.693147180559945309lf + f * (0.240226506959100715lf + f * (0.0555041086648216893lf + f
        * (0.00961812910762832652lf + f * (0.00133335581463921188lf + f *
        (0.000154035303936449886lf + f * (0.0000152527338549213599lf + f *
        (1.32154865924957564e-6lf + f * (1.01780516696434392e-7lf + f * (7.05497500236116336e-9lf
        + f * (4.45661456099719676e-10lf + f * 2.56251842057878213e-11lf))))))))));
}

precise double ps_log_polynomial(double z) {
    return 0.666666666666666609lf + z * (0.400000000000062866lf + z * (0.285714285690730754lf + z
        * (0.22222222648738275lf + z * (0.18181775509265637lf + z * (0.153870976257360959lf + z *
        (0.132499624691028797lf + z * 0.132527517016609084lf))))));
}

// 2·atanh(s) = 2·s + s·(2/3·z + z²·P(z)), without the first terms.
precise double ps_log_tail(double z) {
    return 0.399999999999999773lf + z * (0.285714285714452183lf + z * (0.22222222217510499lf + z *
        (0.181818188735041948lf + z * (0.153845566531083901lf + z * (0.133363258139378324lf + z *
        (0.116746478412929767lf + z * 0.119904366671082628lf))))));
}

precise double ps_sin_polynomial(double z) {
    return -0.166666666666666317lf + z * (0.00833333333332231518lf + z *
        (-0.000198412698297252499lf + z * (2.75573136620779637e-6lf + z *
        (-2.50507532679843251e-8lf + z * 1.58965051440277622e-10lf))));
}

precise double ps_cos_polynomial(double z) {
    return 0.041666666666666592lf + z * (-0.0013888888888872895lf + z *
        (0.0000248015872887481556lf + z * (-2.75573141486174392e-7lf + z *
        (2.0875696572077727e-9lf + z * -1.13583104763125477e-11lf))));
}

precise double ps_tan_polynomial(double z) {
    return 0.333333333333333855lf + z * (0.133333333333247533lf + z * (0.0539682539731996763lf + z
        * (0.0218694883917797914lf + z * (0.00886323803583194938lf + z * (0.00359209977704696048lf
        + z * (0.00145605287402010688lf + z * (0.000588830316416299771lf + z *
        (0.000243866047764807802lf + z * (0.0000832811849857989515lf + z *
        (0.0000677005741052218505lf + z * (-0.0000262078193495753367lf + z *
        (0.0000490909466199376184lf + z * (-0.0000244881978207997504lf + z *
        9.84442806857436436e-6lf)))))))))))));
}

precise double ps_asin_polynomial(double z) {
    return 0.16666666666666763lf + z * (0.0749999999997008736lf + z * (0.0446428571752959481lf + z
        * (0.030381942674852894lf + z * (0.022372215916622683lf + z * (0.0173515953292364771lf + z
        * (0.0139810203487289062lf + z * (0.0113972799240819456lf + z * (0.0107893862786093936lf +
        z * (0.00367196696196119598lf + z * (0.0217911184750067097lf + z *
        (-0.0211173125210420571lf + z * 0.0327024923328272355lf)))))))))));
}

precise double ps_atan_polynomial(double z) {
    return -0.333333333333331978lf + z * (0.199999999999536653lf + z * (-0.142857142802041919lf +
        z * (0.111111107838198584lf + z * (-0.0909089776717985941lf + z * (0.0769206036301549486lf
        + z * (-0.066631054661307118lf + z * (0.058478974550283795lf + z *
        (-0.0503933108454883917lf + z * (0.0380649611478986968lf + z *
        -0.0179073505700888685lf)))))))));
}

// The bits of 2/π, after 64 zeros.
const uint PS_TWO_OVER_PI[40] = uint[](
    0u, 0u, 0xa2f9836eu, 0x4e441529u, 0xfc2757d1u, 0xf534ddc0u, 0xdb629599u, 0x3c439041u,
    0xfe5163abu, 0xdebbc561u, 0xb7246e3au, 0x424dd2e0u, 0x06492eeau, 0x09d1921cu, 0xfe1deb1cu,
    0xb129a73eu, 0xe88235f5u, 0x2ebb4484u, 0xe99c7026u, 0xb45f7e41u, 0x3991d639u, 0x835339f4u,
    0x9c845f8bu, 0xbdf9283bu, 0x1ff897ffu, 0xde05980fu, 0xef2f118bu, 0x5a0a6d1fu, 0x6d367ecfu,
    0x27cb09b7u, 0x4f463f66u, 0x9e5fea2du, 0x7527bac7u, 0xebe5f17bu, 0x3d0739f7u, 0x8a5292eau,
    0x6bfb5fb1u, 0x1f8d5d08u, 0x56033046u, 0xfc7b6babu
);

// Seven words of them from a word on. Drivers copy an array before they index it by a variable, so
// it is halved with constant indices, until the wanted words are the first.
#define PS_PICK(k, size) t[k] = (word & size) != 0u ? t[k + size] : t[k];
#define PS_PICK_4(k, size) PS_PICK(k, size) PS_PICK(k + 1, size) PS_PICK(k + 2, size) PS_PICK(k + 3, size)
#define PS_PICK_8(k, size) PS_PICK_4(k, size) PS_PICK_4(k + 4, size)
uint[40] ps_two_over_pi(uint word) {
    uint t[40] = PS_TWO_OVER_PI;
    PS_PICK_8(0, 32)
    PS_PICK_8(0, 16) PS_PICK_8(8, 16) PS_PICK_8(16, 16)
    PS_PICK_8(0, 8) PS_PICK_8(8, 8)
    PS_PICK_8(0, 4) PS_PICK_4(8, 4)
    PS_PICK_8(0, 2)
    PS_PICK_8(0, 1)
    return t;
}

// The sum of four words, and of what a sum of lower words carried; the carry is the second word.
uvec2 ps_sum_of_words(uint a, uint b, uint c, uint d, uint carry) {
    uint s = a + b;
    uint over = s < a ? 1u : 0u;
    s += c;
    over += s < c ? 1u : 0u;
    s += d;
    over += s < d ? 1u : 0u;
    s += carry;
    over += s < carry ? 1u : 0u;
    return uvec2(s, over);
}

// As for float, with 192 bits of 2/π, of whose product with x the upper 128 bits are used.
precise dvec2 ps_quarter_turns(double x) {
    uvec2 bits = unpackDouble2x32(x);
    uint mh = (bits.y & 0xfffffu) | 0x100000u, ml = bits.x;
    uint start = clamp((bits.y >> 20 & 0x7ffu) - 1013u, 0u, 1033u);
    uint word = start >> 5, shift = start & 31u, rest = 31u - shift;
    uint[40] t = ps_two_over_pi(word);
    uint v5 = t[0] << shift | t[1] >> 1 >> rest, v4 = t[1] << shift | t[2] >> 1 >> rest;
    uint v3 = t[2] << shift | t[3] >> 1 >> rest, v2 = t[3] << shift | t[4] >> 1 >> rest;
    uint v1 = t[4] << shift | t[5] >> 1 >> rest, v0 = t[5] << shift | t[6] >> 1 >> rest;
    uint a1, a2, a3, a4, b0, b1, b2, b3, c1, c2, c3, c4, d0, d1, d2, d3;
    umulExtended(ml, v1, a1, c1);
    umulExtended(ml, v2, a2, c2);
    umulExtended(ml, v3, a3, c3);
    umulExtended(ml, v4, a4, c4);
    umulExtended(mh, v0, b0, d0);
    umulExtended(mh, v1, b1, d1);
    umulExtended(mh, v2, b2, d2);
    umulExtended(mh, v3, b3, d3);
    uvec2 r2 = ps_sum_of_words(c2, a1, d1, b0, 0u);
    uvec2 r3 = ps_sum_of_words(c3, a2, d2, b1, r2.y);
    uvec2 r4 = ps_sum_of_words(c4, a3, d3, b2, r3.y);
    uint r5 = ml * v5 + a4 + mh * v4 + b3 + r4.y;
    double turns = double((r5 >> 30) + (r5 >> 29 & 1u) & 3u);
    // The fraction of a quarter turn is signed, as seen from the nearest; its bits are those of its
    // absolute value, but for one in the last place.
    uint sign = (r5 & 0x20000000u) != 0u ? ~0u : 0u;
    double high = double((r5 << 2 | r4.x >> 30) ^ sign) * 4294967296.0lf;
    double low = double((r4.x << 2 | r3.x >> 30) ^ sign) + (double((r3.x << 2 | r2.x >> 30) ^ sign) +
        double(r2.x << 2 ^ sign) * 2.3283064365386962890625e-10lf) * 2.3283064365386962890625e-10lf;
    double f = high + low;
    double more = low - (f - high);
    double g = ps_high(f);
    double r = g * 8.51530386405888e-20lf + ((f - g) * 8.51530386405888e-20lf + (f * 8.615750676662442e-28lf + more * 8.515303950216386e-20lf));
    return dvec2(sign == 0u ? r : ps_negative(r), turns);
}
