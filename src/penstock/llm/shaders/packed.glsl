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

#if UNIT == 32
#define DOT_GROUPS 1
#else
#define DOT_GROUPS QUADS
#endif

#if KIND == IQ4_NL || KIND == IQ4_XS
int signed_of(uint bytes) {
    ivec4 found = ivec4(NUMBERS(bytes)) & 0xFF;
    return found.x | found.y << 8 | found.z << 16 | found.w << 24;
}
#elif defined(MIDDLE)
int signed_of(uint bytes) { return int(below(bytes, MIDDLE)); }
#else
int signed_of(uint bytes) { return int(bytes); }
#endif

void read_bytes(uint source, inout Head head, uint step, out int weights[QUADS]) {
    uint bytes[QUADS];
    read_packed(source, head, step, bytes);
#define SIGNED_OF(quad) weights[quad] = signed_of(bytes[quad]);
    REPEAT(QUADS, SIGNED_OF)
}
