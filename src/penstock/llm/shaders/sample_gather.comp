// Collects the tokens that can still be kept: those not below the first digit of the cursor that
// was begun first. All that follows looks at them alone.
//
//   logits, control   see sampling.glsl
//   keys, ids         uint32 (BLOCKS, SPAN): of each block its tokens, in the order of ids
//   sizes             uint32 (BLOCKS): how many
//
// An invocation for each block.

layout(local_size_x_id = 0) in;

#include "sampling.glsl"

LOGITS(0)
layout(binding = 1) readonly buffer Control { uint control[]; };
layout(binding = 2) writeonly buffer Keys { uint keys[]; };
layout(binding = 3) writeonly buffer Ids { uint ids[]; };
layout(binding = 4) writeonly buffer Sizes { uint sizes[]; };

void main() {
    uint block = gl_GlobalInvocationID.x;
    if (block >= BLOCKS) return;
    uint lowest = 0u;
    if (control[BY_NUMBER + DEPTH] != 0u) lowest = control[BY_NUMBER + KEY];
    else if (control[BY_WEIGHT + DEPTH] != 0u) lowest = control[BY_WEIGHT + KEY];
    uint size = 0u;
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
    sizes[block] = size;
}
