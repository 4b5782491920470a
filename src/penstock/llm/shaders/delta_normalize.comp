// Divides queries and keys of a gated DeltaNet layer by their lengths, and queries by sqrt(KEY_SIZE).
//
//   qk   float32 (count, 2 * KEY_HEADS, KEY_SIZE): all queries of a token, then all keys; in place
//
// A workgroup for each head and token: groups (2 * KEY_HEADS, count).

layout(local_size_x_id = 0) in;

#include "group.glsl"
#include "delta.glsl"

layout(binding = 0) buffer Keys { float qk[]; };

void main() {
    uint lane = gl_LocalInvocationID.x, lanes = gl_WorkGroupSize.x;
    uint head = gl_WorkGroupID.x;
    uint from = (gl_WorkGroupID.y * uint(2 * KEY_HEADS) + head) * uint(KEY_SIZE);
    float squares = 0.0;
    for (uint i = lane; i < uint(KEY_SIZE); i += lanes) squares += qk[from + i] * qk[from + i];
    float scale = 1.0 / sqrt(group_sum(squares) + LENGTH_EPSILON);
    if (head < uint(KEY_HEADS)) scale *= QUERY_SCALE;
    for (uint i = lane; i < uint(KEY_SIZE); i += lanes) qk[from + i] *= scale;
}
