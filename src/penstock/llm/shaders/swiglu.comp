// y = silu(gate) * up, element by element.
//
//   gate, up   float32, n elements; SMALL: the fewest that are bound
//   y          float32, n elements; must alias neither
//
// The elements are dealt out to invocations in turn.

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
