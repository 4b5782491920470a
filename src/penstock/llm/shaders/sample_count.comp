// Counts tokens and their weight by the first digit of their key.
//
//   logits, settings, histograms   see sampling.glsl; the first region, all 0 before
//   peaks                          uint32 (BLOCKS, 2) from sample_peaks.comp
//
// Invocations take every so many-th load. A workgroup counts in the copy that its number says.

#extension GL_KHR_shader_subgroup_arithmetic : require

layout(local_size_x_id = 0) in;

#include "sampling.glsl"

LOGITS(0)
layout(binding = 1) readonly buffer Peaks { uint peaks[]; };
layout(binding = 2) readonly buffer Settings { uint settings[]; };
layout(binding = 3) buffer Histograms { uint histograms[]; };

void main() {
    uint peak = 0u;
    for (uint block = gl_SubgroupInvocationID; block < BLOCKS; block += gl_SubgroupSize) {
        peak = max(peak, peaks[2u * block]);
    }
    peak = subgroupMax(peak);
    float inverse_temperature = uintBitsToFloat(settings[INVERSE_TEMPERATURE]);
    uint copy = gl_WorkGroupID.x % COPIES * BINS;
    uint step = gl_NumWorkGroups.x * gl_WorkGroupSize.x;
    for (uint at = gl_GlobalInvocationID.x; at < VOCABULARY / EACH; at += step) {
        float found[EACH];
        load(at, found);
        [[unroll]] for (uint e = 0u; e < EACH; ++e) {
            uint key = key_of(found[e]);
            uint weight = weight_of(depth_of(key, peak, inverse_temperature));
            uint bin = (copy + digit_of(key, 0u)) * 3u;
            atomicAdd(histograms[bin], 1u);
            uint before = atomicAdd(histograms[bin + 1u], weight);
            if (before + weight < before) atomicAdd(histograms[bin + 2u], 1u);
        }
    }
}
