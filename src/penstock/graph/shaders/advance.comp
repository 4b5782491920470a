// Advances the counter of an append-only array: counter[0] += rows. One invocation.

layout(local_size_x = 1) in;
layout(binding = 0) buffer Counter { uint counter[]; };
layout(push_constant) uniform Block { uint rows; };

void main() {
    if (gl_GlobalInvocationID.x == 0) counter[0] += rows;
}
