// The gated norm at the end of a gated DeltaNet layer: y = y / sqrt(mean(y²) + eps) * w * silu(gate), head by head.
//
//   y       float32 (count, VALUES), in place
//   gates   float32 (count, stride): see place_of_gates in delta.glsl
//   words   the VALUE_SIZE weights, from byte `first` on; see vector.glsl
//
// A workgroup for each head and token: groups (VALUE_HEADS, count).

layout(local_size_x_id = 0) in;

#include "group.glsl"
#include "vector.glsl"
#include "delta.glsl"

layout(binding = 0) buffer Y { float y[]; };
layout(binding = 1) readonly buffer Gates { float gates[]; };
VECTOR(2, Words, words, weight)
layout(push_constant) uniform Arguments { uint stride; uint first; float eps; };

void main() {
    uint lane = gl_LocalInvocationID.x, lanes = gl_WorkGroupSize.x;
    uint head = gl_WorkGroupID.x, token = gl_WorkGroupID.y;
    uint from = (token * uint(VALUE_HEADS) + head) * uint(VALUE_SIZE);
    uint gates_from = token * stride + place_of_gates(head);
    float squares = 0.0;
    for (uint i = lane; i < uint(VALUE_SIZE); i += lanes) squares += y[from + i] * y[from + i];
    float scale = 1.0 / sqrt(group_sum(squares) / float(VALUE_SIZE) + eps);
    for (uint i = lane; i < uint(VALUE_SIZE); i += lanes) {
        float gate = gates[gates_from + i];
        y[from + i] *= scale * weight(first, i) * gate * sigmoid(gate);
    }
}
