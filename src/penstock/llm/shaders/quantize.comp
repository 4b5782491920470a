// Rounds activations to 8 bits, 32 columns to a factor, for packed dot products (see packed.glsl).
//
//   x        float32[tokens, columns]; columns is a multiple of 32
//   bytes    int8[tokens, columns], four to an int32: x divided by the factor, rounded
//   factors  float32[tokens, columns / 32, 2]: the largest magnitude of 32 columns divided by 127,
//            and the sum of their rounded values times that; NaN if one of them is not finite
//
// Groups (columns / 256, tokens); an invocation takes four columns.

layout(local_size_x = 64) in;

layout(binding = 0) readonly buffer X { vec4 x[]; };
layout(binding = 1) writeonly buffer Bytes { int bytes[]; };
layout(binding = 2) writeonly buffer Factors { vec2 factors[]; };
layout(push_constant) uniform Arguments { uint columns; };

#include "largest.glsl"

shared float peaks[64];
shared int totals[64];

void main() {
    uint lane = gl_LocalInvocationID.x, first = lane & ~7u;
    uint quad = gl_GlobalInvocationID.x, quads = columns / 4;
    uint at = gl_WorkGroupID.y * quads + quad;
    bool exists = quad < quads;
    vec4 values = vec4(0.0);
    if (exists) values = x[at];

    peaks[lane] = largest(values);
    barrier();
    float peak = 0.0;
    for (uint i = 0; i < 8; ++i) peak = max(peak, peaks[first + i]);

    float inverse = peak > 0.0 ? 127.0 / peak : 0.0;
    ivec4 rounded = clamp(ivec4(roundEven(values * inverse)), ivec4(-127), ivec4(127));
    totals[lane] = rounded.x + rounded.y + rounded.z + rounded.w;
    barrier();
    if (exists) {
        ivec4 low = rounded & 0xFF;
        bytes[at] = low.x | low.y << 8 | low.z << 16 | low.w << 24;
        if (lane == first) {
            int total = 0;
            for (uint i = 0; i < 8; ++i) total += totals[first + i];
            float factor = is_finite(peak) ? peak / 127.0 : uintBitsToFloat(0x7FC00000u);
            factors[at / 8] = vec2(factor, factor * float(total));
        }
    }
}
