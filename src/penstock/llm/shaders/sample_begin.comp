// Starts the search for the tokens that are kept: initialises the cursors, and finds a floor below
// which no token can be kept, so that the kernels that follow have few tokens to read.
//
//   peaks               uint32 (BLOCKS, 2) from sample_peaks.comp
//   settings, control   see sampling.glsl
//
// Below the floor are tokens of weight 0 and, with top-k, those below the k-th highest peak of a block:
// at least k tokens are not below that.
//
// One subgroup; the blocks are dealt out to its lanes in turn.

layout(local_size_x_id = 0) in;

#include "sampling.glsl"
#include "subgroup.glsl"

layout(binding = 0) readonly buffer Peaks { uint peaks[]; };
layout(binding = 1) readonly buffer Settings { uint settings[]; };
layout(binding = 2) writeonly buffer Control { uint control[]; };

uint blocks_from(uint key) {
    uint found = 0u;
    for (uint block = gl_SubgroupInvocationID; block < BLOCKS; block += gl_SubgroupSize) {
        found += uint(peaks[2u * block] >= key);
    }
    return subgroupAdd(found);
}

void main() {
    if (gl_SubgroupID != 0u) return;
    uint peak = 0u;
    for (uint block = gl_SubgroupInvocationID; block < BLOCKS; block += gl_SubgroupSize) {
        peak = max(peak, peaks[2u * block]);
    }
    peak = subgroupMax(peak);
    // At a depth of 22 the weight is 0, however it rounds.
    float temperature = 1.0 / uintBitsToFloat(settings[INVERSE_TEMPERATURE]);
    uint floor_key = min(peak, key_of(logit_of(peak) - 22.0 * temperature));

    uint number = settings[TOP_K];
    bool by_number = number != 0u && number < VOCABULARY;
    if (by_number && number <= BLOCKS) {
        // The highest key that k block peaks reach, to 16 bits: few tokens lie between.
        uint reached = 0u;
        for (uint bit = 1u << 31; bit > 1u << 15; bit >>= 1) {
            if (blocks_from(reached | bit) >= number) reached |= bit;
        }
        floor_key = max(floor_key, reached);
    }
    if (!subgroupElect()) return;
    bool by_weight = settings[TOP_P] != ~0u;
    control[PEAK] = peak;
    control[FLOOR] = floor_key;
    for (uint i = 0u; i < CURSOR_WORDS; ++i) {
        control[BY_NUMBER + i] = 0u;
        control[BY_WEIGHT + i] = 0u;
    }
    control[BY_NUMBER + DEPTH] = uint(by_number);
    control[BY_NUMBER + LEFT] = number;
    // With top-k, the top-p cursor starts when the top-k cursor is done.
    control[BY_WEIGHT + DEPTH] = uint(by_weight && !by_number);
}
