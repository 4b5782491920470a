// Elements of an array at any offset and stride, loaded as raw bits, for axes.comp and scan.comp.
//
// The array is bound in units of 16 bytes, from an aligned start before it. `last` is the last
// unit that may be read. Elements start at multiples of their own size.
//
//   TEXELS   read units as texels, which is several times as fast on lavapipe

layout(constant_id = 1) const int SOURCE = 11;      // the dtype's code, in the order of elements.py
layout(constant_id = 2) const int SIZE = 4;         // bytes of an element
layout(constant_id = 3) const bool ALIGNED = false; // four elements start at a multiple of 4 * SIZE

#define IS_BOOL (SOURCE == 0)
#define IS_SIGNED (SOURCE == 1 || SOURCE == 3 || SOURCE == 5 || SOURCE == 7)
#define IS_HALF (SOURCE == 9)
#define IS_BFLOAT (SOURCE == 10)
#define IS_FLOAT (SOURCE >= 9 && SOURCE <= 12)
#define IS_COMPLEX (SOURCE >= 13)
#define IS_WIDE (SOURCE == 7 || SOURCE == 8)

#ifdef TEXELS
layout(binding = 0) uniform usamplerBuffer x;
#define UNIT(unit) texelFetch(x, int(unit))
#else
// A struct member has no dtype in reflection, so arrays of any dtype can be bound.
struct Unit { uvec4 bits; };
layout(binding = 0) readonly buffer X { Unit x[]; };
#define UNIT(unit) x[unit].bits
#endif

uint word_of(uvec4 unit, uint at) {
    uint k = at & 3u;
    return k < 2u ? (k == 0u ? unit.x : unit.y) : (k == 2u ? unit.z : unit.w);
}

// The bits of the element at a byte; those of a small one are the low bits, with others above them.
uvec4 raw_at(uint byte) {
    uvec4 unit = UNIT(byte >> 4);
    if (SIZE == 16) return unit;
    if (SIZE == 8) return uvec4((byte & 8u) != 0u ? unit.zw : unit.xy, 0u, 0u);
    return uvec4(word_of(unit, byte >> 2) >> ((byte & 3u) * 8u), 0u, 0u, 0u);
}

// Four words from any word on.
uvec4 words_at(uint word, uint last) {
    uvec4 low = UNIT(word >> 2);
    if (ALIGNED) return low;
    uvec4 high = UNIT(min((word >> 2) + 1u, last));
    uint k = word & 3u;
    if (k == 0u) return low;
    if (k == 1u) return uvec4(low.yzw, high.x);
    if (k == 2u) return uvec4(low.zw, high.xy);
    return uvec4(low.w, high.xyz);
}

// Four elements side by side, as `raw_at` gives each.
struct Four { uvec4 a, b, c, d; };

Four four_at(uint byte, uint last) {
    uint word = byte >> 2;
    if (SIZE == 16) {
        uint unit = byte >> 4;
        return Four(UNIT(unit), UNIT(min(unit + 1u, last)), UNIT(min(unit + 2u, last)),
                    UNIT(min(unit + 3u, last)));
    }
    if (SIZE == 8) {
        uvec4 low = words_at(word, last), high = words_at(min(word + 4u, 4u * last + 3u), last);
        return Four(uvec4(low.xy, 0u, 0u), uvec4(low.zw, 0u, 0u), uvec4(high.xy, 0u, 0u),
                    uvec4(high.zw, 0u, 0u));
    }
    if (SIZE == 4) {
        uvec4 four = words_at(word, last);
        return Four(uvec4(four.x, 0u, 0u, 0u), uvec4(four.y, 0u, 0u, 0u),
                    uvec4(four.z, 0u, 0u, 0u), uvec4(four.w, 0u, 0u, 0u));
    }
    if (SIZE == 2) {
        uvec2 two;
        if (ALIGNED) {
            uvec4 unit = UNIT(byte >> 4);
            two = (byte & 8u) != 0u ? unit.zw : unit.xy;
        } else {
            uvec4 four = words_at(word, last);
            two = (byte & 2u) == 0u ? four.xy
                                    : uvec2(four.x >> 16 | four.y << 16, four.y >> 16 | four.z << 16);
        }
        return Four(uvec4(two.x, 0u, 0u, 0u), uvec4(two.x >> 16, 0u, 0u, 0u),
                    uvec4(two.y, 0u, 0u, 0u), uvec4(two.y >> 16, 0u, 0u, 0u));
    }
    uint one;
    if (ALIGNED) {
        one = word_of(UNIT(byte >> 4), word);
    } else {
        uvec4 four = words_at(word, last);
        uint shift = (byte & 3u) * 8u;
        one = shift == 0u ? four.x : four.x >> shift | four.y << (32u - shift);
    }
    return Four(uvec4(one, 0u, 0u, 0u), uvec4(one >> 8, 0u, 0u, 0u), uvec4(one >> 16, 0u, 0u, 0u),
                uvec4(one >> 24, 0u, 0u, 0u));
}

// The low bits of a small element alone, with its sign for a signed integer.
int signed_of(uint bits) { return SIZE == 4 ? int(bits) : bitfieldExtract(int(bits), 0, 8 * SIZE); }
uint unsigned_of(uint bits) { return SIZE >= 4 ? bits : bitfieldExtract(bits, 0, 8 * SIZE); }

float float_of(uint bits) {
    if (IS_HALF) return unpackHalf2x16(bits & 0xFFFFu).x;
    if (IS_BFLOAT) return uintBitsToFloat(bits << 16);
    return uintBitsToFloat(bits);
}

// To the nearest float16, ties to even, by the bits: GLSL leaves the rounding of its own to drivers.
uint half_of(float number) {
    uint bits = floatBitsToUint(number), sign = bits >> 16 & 0x8000u, size = bits & 0x7FFFFFFFu;
    if (size > 0x7F800000u) return sign | 0x7E00u;
    if (size >= 0x47800000u) return sign | 0x7C00u;
    if (size < 0x38800000u) {  // subnormal: a multiple of 2^-24
        uint shift = min(126u - (size >> 23), 31u), whole = (size & 0x7FFFFFu) | 0x800000u;
        uint kept = whole >> shift, lost = whole & ((1u << shift) - 1u), tie = 1u << (shift - 1u);
        if (shift > 25u) return sign;
        return sign | (kept + uint(lost > tie || (lost == tie && (kept & 1u) != 0u)));
    }
    uint rounded = size + 0xFFFu + (size >> 13 & 1u);
    return sign | ((rounded - 0x38000000u) >> 13);
}

uint bfloat_of(float number) {
    uint bits = floatBitsToUint(number);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return bits >> 16 | 0x40u;
    return (bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16;
}
