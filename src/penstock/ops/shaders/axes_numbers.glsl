// What sums and products compute in, for axes.comp and scan.comp.
//
//   NUMBER   FLOAT, DOUBLE, COMPLEX (two floats), DCOMPLEX (two doubles) or WHOLE (64-bit integers,
//            as two words, so that no device needs a feature for them)

#define FLOAT 0
#define DOUBLE 1
#define COMPLEX 2
#define DCOMPLEX 3
#define WHOLE 4

layout(constant_id = 4) const int OUT = 11;  // the dtype's code of what is stored

#if NUMBER == FLOAT || NUMBER == COMPLEX
#define Real float
#elif NUMBER == DOUBLE || NUMBER == DCOMPLEX
#define Real double
#endif

#if NUMBER == WHOLE
#define Number uvec2

Number number_of(uvec4 raw) {
    if (IS_WIDE) return raw.xy;
    if (IS_BOOL) return uvec2((raw.x & 0xFFu) != 0u ? 1u : 0u, 0u);
    if (IS_SIGNED) {
        int value = signed_of(raw.x);
        return uvec2(value, value < 0 ? ~0u : 0u);
    }
    return uvec2(unsigned_of(raw.x), 0u);
}
Number plus(Number a, Number b) {
    uint low = a.x + b.x;
    return uvec2(low, a.y + b.y + uint(low < a.x));
}
Number times(Number a, Number b) {
    uint high, low;
    umulExtended(a.x, b.x, high, low);
    return uvec2(low, high + a.x * b.y + a.y * b.x);
}
#define NOTHING uvec2(0u)
#define ONE uvec2(1u, 0u)
uvec4 stored(Number a) {
    if (OUT == 0) return uvec4((a.x | a.y) != 0u ? 1u : 0u, 0u, 0u, 0u);
    return uvec4(a, 0u, 0u);
}

#else

Real real_of(uvec4 raw) {
    if (IS_BOOL) return Real((raw.x & 0xFFu) != 0u ? 1 : 0);
    if (SOURCE == 7 || SOURCE == 8) {
        // By magnitude: as floats, the words of a small negative number would cancel out.
        bool negative = SOURCE == 7 && int(raw.y) < 0;
        uvec2 size = negative ? uvec2(-raw.x, ~raw.y + uint(raw.x == 0u)) : raw.xy;
        Real value = Real(size.y) * Real(4294967296.0) + Real(size.x);
        return negative ? -value : value;
    }
    if (IS_SIGNED) return Real(signed_of(raw.x));
#if NUMBER == DOUBLE || NUMBER == DCOMPLEX
    if (SOURCE == 12) return packDouble2x32(raw.xy);
#endif
    if (IS_FLOAT) return Real(float_of(raw.x));
    return Real(unsigned_of(raw.x));
}

#if NUMBER == FLOAT || NUMBER == DOUBLE
#define Number Real
Number number_of(uvec4 raw) { return real_of(raw); }
Number times(Number a, Number b) {
    precise Number product = a * b;
    return product;
}
#define ONE Number(1)
#else
#if NUMBER == COMPLEX
#define Number vec2
#else
#define Number dvec2
#endif
Number number_of(uvec4 raw) {
    if (SOURCE == 13) return Number(uintBitsToFloat(raw.xy));
#if NUMBER == DCOMPLEX
    if (SOURCE == 14) return dvec2(packDouble2x32(raw.xy), packDouble2x32(raw.zw));
#endif
    return Number(real_of(raw), 0);
}
Number times(Number a, Number b) {
    precise Real real = a.x * b.x - a.y * b.y, imaginary = a.x * b.y + a.y * b.x;
    return Number(real, imaginary);
}
#define ONE Number(1, 0)
#endif

#define NOTHING Number(0)
Number plus(Number a, Number b) {
    precise Number sum = a + b;
    return sum;
}

uvec4 stored(Number a) {
#if NUMBER == FLOAT || NUMBER == COMPLEX
#if NUMBER == FLOAT
    float real = a;
#else
    float real = a.x;
    if (OUT == 13) return uvec4(floatBitsToUint(a), 0u, 0u);
#endif
    if (OUT == 9) return uvec4(half_of(real), 0u, 0u, 0u);
    if (OUT == 10) return uvec4(bfloat_of(real), 0u, 0u, 0u);
    return uvec4(floatBitsToUint(real), 0u, 0u, 0u);
#elif NUMBER == DOUBLE
    return uvec4(unpackDouble2x32(a), 0u, 0u);
#else
    if (OUT == 14) return uvec4(unpackDouble2x32(a.x), unpackDouble2x32(a.y));
    return uvec4(unpackDouble2x32(a.x), 0u, 0u);
#endif
}
#endif
