// Weights of steps.glsl as packed signed bytes, for integer dot products: for all kinds but F32, F16
// and BF16.
//
// Weights and activations are integers times a factor. The columns of a quad belong to one of DOT_GROUPS
// groups of the unit, group 0 if there is one only, else that with the number of the quad. For
// columns of one group, all in the same 32 columns,
//     sum of weight * x = factor.x * x_factor.x * dot + factor.y * share * x_factor.y
// where `factor` is factor_of(head, step, group), `dot` is the sum of the products of integers,
// `x_factor` is the factor of x and the sum of the 32 x, and `share` the part of the 32 columns that
// was taken. Without MINIMA, factor.y is 0. With MINIMA 2 the minimum belongs to 16 columns, so that
// instead of share * x_factor.y the caller multiplies by x_factor.x times the sum of the integers
// that it took.
//
//   void read_bytes(uint source, inout Head head, uint step, out int weights[QUADS])
//       as read_step: four weights in each int
//   vec2 factor_of(Head head, uint step, const uint group)
//       the same for all steps of a quarter of a unit
//   int packed_dot(int a, int b, 0)
//       the dot product of four signed bytes each: OpSDot of SPV_KHR_integer_dot_product. Declared
//       as an intrinsic, because few GLSL compilers have GL_EXT_integer_dot_product yet

#extension GL_EXT_spirv_intrinsics : require

spirv_instruction(
    extensions = ["SPV_KHR_integer_dot_product"], capabilities = [6018, 6019], id = 4450)
int packed_dot(int a, int b, spirv_literal int format);

#include "steps.glsl"

// Subtracts a number from each of four bytes below 64; the highest bit takes the borrow.
int below(uint bytes, uint middle) {
    return int(((bytes | 0x80808080u) - middle * 0x01010101u) ^ 0x80808080u);
}

#if KIND == Q8_0

#define DOT_GROUPS 1
#define MINIMA 0

void read_bytes(uint source, inout Head head, uint step, out int weights[QUADS]) {
    weights[0] = int(next_word(source, head.run));
}

vec2 factor_of(Head head, uint step, const uint group) { return vec2(head.scale, 0.0); }

#elif KIND == Q4_0 || KIND == Q5_0 || KIND == Q4_1 || KIND == Q5_1

#define DOT_GROUPS 1

void read_bytes(uint source, inout Head head, uint step, out int weights[QUADS]) {
    uint word = next_word(source, head.run);
    uint low = LOW(word), high = HIGH(word);
#if KIND == Q5_0 || KIND == Q5_1
    uint fifth = head.fifth >> (4 * step);
    low |= fifth_bits(fifth);
    high |= fifth_bits(fifth >> 16);
#endif
#if KIND == Q4_0 || KIND == Q5_0
    weights[0] = below(low, uint(MIDDLE));
    weights[1] = below(high, uint(MIDDLE));
#else
    weights[0] = int(low);
    weights[1] = int(high);
#endif
}

#if KIND == Q4_0 || KIND == Q5_0
#define MINIMA 0
vec2 factor_of(Head head, uint step, const uint group) { return vec2(head.scale, 0.0); }
#else
#define MINIMA 1
vec2 factor_of(Head head, uint step, const uint group) { return head.scale_and_minimum; }
#endif

#elif KIND == Q4_K || KIND == Q5_K

#define DOT_GROUPS 2
#define MINIMA 1

void read_bytes(uint source, inout Head head, uint step, out int weights[QUADS]) {
    uint word = next_word(source, head.run);
    uint low = LOW(word), high = HIGH(word);
#if KIND == Q5_K
    uint fifth = next_word(source, head.fifth) >> head.group;
    low |= (fifth & 0x01010101u) << 4;
    high |= (fifth & 0x02020202u) << 3;
#endif
    weights[0] = int(low);
    weights[1] = int(high);
}

vec2 factor_of(Head head, uint step, const uint group) {
    return vec2(head.scales[group], -head.minima[group]);
}

#elif KIND == Q6_K

#define DOT_GROUPS 4
#define MINIMA 0

void read_bytes(uint source, inout Head head, uint step, out int weights[QUADS]) {
    uint early = next_word(source, head.early);
    uint late = next_word(source, head.late);
    uint further = next_word(source, head.further);
    weights[0] = below(LOW(early) | ((further << 4) & 0x30303030u), 32);
    weights[1] = below(LOW(late) | ((further << 2) & 0x30303030u), 32);
    weights[2] = below(HIGH(early) | (further & 0x30303030u), 32);
    weights[3] = below(HIGH(late) | ((further >> 2) & 0x30303030u), 32);
}

vec2 factor_of(Head head, uint step, const uint group) {
    int of_half = step < 4u ? 0 : 8;  // the first 16 of each 32 columns, or the others
    int scale = bitfieldExtract(int(head.scales[group / 2]), int(group % 2) * 16 + of_half, 8);
    return vec2(head.scale * float(scale), 0.0);
}

#elif KIND == Q2_K || KIND == Q3_K

#define DOT_GROUPS 4
#if KIND == Q2_K
#define MINIMA 2
#else
#define MINIMA 0
#endif

void read_bytes(uint source, inout Head head, uint step, out int weights[QUADS]) {
    uvec4 bytes = read_bits_of(source, head);
#if KIND == Q2_K
    weights[0] = int(bytes.x);
    weights[1] = int(bytes.y);
    weights[2] = int(bytes.z);
    weights[3] = int(bytes.w);
#else
    weights[0] = below(bytes.x, 4);
    weights[1] = below(bytes.y, 4);
    weights[2] = below(bytes.z, 4);
    weights[3] = below(bytes.w, 4);
#endif
}

vec2 factor_of(Head head, uint step, const uint group) {
    uint at = group % 2 * 16 + (step < 4u ? 0u : 8u);  // the first 16 of each 32 columns, or the others
    uint bits = head.scales[group / 2] >> at;
#if KIND == Q2_K
    return head.scale_and_minimum * vec2(ivec2(bits & 15u, -int((bits >> 4) & 15u)));
#else
    return vec2(head.scale * float(int(bits & 63u) - 32), 0.0);
#endif
}

#elif KIND == IQ4_NL || KIND == IQ4_XS || KIND == MXFP4

#define DOT_GROUPS 1
#define MINIMA 0

#if KIND == MXFP4
int level_bytes(uint nibbles) { return below(levels_above(nibbles), 12); }
#else
int level_bytes(uint nibbles) {
    ivec4 bytes = ivec4(levels(nibbles)) & 0xFF;
    return bytes.x | bytes.y << 8 | bytes.z << 16 | bytes.w << 24;
}
#endif

void read_bytes(uint source, inout Head head, uint step, out int weights[QUADS]) {
    uint word = next_word(source, head.run);
    weights[0] = level_bytes(LOW(word));
    weights[1] = level_bytes(HIGH(word));
}

vec2 factor_of(Head head, uint step, const uint group) { return vec2(head.scale, 0.0); }

#endif
