// y *= sigmoid(gate), for the gates that attn_q makes besides the queries.
//
//   q   float32 (count, HEADS * 2 * HEAD_SIZE): of each head first the query, then its gates
//   y   float32 (count, HEADS * HEAD_SIZE)
//
// An invocation for each number of y, `n` in all.

layout(local_size_x_id = 0) in;

layout(binding = 0) readonly buffer Q { float q[]; };
layout(binding = 1) buffer Y { float y[]; };
layout(push_constant) uniform Arguments { uint n; };

void main() {
    uint at = gl_GlobalInvocationID.x;
    if (at >= n) return;
    uint head = at / uint(HEAD_SIZE);
    float gate = q[at + (head + 1u) * uint(HEAD_SIZE)];
    y[at] /= 1.0 + exp(-gate);
}
