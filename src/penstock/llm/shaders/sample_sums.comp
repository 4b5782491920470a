// Sums what is kept of every block.
//
//   keys, sizes         from sample_gather.comp
//   settings, control   see sampling.glsl
//   sums                uint32 (BLOCKS, 3): the weight of tokens above the cut, in two words, and the
//                       number of tokens at it
//
// An invocation for each block.

layout(local_size_x_id = 0) in;

#include "sampling.glsl"
#include "cut.glsl"

layout(binding = 4) readonly buffer Keys { uint keys[]; };
layout(binding = 5) readonly buffer Sizes { uint sizes[]; };
layout(binding = 6) writeonly buffer Sums { uint sums[]; };

void main() {
    uint block = gl_GlobalInvocationID.x;
    if (block >= BLOCKS) return;
    find_cut();
    uint size = sizes[block], ties = 0u;
    uvec2 sum = uvec2(0u);
    for (uint i = 0u; i < size; ++i) {
        uint key = keys[block * SPAN + i];
        if (key > cut) sum = plus(sum, uvec2(weight_above_min_p(key), 0u));
        ties += uint(key == cut);
    }
    sums[3u * block] = sum.x;
    sums[3u * block + 1u] = sum.y;
    sums[3u * block + 2u] = ties;
}
