// Random numbers from counters: block n is Philox4x32-10 of the counter (n, retry, 0) and the key.
//
// Only integer arithmetic, and additions and multiplications of floats that every device rounds
// alike, so a key gives the same numbers everywhere. ops/random_references.py is the same in NumPy.
//
// made    words of a contiguous array, written whole, from word `made_at` on
// count   elements; a block of four words makes four of them, or two of 64 bits
// block   the first block, in two words
// table   polynomials of a quantile function, for MODE QUANTILE; see ops/quantiles.py
// a, b    two numbers, in two words each: for floats, the offset and the factor; for integers, the
//         lowest and the largest draw; for a permutation, its number of elements and first element
// keys_…  keys of the rounds of a permutation
//
//   WIDE      elements are float64. Otherwise the module needs no 64-bit types
//   MODE      what elements are made of; SIZE, bytes of an integer (1, 2, 4 or 8)
//   SIGNED    the quantile function is odd, and a table has the half below 1/2
//
// Mapping: a group takes `span` consecutive blocks, its invocations side by side. A permutation has
// an element in place of a block.

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const int MODE = 0;
layout(constant_id = 2) const int SIZE = 4;
layout(constant_id = 3) const bool SIGNED = false;

#define BITS 0
#define UNIFORM 1
#define INTEGER 2
#define QUANTILE 3
#define PERMUTATION 4

struct Word { uint bits; };

layout(push_constant) uniform Arguments {
    uint made_at;
    uint count;
    uint span;
    uint block_low;
    uint block_high;
    uint key_0;
    uint key_1;
    uint a_low;
    uint a_high;
    uint b_low;
    uint b_high;
    uint keys_0;
    uint keys_1;
    uint keys_2;
    uint keys_3;
    uint keys_4;
    uint keys_5;
    uint keys_6;
    uint keys_7;
    uint keys_8;
    uint keys_9;
    uint keys_10;
    uint keys_11;
};

layout(binding = 0) writeonly buffer Made { Word made[]; };
layout(binding = 1) readonly buffer Table { Word table[]; };

uvec4 round_of(uvec4 c, uint k0, uint k1) {
    uint high_0, low_0, high_1, low_1;
    umulExtended(0xD2511F53u, c.x, high_0, low_0);
    umulExtended(0xCD9E8D57u, c.z, high_1, low_1);
    return uvec4(high_1 ^ c.y ^ k0, low_1, high_0 ^ c.w ^ k1, low_0);
}

uvec4 philox(uvec4 c, uint k0, uint k1) {
#define ROUND(n) c = round_of(c, k0 + n * 0x9E3779B9u, k1 + n * 0xBB67AE85u);
    ROUND(0u) ROUND(1u) ROUND(2u) ROUND(3u) ROUND(4u)
    ROUND(5u) ROUND(6u) ROUND(7u) ROUND(8u) ROUND(9u)
    return c;
}

uvec4 drawn(uint n, uint retry) {
    uint carry;
    uint low = uaddCarry(block_low, n, carry);
    return philox(uvec4(low, block_high + carry, retry, 0u), key_0, key_1);
}

#ifdef WIDE

// 53 bits, in [0, 1).
double uniform_of(uvec2 bits) {
    return (double(bits.y >> 5) * 67108864.0LF + double(bits.x >> 6)) * 1.1102230246251565e-16LF;
}

double coefficient(uint at) { return packDouble2x32(uvec2(table[2u * at].bits, table[2u * at + 1u].bits)); }

// The number at the quantile that 64 bits are; with SIGNED, 63 and a sign.
double quantile_of(uvec2 bits) {
    uint sign = SIGNED ? bits.y & 0x80000000u : 0u;
    uvec2 m = uvec2(bits.x | 1u, SIGNED ? bits.y & 0x7FFFFFFFu : bits.y);
    uint octave = m.y != 0u ? 32u + uint(findMSB(m.y)) : uint(findMSB(m.x));
    // Shifted until the highest bit is that of the number.
    uint shift = 63u - octave;
    uvec2 n = shift >= 32u ? uvec2(0u, m.x) : m;
    shift &= 31u;
    n = shift == 0u ? n : uvec2(n.x << shift, n.y << shift | n.x >> (32u - shift));
    uint part = octave * 8u + (n.y >> 28 & 7u);
    // The 52 bits after the parts' three, in [0, 1).
    uint high = n.y & 0x0FFFFFFFu;
    precise double x = packDouble2x32(uvec2(high << 24 | n.x >> 8, 0x3FF00000u | high >> 8)) - 1.0LF;
    precise double value = coefficient(part * 9u + 8u);
#define STEP(i) { precise double product = value * x; value = product + coefficient(part * 9u + i); }
    STEP(7u) STEP(6u) STEP(5u) STEP(4u) STEP(3u) STEP(2u) STEP(1u) STEP(0u)
    if (!SIGNED && value < 0.0LF) value = 0.0LF;
    uvec2 found = unpackDouble2x32(value);
    return packDouble2x32(uvec2(found.x, found.y ^ sign));
}

uvec4 floats_of(uvec4 bits) {
    precise double offset = packDouble2x32(uvec2(a_low, a_high));
    precise double factor = packDouble2x32(uvec2(b_low, b_high));
    precise double x, y;
    if (MODE == UNIFORM) {
        x = uniform_of(bits.xy);
        y = uniform_of(bits.zw);
    } else {
        x = quantile_of(bits.xy);
        y = quantile_of(bits.zw);
    }
    precise double first = x * factor, second = y * factor;
    first = first + offset;
    second = second + offset;
    return uvec4(unpackDouble2x32(first), unpackDouble2x32(second));
}

#else

// 24 bits, in [0, 1).
float uniform_of(uint bits) { return float(bits >> 8) * 5.9604644775390625e-8; }

float coefficient(uint at) { return uintBitsToFloat(table[at].bits); }

float quantile_of(uint bits) {
    uint sign = SIGNED ? bits & 0x80000000u : 0u;
    uint m = (SIGNED ? bits & 0x7FFFFFFFu : bits) | 1u;
    uint octave = uint(findMSB(m));
    uint n = m << (31u - octave);
    uint part = octave * 8u + (n >> 28 & 7u);
    precise float x = float(n >> 4 & 0xFFFFFFu) * 5.9604644775390625e-8;
    precise float value = coefficient(part * 4u + 3u);
#define STEP(i) { precise float product = value * x; value = product + coefficient(part * 4u + i); }
    STEP(2u) STEP(1u) STEP(0u)
    if (!SIGNED && value < 0.0) value = 0.0;
    return uintBitsToFloat(floatBitsToUint(value) ^ sign);
}

uint float_of(uint bits) {
    precise float x;
    if (MODE == UNIFORM) x = uniform_of(bits);
    else x = quantile_of(bits);
    precise float scaled = x * uintBitsToFloat(b_low);
    scaled = scaled + uintBitsToFloat(a_low);
    return floatBitsToUint(scaled);
}

uvec4 floats_of(uvec4 bits) {
    return uvec4(float_of(bits.x), float_of(bits.y), float_of(bits.z), float_of(bits.w));
}

// The smallest 2^n - 1 that is not below `largest`.
uint mask_of(uint largest) { return largest == 0u ? 0u : 0xFFFFFFFFu >> (31u - uint(findMSB(largest))); }

// Draws of at most `b`: bits that exceed it are drawn again, so that none is more likely.
uvec4 integers_of(uint n) {
    uvec4 kept = uvec4(0u);
    if (SIZE < 8) {
        uint mask = mask_of(b_low);
        bvec4 missing = bvec4(true);
        for (uint retry = 0u; retry < 64u && any(missing); ++retry) {
            uvec4 bits = drawn(n, retry) & mask;
            kept = mix(kept, bits, missing);
            missing = greaterThan(kept, uvec4(b_low));
        }
        return kept + a_low;
    }
    uvec2 mask = uvec2(b_high != 0u ? 0xFFFFFFFFu : mask_of(b_low), mask_of(b_high));
    bvec2 missing = bvec2(true);
    for (uint retry = 0u; retry < 64u && any(missing); ++retry) {
        uvec4 bits = drawn(n, retry) & mask.xyxy;
        kept = mix(kept, bits, missing.xxyy);
        missing.x = kept.y > b_high || (kept.y == b_high && kept.x > b_low);
        missing.y = kept.w > b_high || (kept.w == b_high && kept.z > b_low);
    }
    uvec2 carry;
    uvec2 low = uaddCarry(kept.xz, uvec2(a_low), carry);
    uvec2 high = kept.yw + a_high + carry;
    return uvec4(low.x, high.x, low.y, high.y);
}

uint mixed(uint x) {
    x = (x ^ x >> 16) * 0x85EBCA6Bu;
    x = (x ^ x >> 13) * 0xC2B2AE35u;
    return x ^ x >> 16;
}

// Where element i of `a_low` goes: a Feistel network permutes the numbers of a power of two above it,
// and what lands outside goes on from there.
uint permuted(uint i) {
    uint bits = uint(findMSB(a_low)) + 2u, half_ = bits / 2u;
    uint even = (1u << half_) - 1u, odd = (1u << (bits - half_)) - 1u;
    uint walked = 0u;
    do {
        uint left = i >> (bits - half_), right = i & odd, next;
#define PASS(key, mask) next = left ^ (mixed(right ^ key) & mask); left = right; right = next;
        PASS(keys_0, even) PASS(keys_1, odd) PASS(keys_2, even) PASS(keys_3, odd)
        PASS(keys_4, even) PASS(keys_5, odd) PASS(keys_6, even) PASS(keys_7, odd)
        PASS(keys_8, even) PASS(keys_9, odd) PASS(keys_10, even) PASS(keys_11, odd)
        i = left << (bits - half_) | right;
    } while (i >= a_low && ++walked < 1024u);
    return i;
}

#endif

void main() {
    uint elements = SIZE == 8 ? 2u : 4u;
    uint words = (count * uint(SIZE) + 3u) / 4u;
    uint group = gl_WorkGroupID.x + gl_WorkGroupID.y * gl_NumWorkGroups.x;
    uint blocks = MODE == PERMUTATION ? count : (count + elements - 1u) / elements;
    uint end = min((group + 1u) * span, blocks);
    for (uint n = group * span + gl_LocalInvocationID.x; n < end; n += gl_WorkGroupSize.x) {
#ifndef WIDE
        if (MODE == PERMUTATION) {
            made[made_at + 2u * n].bits = permuted(b_low + n);
            made[made_at + 2u * n + 1u].bits = 0u;
            continue;
        }
#endif
        uvec4 four;
        if (MODE == BITS) four = drawn(n, 0u);
#ifndef WIDE
        else if (MODE == INTEGER) four = integers_of(n);
#endif
        else four = floats_of(drawn(n, 0u));
        if (SIZE == 1) {
            four &= 0xFFu;
            made[made_at + n].bits = four.x | four.y << 8 | four.z << 16 | four.w << 24;
        } else if (SIZE == 2) {
            four &= 0xFFFFu;
            made[made_at + 2u * n].bits = four.x | four.y << 16;
            if (2u * n + 1u < words) made[made_at + 2u * n + 1u].bits = four.z | four.w << 16;
        } else {
            made[made_at + 4u * n].bits = four.x;
            if (4u * n + 1u < words) made[made_at + 4u * n + 1u].bits = four.y;
            if (4u * n + 2u < words) made[made_at + 4u * n + 2u].bits = four.z;
            if (4u * n + 3u < words) made[made_at + 4u * n + 3u].bits = four.w;
        }
    }
}
