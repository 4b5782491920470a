// y = silu(gate) * up, element by element.
//
//   gate, up   float32, n elements; SMALL: at least so many are bound
//   y          float32, n elements; may be the memory of neither
//
// Every invocation takes every so many-th element.

layout(local_size_x_id = 0) in;

#include "input.glsl"

INPUT(0, G, gate, SMALL);
INPUT(1, U, up, SMALL);
layout(binding = 2) writeonly buffer Y { float y[]; };
layout(push_constant) uniform Arguments { uint n; };

void main() {
    uint step = gl_NumWorkGroups.x * gl_WorkGroupSize.x;
    for (uint i = gl_GlobalInvocationID.x; i < n; i += step) {
        float value = gate[i];
        y[i] = value / (1.0 + exp(-value)) * up[i];
    }
}
