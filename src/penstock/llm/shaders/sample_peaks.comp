// Finds the highest logit of every block of ids, and its id: the first of equals.
//
//   logits   see sampling.glsl
//   peaks    uint32 (BLOCKS, 2): key and id; for a block without ids, key 0 and an id past all others; for
//            a block with a NaN the key NOT_A_NUMBER
//
// An invocation for each block.

layout(local_size_x_id = 0) in;

#include "sampling.glsl"

LOGITS(0)
layout(binding = 1) writeonly buffer Peaks { uint peaks[]; };

void main() {
    uint block = gl_GlobalInvocationID.x;
    if (block >= BLOCKS) return;
    uint best = 0u, least = ~0u, best_id = block * SPAN;
    for (EVERY_LOAD(at)) {
        float found[EACH];
        load(at, found);
        [[unroll]] for (uint e = 0u; e < EACH; ++e) {
            uint key = key_of(found[e]);
            best_id = key > best ? at * EACH + e : best_id;
            best = max(best, key);
            least = min(least, key);
        }
    }
    peaks[2u * block] = least == 0u ? NOT_A_NUMBER : best;
    peaks[2u * block + 1u] = best_id;
}
