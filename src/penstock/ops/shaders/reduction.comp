// Reduces `count` elements to at most PARTS values, which the host folds when it reads the result.
//
// Elements are read as whole words and unpacked here, so that no 8-, 16- or 64-bit feature is
// needed; only the sum of float64 needs one. Each group takes a span of consecutive elements, over
// which its invocations stride. With TREE, the invocations of a group then combine their values in
// shared memory, and the group writes one part; without, each invocation writes its own.
//
//   BITS   size of an element: 8, 16, 32 or 64
//   KIND   what its bits mean: FLOAT, SIGNED or UNSIGNED
//   FOLD   the value of an element, and how two values are combined:
//            SUM        the number (with PRODUCT: times that of y), added; integers in 64 bits
//            WIDE_SUM   an integer of 64 bits as its two words, each added in 64 bits
//            LARGEST    a key whose order as an unsigned integer is that of the numbers, NaN last;
//                       with SMALLEST, the opposite order, but for NaN
//            WHERE      such a key and the index of the element; the first of equals wins
//            ANY, ALL   1 if the element is true, or false, and the larger of two
//
// With TEXELS, x is a texel buffer of rgba32ui, from which drivers for CPUs load faster, and an
// invocation takes the elements of 16 bytes at a time.

#define FLOAT 0
#define SIGNED 1
#define UNSIGNED 2
#define SUM 0
#define WIDE_SUM 1
#define LARGEST 2
#define WHERE 3
#define ANY 4
#define ALL 5

layout(local_size_x_id = 0) in;

#if BITS == 64
#define Bits uvec2
#else
#define Bits uint
#endif

// A struct member has no dtype in reflection, so arrays of any dtype can be bound.
struct Element { Bits bits; };
#ifdef TEXELS
layout(binding = 0) uniform usamplerBuffer x;
#else
layout(binding = 0) readonly buffer X { Element x[]; };
#endif
#ifdef PRODUCT
layout(binding = 1) readonly buffer Y { Element y[]; };
#endif

layout(push_constant) uniform Range {
    uint count;
    uint first;    // the index of the first element, from where x is bound
#ifdef PRODUCT
    uint first_y;
#endif
};

#if BITS == 8
#define FETCH(array, at) bitfieldExtract(array[(at) / 4].bits, int((at) % 4) * 8, 8)
#elif BITS == 16
#define FETCH(array, at) bitfieldExtract(array[(at) / 2].bits, int((at) % 2) * 16, 16)
#else
#define FETCH(array, at) array[at].bits
#endif

// Numbers, only where they are added: even an unused double requires the device feature.

#if FOLD == SUM || FOLD == WIDE_SUM
#if KIND == FLOAT
#if BITS == 64
#define Number double
double number(Bits bits) { return packDouble2x32(bits); }
#else
#define Number float
float number(Bits bits) { return BITS == 16 ? unpackHalf2x16(bits).x : uintBitsToFloat(bits); }
#endif
Number plus(Number a, Number b) { return a + b; }
Number times(Number a, Number b) { return a * b; }
#else
#define Number uvec2
#if BITS == 64
uvec2 number(Bits bits) { return bits; }
#elif KIND == SIGNED
uvec2 number(Bits bits) {
    int value = bitfieldExtract(int(bits), 0, BITS);
    return uvec2(value, value < 0 ? ~0u : 0u);
}
#else
uvec2 number(Bits bits) { return uvec2(bits, 0); }
#endif
uvec2 plus(uvec2 a, uvec2 b) {
    uint low = a.x + b.x;
    return uvec2(low, a.y + b.y + uint(low < a.x));
}
uvec2 times(uvec2 a, uvec2 b) {
    uint high, low;
    umulExtended(a.x, b.x, high, low);
    return uvec2(low, high + a.x * b.y + a.y * b.x);
}
#endif
#endif

// Keys.

#define SIGN_BIT (1u << ((BITS - 1) % 32))
#define ALL_BITS (SIGN_BIT | (SIGN_BIT - 1u))
#define INFINITY (BITS == 16 ? 0x7C00u : BITS == 32 ? 0x7F800000u : 0x7FF00000u)

#if BITS == 64
#define HIGH(bits) bits.y
#define Key uvec2
bool greater(Key a, Key b) { return a.y > b.y || (a.y == b.y && a.x > b.x); }
Key flipped(Bits bits) { return ~bits; }
bool is_nan(Bits bits) {
    uint high = bits.y & ~SIGN_BIT;
    return high > INFINITY || (high == INFINITY && bits.x != 0);
}
bool is_zero(Bits bits) { return (bits.x | (KIND == FLOAT ? bits.y & ~SIGN_BIT : bits.y)) == 0; }
#define LAST uvec2(~0u)
#else
#define HIGH(bits) bits
#define Key uint
bool greater(Key a, Key b) { return a > b; }
Key flipped(Bits bits) { return bits ^ ALL_BITS; }
bool is_nan(Bits bits) { return (bits & ~SIGN_BIT) > INFINITY; }
bool is_zero(Bits bits) { return (KIND == FLOAT ? bits & ~SIGN_BIT : bits) == 0; }
#define LAST ALL_BITS
#endif

Key key(Bits bits) {
    Key made = bits;
    if (KIND == FLOAT) {
        // 0.0 and -0.0 compare equal, but have different bits.
        if (FOLD == WHERE && is_zero(made)) made = Key(0);
        if ((HIGH(made) & SIGN_BIT) != 0) made = flipped(made);
        else HIGH(made) |= SIGN_BIT;
    } else if (KIND == SIGNED) {
        HIGH(made) ^= SIGN_BIT;
    }
#ifdef SMALLEST
    made = flipped(made);
#endif
    return KIND == FLOAT && is_nan(bits) ? LAST : made;
}

// Parts: the value of one element, and how two are combined.

#if FOLD == SUM
#define Part Number
#define NOTHING Part(0)
#ifdef PRODUCT
Part part(uint i, Bits bits) { return times(number(bits), number(FETCH(y, first_y + i))); }
#else
Part part(uint i, Bits bits) { return number(bits); }
#endif
Part join(Part a, Part b) { return plus(a, b); }

#elif FOLD == WIDE_SUM
#define Part uvec4
#define NOTHING Part(0)
Part part(uint i, Bits bits) {
    bool negative = KIND == SIGNED && int(HIGH(bits)) < 0;
    return uvec4(bits.x, 0, bits.y, negative ? ~0u : 0u);
}
Part join(Part a, Part b) { return Part(plus(a.xy, b.xy), plus(a.zw, b.zw)); }

#elif FOLD == LARGEST
#define Part Key
#define NOTHING Part(0)
Part part(uint i, Bits bits) { return key(bits); }
Part join(Part a, Part b) { return greater(b, a) ? b : a; }

#elif FOLD == WHERE
#if BITS == 64
#define Part uvec4
#define KEY_OF(part) part.xy
#define INDEX_OF(part) part.z
#define NOTHING Part(0, 0, ~0u, 0)
Part part(uint i, Bits bits) { return Part(key(bits), i, 0); }
#else
#define Part uvec2
#define KEY_OF(part) part.x
#define INDEX_OF(part) part.y
#define NOTHING Part(0, ~0u)
Part part(uint i, Bits bits) { return Part(key(bits), i); }
#endif
Part join(Part a, Part b) {
    bool same = KEY_OF(a) == KEY_OF(b);
    bool later = same ? INDEX_OF(b) < INDEX_OF(a) : greater(KEY_OF(b), KEY_OF(a));
    return later ? b : a;
}

#else
#define Part uint
#define NOTHING 0u
Part part(uint i, Bits bits) { return uint(is_zero(bits) == (FOLD == ALL)); }
Part join(Part a, Part b) { return a | b; }
#endif

layout(binding = 2) writeonly buffer Result {
    uint used;      // the number of valid parts
    uint elements;
    Part parts[PARTS];
};

// The value of the unit at `at`: one element, or those of a texel.
#ifdef TEXELS
#define UNIT_ELEMENTS (128u / BITS)
Part unit_at(uint at) {
    uvec4 words = texelFetch(x, int(at));
    Part made = NOTHING;
    for (uint k = 0; k < UNIT_ELEMENTS; ++k) {
#if BITS == 64
        Bits bits = k == 0 ? words.xy : words.zw;
#elif BITS == 32
        Bits bits = words[k];
#else
        Bits bits = bitfieldExtract(words[k * BITS / 32], int(k * BITS) % 32, BITS);
#endif
        uint i = at * UNIT_ELEMENTS + k - first;  // wraps around in front of the first
        Part next = part(i, bits);
        made = join(made, i < count ? next : NOTHING);
    }
    return made;
}
#else
#define UNIT_ELEMENTS 1u
Part unit_at(uint at) { return part(at - first, FETCH(x, at)); }
#endif

#ifdef TREE
shared Part joined[gl_WorkGroupSize.x];
#endif

void main() {
    uint size = gl_WorkGroupSize.x, lane = gl_LocalInvocationID.x;
    uint begin = first / UNIT_ELEMENTS;
    uint units = count == 0 ? 0 : (first + count - 1) / UNIT_ELEMENTS + 1 - begin;
    uint span = (units - 1) / gl_NumWorkGroups.x + 1;
    uint at = begin + gl_WorkGroupID.x * span + lane;
    uint end = begin + min((gl_WorkGroupID.x + 1) * span, units);
    Part total = NOTHING;
    while (at < end) {
        // In blocks, so that rounding errors do not grow with the number of elements.
        Part block = NOTHING;
        for (uint k = 0; k < BLOCK / UNIT_ELEMENTS && at < end; ++k, at += size) block = join(block, unit_at(at));
        total = join(total, block);
    }
    uint number_of_parts = gl_NumWorkGroups.x;
#ifdef TREE
    joined[lane] = total;
    barrier();
    for (uint half_size = size / 2; half_size > 0; half_size /= 2) {
        if (lane < half_size) joined[lane] = join(joined[lane], joined[lane + half_size]);
        barrier();
    }
    if (lane == 0) parts[gl_WorkGroupID.x] = joined[0];
#else
    parts[gl_GlobalInvocationID.x] = total;
    number_of_parts *= size;
#endif
    if (gl_GlobalInvocationID.x == 0) {
        used = number_of_parts;
        elements = count;
    }
}
