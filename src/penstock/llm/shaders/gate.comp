// y[t, r] = silu(y[t, r]) * up[t, r], with silu(a) = a / (1 + exp(-a)).
//
// y      float32[count, stride]
// up     float32[count, rows]
//
// Mapping: x, an invocation for each row; y, the tokens.

layout(local_size_x_id = 0) in;

layout(binding = 0) readonly buffer Up { float up[]; };
layout(binding = 1) buffer Y { float y[]; };

layout(push_constant) uniform Shape {
    uint rows;
    uint stride;
};

void main() {
    uint row = gl_GlobalInvocationID.x;
    if (row >= rows) return;
    uint at = gl_WorkGroupID.y * stride + row;
    float gate = y[at];
    y[at] = gate / (1.0 + exp(-gate)) * up[gl_WorkGroupID.y * rows + row];
}
