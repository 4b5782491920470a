// Builds the histogram of the gathered tokens, their number and weight, by digit `digit` of their key.
// Counts only tokens that match the digits that the cursor has found. Does nothing if the cursor is
// looking for another digit.
//
//   keys, sizes                     from sample_gather.comp
//   settings, control, histograms   see sampling.glsl; region `region`, all 0 before
//
// The blocks are dealt out to invocations in turn. The number of a workgroup selects its copy of the
// histogram.

layout(local_size_x_id = 0) in;

#include "sampling.glsl"

layout(binding = 0) readonly buffer Keys { uint keys[]; };
layout(binding = 1) readonly buffer Sizes { uint sizes[]; };
layout(binding = 2) readonly buffer Settings { uint settings[]; };
layout(binding = 3) readonly buffer Control { uint control[]; };
layout(binding = 4) buffer Histograms { uint histograms[]; };
layout(push_constant) uniform Arguments { uint cursor; uint digit; uint region; };

void main() {
    if (control[cursor + DEPTH] != 1u + digit) return;
    uint digits = control[cursor + KEY], peak = control[PEAK];
    float inverse_temperature = uintBitsToFloat(settings[INVERSE_TEMPERATURE]);
    uint copy = (region * COPIES + gl_WorkGroupID.x % COPIES) * BINS;
    uint step = gl_NumWorkGroups.x * gl_WorkGroupSize.x;
    for (uint block = gl_GlobalInvocationID.x; block < BLOCKS; block += step) {
        uint size = sizes[block];
        for (uint i = 0u; i < size; ++i) {
            uint key = keys[block * SPAN + i];
            if (begins_with(key, digits, digit)) {
                uint weight = weight_of(depth_of(key, peak, inverse_temperature));
                uint bin = (copy + digit_of(key, digit)) * 3u;
                if (cursor == BY_NUMBER) atomicAdd(histograms[bin], 1u);  // top-p reads weights only
                uint before = atomicAdd(histograms[bin + 1u], weight);
                if (before + weight < before) atomicAdd(histograms[bin + 2u], 1u);
            }
        }
    }
}
