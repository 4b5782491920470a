// Takes the token with the highest logit, the first of equals, and ends the step.
//
//   peaks   uint32 (BLOCKS, 2) from sample_peaks.comp
//   and the arguments of finish.glsl
//
// One subgroup; the blocks are dealt out to its lanes in turn.

#extension GL_KHR_shader_subgroup_arithmetic : require

layout(local_size_x_id = 0) in;

#include "finish.glsl"

layout(binding = 0) readonly buffer Peaks { uint peaks[]; };

void main() {
    if (gl_SubgroupID != 0u) return;
    uint best = 0u, best_id = ~0u;
    for (uint block = gl_SubgroupInvocationID; block < BLOCKS; block += gl_SubgroupSize) {
        uint key = peaks[2u * block], id = peaks[2u * block + 1u];
        if (key > best || (key == best && id < best_id)) {
            best = key;
            best_id = id;
        }
    }
    uint peak = subgroupMax(best);
    uint token = subgroupMin(best == peak ? best_id : ~0u);
    if (subgroupElect()) finish(peak, min(token, VOCABULARY - 1u));
}
