// Sums the exponentials of the logits of every block of ids, relative to the block's highest.
//
//   logits   see sampling.glsl
//   peaks    uint32 (BLOCKS, 2) from sample_peaks.comp
//   masses   uint32 (BLOCKS, 2): the sum as float32 bits, 0 for a block without numbers; the key of
//            the highest, which later kernels replace in `peaks`
//
// An invocation for each block.

layout(local_size_x_id = 0) in;

#include "sampling.glsl"

LOGITS(0)
layout(binding = 1) readonly buffer Peaks { uint peaks[]; };
layout(binding = 2) writeonly buffer Masses { uint masses[]; };

void main() {
    uint block = gl_GlobalInvocationID.x;
    if (block >= BLOCKS) return;
    uint peak = peaks[2u * block];
    float sum = 0.0;
    for (EVERY_LOAD(at)) {
        float found[EACH];
        load(at, found);
        [[unroll]] for (uint e = 0u; e < EACH; ++e) {
            uint key = key_of(found[e]);
            sum += key == 0u ? 0.0 : exp(max(depth_of(key, peak, 1.0), -200.0));
        }
    }
    masses[2u * block] = floatBitsToUint(sum);
    masses[2u * block + 1u] = peak;
}
