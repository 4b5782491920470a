// Writes the log-probabilities of a step: that of its token, and the likeliest tokens with theirs.
//
//   raw        float32, VOCABULARY: the logits as the model computed them
//   peaks      uint32 (BLOCKS, 2) from sample_peaks.comp, of these logits; a block whose highest token
//              was listed gets its next one
//   masses     uint32 (BLOCKS, 2) from sample_masses.comp
//   tokens     uint32: word 0 is the sampled token
//   state      STEP, already advanced past the step
//   settings   RANKS: how many tokens are listed
//   rows       uint32, `size` rows of ROW words: the step's row gets the log-probability of its token,
//              as float32 bits, MOST_RANKS ids, and as many log-probabilities. The id of a rank that
//              no token has is ~0
//
// A launch lists the ranks from `first` on, at most `each`.
//
// One subgroup. The blocks are dealt out to its lanes in turn, and only the lane of a block reads and
// writes its peak. To replace a peak, all lanes search its block.

layout(local_size_x_id = 0) in;

#include "sampling.glsl"
#include "subgroup.glsl"

layout(binding = 0) readonly buffer Raw { float raw[]; };
layout(binding = 1) buffer Peaks { uint peaks[]; };
layout(binding = 2) readonly buffer Masses { uint masses[]; };
layout(binding = 3) readonly buffer Tokens { uint tokens[]; };
layout(binding = 4) readonly buffer State { uint state[]; };
layout(binding = 5) readonly buffer Settings { uint settings[]; };
layout(binding = 6) writeonly buffer Rows { uint rows[]; };
layout(push_constant) uniform Arguments { uint first; uint each; uint size; };

uint lane, lanes;

// The highest key of all lanes, and its lowest id.
uvec2 best_of(uvec2 mine) {
    uint key = subgroupMax(mine.x);
    return uvec2(key, subgroupMin(mine.x == key && key != 0u ? mine.y : ~0u));
}

uvec2 best_peak() {
    uvec2 mine = uvec2(0u, ~0u);
    for (uint block = lane; block < BLOCKS; block += lanes) {
        uint key = peaks[2u * block], id = peaks[2u * block + 1u];
        if (key > mine.x || (key == mine.x && key != 0u && id < mine.y)) mine = uvec2(key, id);
    }
    return best_of(mine);
}

// The token of the block that follows `last`: the next lower key, or the same and a higher id.
uvec2 following(uint block, uvec2 last) {
    uvec2 mine = uvec2(0u, ~0u);
    uint end = min((block + 1u) * SPAN, VOCABULARY);
    for (uint id = block * SPAN + lane; id < end; id += lanes) {
        uint key = key_of(raw[id]);
        bool after = key < last.x || (key == last.x && id > last.y);
        if (after && key > mine.x) mine = uvec2(key, id);
    }
    return best_of(mine);
}

void main() {
    if (gl_SubgroupID != 0u || (first != 0u && first >= settings[RANKS])) return;
    lane = gl_SubgroupInvocationID;
    lanes = gl_SubgroupSize;
    uint peak = 0u;
    for (uint block = lane; block < BLOCKS; block += lanes) peak = max(peak, masses[2u * block + 1u]);
    peak = subgroupMax(peak);
    float sum = 0.0;
    for (uint block = lane; block < BLOCKS; block += lanes) {
        uint key = masses[2u * block + 1u];
        sum += uintBitsToFloat(masses[2u * block]) * exp(max(depth_of(key, peak, 1.0), -200.0));
    }
    sum = subgroupAdd(sum);
    float total = sum > 0.0 ? log(sum) : 0.0;

    uint row = (state[STEP] - 1u) % size * ROW;
    if (first == 0u && subgroupElect()) {
        float depth = depth_of(key_of(raw[min(tokens[0], VOCABULARY - 1u)]), peak, 1.0);
        rows[row] = floatBitsToUint(depth - total);
    }
    uint end = min(settings[RANKS], first + each);
    for (uint rank = first; rank < end; ++rank) {
        uvec2 best = best_peak();
        bool some = best.x != 0u;
        if (subgroupElect()) {
            rows[row + 1u + rank] = some ? best.y : ~0u;
            rows[row + 1u + MOST_RANKS + rank] =
                floatBitsToUint(some ? depth_of(best.x, peak, 1.0) - total : 0.0);
        }
        uint block = some ? best.y / SPAN : 0u;
        uvec2 next = some ? following(block, best) : uvec2(0u, ~0u);
        if (some && block % lanes == lane) {
            peaks[2u * block] = next.x;
            peaks[2u * block + 1u] = next.y;
        }
    }
}
