// Packs the lines of a matrix for product_lanes.comp: sums' numbers, side by side as it loads them.
//
// A line is a row of the left matrix or a column of the right one. Sixteen bytes are SAME consecutive
// numbers of a line. A panel is `width` lines: their first 16 bytes, one line after the other, then
// their second, and so on. Numbers beyond the last line or the end of a line are zero.
//
// words   the elements, at any strides (bytes), from byte `at` on
// packed  [batch, panel, part, line of the panel], 16 bytes each
//
// Mapping: x, panels; y, `span` consecutive parts each; z, batches. An invocation takes the lines of
// its panel that are a group apart.

#include "product.glsl"

layout(local_size_x_id = 0) in;

layout(push_constant) uniform Shape {
    uint at;
    uint lines;
    uint inner;  // numbers of a line
    uint line_stride;
    uint inner_stride;
    uint width;
    uint parts;  // of a line: inner / SAME, rounded up
    uint span;
    uint batch_0;  // the sizes of the two inner axes of the batch, and the strides of all three
    uint batch_1;
    uint stride_0;
    uint stride_1;
    uint stride_2;
};

SOURCE(0, words);
layout(binding = 1) writeonly buffer Packed { uvec4 packed_[]; };

void main() {
    uint batch = gl_WorkGroupID.z, panel = gl_WorkGroupID.x;
    uint from = at + batch % batch_0 * stride_0 + batch / batch_0 % batch_1 * stride_1
        + batch / batch_0 / batch_1 * stride_2;
    uint first = gl_WorkGroupID.y * span, end = min(first + span, parts);
    uint to = (batch * gl_NumWorkGroups.x + panel) * parts * width;
    for (uint n = gl_LocalInvocationID.x; n < width; n += gl_WorkGroupSize.x) {
        uint line = panel * width + n;
        uint start = from + min(line, lines - 1u) * line_stride;
        for (uint part = first; part < end; ++part) {
            uvec4 sixteen = uvec4(0u);
            [[unroll]] for (uint i = 0u; i < SAME; ++i) {
                uint k = part * SAME + i;
                if (k < inner && line < lines) {
                    uvec4 bits = bits_of(decoded(RAW(words, start + k * inner_stride)));
#if SAME == 4
                    sixteen[i] = bits.x;
#elif SAME == 2
                    sixteen[2u * i] = bits.x;
                    sixteen[2u * i + 1u] = bits.y;
#else
                    sixteen = bits;
#endif
                }
            }
            packed_[to + part * width + n] = sixteen;
        }
    }
}
