// Draws a token from those that are kept, by their weights, and ends the step.
//
//   settings, control   see sampling.glsl
//   keys, ids, sizes    from sample_gather.comp
//   sums                from sample_sums.comp
//   and the arguments of finish.glsl
//
// The random number is a function of seed and position (Philox 4x32-10), so that a text does not
// depend on what was generated before. It picks from the kept tokens in the order of their ids.
//
// One subgroup. Its lanes take neighbouring blocks, in two passes: the first sums all weights, the
// second finds the block in which the drawn part of the sum lies. One lane then searches that block.

layout(local_size_x_id = 0) in;

#include "sampling.glsl"
#include "subgroup.glsl"
#include "cut.glsl"
#include "finish.glsl"

layout(binding = 4) readonly buffer Keys { uint keys[]; };
layout(binding = 5) readonly buffer Sizes { uint sizes[]; };
layout(binding = 6) readonly buffer Sums { uint sums[]; };
layout(binding = 7) readonly buffer Ids { uint ids[]; };

uvec4 philox(uvec4 counter, uvec2 key) {
    for (uint round = 0u; round < 10u; ++round) {
        uvec2 a = times(0xD2511F53u, counter.x), b = times(0xCD9E8D57u, counter.z);
        counter = uvec4(b.y ^ counter.y ^ key.x, b.x, a.y ^ counter.w ^ key.y, a.x);
        key += uvec2(0x9E3779B9u, 0xBB67AE85u);
    }
    return counter;
}

// The upper 64 bits of the product of two 64-bit numbers.
uvec2 upper(uvec2 a, uvec2 b) {
    uvec2 low = times(a.x, b.x);
    uvec2 middle = plus(times(a.x, b.y), uvec2(low.y, 0u));
    uvec2 other = plus(times(a.y, b.x), uvec2(middle.x, 0u));
    return plus(plus(times(a.y, b.y), uvec2(middle.y, 0u)), uvec2(other.y, 0u));
}

struct Share { uvec2 weight; uint ties_before; };

// The weight that is kept of this lane's block. Blocks before the subgroup's hold `ties` tokens at the
// cut; adds those of the subgroup's blocks.
Share share_of(uint block, inout uint ties, uint weight_of_tie) {
    uvec2 sum = uvec2(0u);
    uint own = 0u;
    if (block < BLOCKS) {
        sum = uvec2(sums[3u * block], sums[3u * block + 1u]);
        own = sums[3u * block + 2u];
    }
    uint before = ties + subgroupExclusiveAdd(own);
    uint kept = before < kept_ties ? min(own, kept_ties - before) : 0u;
    ties += subgroupAdd(own);
    return Share(plus(sum, times(kept, weight_of_tie)), before);
}

uint token_in(uint block, uvec2 left, uint ties) {
    uint size = sizes[block], last = 0u;
    for (uint i = 0u; i < size; ++i) {
        uint key = keys[block * SPAN + i];
        bool kept = key > cut || (key == cut && ties < kept_ties);
        ties += uint(key == cut);
        uint weight = kept ? weight_above_min_p(key) : 0u;
        if (weight > 0u) {
            last = ids[block * SPAN + i];
            if (less(left, uvec2(weight, 0u))) return last;
            left = minus(left, uvec2(weight, 0u));
        }
    }
    return last;
}

void main() {
    if (gl_SubgroupID != 0u) return;
    find_cut();
    uint lane = gl_SubgroupInvocationID, lanes = gl_SubgroupSize;
    uint weight_of_tie = weight_above_min_p(cut);
    uvec2 total = uvec2(0u);
    uint ties = 0u;
    for (uint start = 0u; start < BLOCKS; start += lanes) {
        total = plus(total, subgroup_sum(share_of(start + lane, ties, weight_of_tie).weight));
    }
    uvec4 random = philox(uvec4(next_position(), 0u, 0u, 0u),
                          uvec2(settings[SEED], settings[SEED + 1u]));
    uvec2 left = upper(random.xy, total);

    uint block = 0u, ties_before = 0u;
    bool found = false;
    ties = 0u;
    for (uint start = 0u; start < BLOCKS && !found; start += lanes) {
        Share share = share_of(start + lane, ties, weight_of_tie);
        uvec2 all = subgroup_sum(share.weight);
        if (!less(left, all)) {
            left = minus(left, all);
            continue;
        }
        for (uint other = 0u; other < lanes && !found; ++other) {
            uvec2 its = uvec2(subgroupShuffle(share.weight.x, other),
                              subgroupShuffle(share.weight.y, other));
            if (less(left, its)) {
                found = true;
                block = start + other;
                ties_before = subgroupShuffle(share.ties_before, other);
            } else {
                left = minus(left, its);
            }
        }
    }
    if (subgroupElect()) finish(control[PEAK], token_in(block, left, ties_before));
}
