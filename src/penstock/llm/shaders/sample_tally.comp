// Counts the token that the step sampled, for sample_frequency.comp.
//
//   tokens   uint32: word 0 is the token; NO_TOKEN is not counted
//   counts   uint32, VOCABULARY: how often each was sampled
//   seen     uint32, 1 + VOCABULARY: how many different tokens, then these, in the order in which
//            they came
//
// One invocation.

layout(local_size_x_id = 0) in;

layout(binding = 0) readonly buffer Tokens { uint tokens[]; };
layout(binding = 1) buffer Counts { uint counts[]; };
layout(binding = 2) buffer Seen { uint seen[]; };

void main() {
    if (gl_GlobalInvocationID.x != 0u) return;
    uint token = tokens[0];
    if (token == NO_TOKEN) return;
    uint before = counts[token];
    if (before == 0u) {
        uint number = seen[0];
        seen[1u + number] = token;
        seen[0] = number + 1u;
    }
    counts[token] = before + 1u;
}
