// y[t, r] += bias[r], for a bias of kind F32, F16 or BF16.
//
// y       float32[count, stride]
// begin   the byte of `words` at which the bias begins
//
// Mapping: x, an invocation for each row; y, the tokens.

layout(local_size_x_id = 0) in;

layout(binding = 0) readonly buffer Words { uint words[]; };
layout(binding = 1) buffer Y { float y[]; };

layout(push_constant) uniform Shape {
    uint begin;
    uint rows;
    uint stride;
};

uint fetch(uint source, uint at) { return words[at]; }

#include "blocks.glsl"

void main() {
    uint row = gl_GlobalInvocationID.x;
    if (row < rows) y[gl_WorkGroupID.y * stride + row] += read_one(0u, begin, row);
}
