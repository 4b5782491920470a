// Collects the tokens that can still be kept. The kernels that follow read only these.
//
//   logits, control   see sampling.glsl; with NARROW keys and ids take the place of logits
//   keys, ids         uint32 (BLOCKS, SPAN): the collected tokens of each block, in the order of ids
//   sizes             uint32 (BLOCKS): how many tokens each block has
//
// The first launch collects the tokens not below the floor. The second, with NARROW, runs when a
// cursor has its first digit, and drops in place those below it.
//
// An invocation for each block.

layout(local_size_x_id = 0) in;

#include "sampling.glsl"

#ifndef NARROW
LOGITS(0)
#endif
layout(binding = 1) readonly buffer Control { uint control[]; };
layout(binding = 2) buffer Keys { uint keys[]; };
layout(binding = 3) buffer Ids { uint ids[]; };
layout(binding = 4) buffer Sizes { uint sizes[]; };

void main() {
    uint block = gl_GlobalInvocationID.x;
    if (block >= BLOCKS) return;
    uint size = 0u;
#ifdef NARROW
    uint lowest = max(control[BY_NUMBER + KEY], control[BY_WEIGHT + KEY]), before = sizes[block];
    if (lowest == 0u) return;
    for (uint i = 0u; i < before; ++i) {
        uint key = keys[block * SPAN + i];
        if (key >= lowest) {
            keys[block * SPAN + size] = key;
            ids[block * SPAN + size] = ids[block * SPAN + i];
            ++size;
        }
    }
#else
    uint lowest = control[FLOOR];
    for (EVERY_LOAD(at)) {
        float found[EACH];
        load(at, found);
        [[unroll]] for (uint e = 0u; e < EACH; ++e) {
            uint key = key_of(found[e]);
            if (key >= lowest) {
                keys[block * SPAN + size] = key;
                ids[block * SPAN + size] = at * EACH + e;
                ++size;
            }
        }
    }
#endif
    sizes[block] = size;
}
