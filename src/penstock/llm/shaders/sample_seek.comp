// Advances a cursor by a digit, from the histogram of that digit.
//
//   settings, control, histograms   see sampling.glsl; region `region`
//
// Advances the cursor at word `by` if it is looking for `digit`. When the top-k cursor is done, top-p
// takes its share of what top-k kept; without top-k, of everything.
//
// One subgroup; its lanes take neighbouring bins, from the highest on.

layout(local_size_x_id = 0) in;

#include "sampling.glsl"
#include "subgroup.glsl"

layout(binding = 0) readonly buffer Settings { uint settings[]; };
layout(binding = 1) buffer Control { uint control[]; };
layout(binding = 2) readonly buffer Histograms { uint histograms[]; };
layout(push_constant) uniform Arguments { uint by; uint digit; uint region; };

struct Bin { uint tokens; uvec2 weight; };

Bin bin_of(uint number) {
    Bin bin = Bin(0u, uvec2(0u));
    for (uint copy = 0u; copy < COPIES; ++copy) {
        uint at = ((region * COPIES + copy) * BINS + number) * 3u;
        bin.tokens += histograms[at];
        bin.weight = plus(bin.weight, uvec2(histograms[at + 1u], histograms[at + 2u]));
    }
    return bin;
}

// The amount that is compared with LEFT: tokens for top-k, weight for top-p.
uvec2 measure(uint kind, Bin bin) {
    return kind == BY_NUMBER ? uvec2(bin.tokens, 0u) : bin.weight;
}

// The state of a search; `there` is true if it succeeded.
struct Cursor { bool there; uint key; uvec2 left; uvec2 above; };

// Finds the bin in which `left` runs out, searching downwards from bin `from`.
Cursor seek(Cursor cursor, uint kind, uint place, uint from) {
    uint lane = gl_SubgroupInvocationID, lanes = gl_SubgroupSize;
    cursor.there = false;
    for (uint start = 0u; start <= from && !cursor.there; start += lanes) {
        Bin bin = Bin(0u, uvec2(0u));
        if (start + lane <= from) bin = bin_of(from - start - lane);
        uvec2 size = measure(kind, bin);
        uvec2 all = subgroup_sum(size), all_weight = subgroup_sum(bin.weight);
        if (less(all, cursor.left)) {
            cursor.left = minus(cursor.left, all);
            cursor.above = plus(cursor.above, all_weight);
            continue;
        }
        for (uint other = 0u; other < lanes && !cursor.there; ++other) {
            uvec2 its = uvec2(subgroupShuffle(size.x, other), subgroupShuffle(size.y, other));
            uvec2 weight = uvec2(subgroupShuffle(bin.weight.x, other),
                                 subgroupShuffle(bin.weight.y, other));
            if (less(its, cursor.left)) {
                cursor.left = minus(cursor.left, its);
                cursor.above = plus(cursor.above, weight);
            } else {
                cursor.there = true;
                cursor.key |= (from - start - other) << shift_of(place);
            }
        }
    }
    return cursor;
}

// If `left` runs out in no bin, all tokens are kept; the cursor is then marked as not wanted.
void store(uint at, Cursor cursor, uint depth) {
    control[at + DEPTH] = cursor.there ? depth : 0u;
    control[at + KEY] = cursor.key;
    control[at + LEFT] = cursor.left.x;
    control[at + LEFT + 1u] = cursor.left.y;
    control[at + ABOVE] = cursor.above.x;
    control[at + ABOVE + 1u] = cursor.above.y;
}

// The weight that top-p keeps, of `total`: the product rounded up, and at least the best token.
uvec2 share_of(uvec2 total) {
    uint share = settings[TOP_P];
    uvec2 low = times(total.x, share);
    uvec2 kept = plus(times(total.y, share), uvec2(low.y, 0u));
    if (low.x != 0u) kept = plus(kept, uvec2(1u, 0u));
    return kept == uvec2(0u) ? uvec2(1u, 0u) : kept;
}

void main() {
    if (gl_SubgroupID != 0u || control[by + DEPTH] != 1u + digit) return;
    Cursor cursor;
    cursor.key = control[by + KEY];
    cursor.left = uvec2(control[by + LEFT], control[by + LEFT + 1u]);
    cursor.above = uvec2(control[by + ABOVE], control[by + ABOVE + 1u]);
    float inverse_temperature = uintBitsToFloat(settings[INVERSE_TEMPERATURE]);
    uint peak = control[PEAK];
    if (by == BY_WEIGHT && digit == 0u && control[BY_NUMBER + DEPTH] == 0u) {
        uvec2 total = uvec2(0u);
        for (uint bin = gl_SubgroupInvocationID; bin < BINS; bin += gl_SubgroupSize) {
            total = plus(total, bin_of(bin).weight);
        }
        cursor.left = share_of(subgroup_sum(total));
    }
    cursor = seek(cursor, by, digit, bins_of(digit) - 1u);
    if (!subgroupElect()) return;
    store(by, cursor, 2u + digit);
    if (by == BY_NUMBER && !cursor.there) {
        // Fewer than k tokens have any weight: all are kept, and top-p takes its share of them.
        control[BY_WEIGHT + DEPTH] = uint(settings[TOP_P] != ~0u);
        return;
    }
    if (digit != DIGITS - 1u) return;
    uint weight = weight_of(depth_of(cursor.key, peak, inverse_temperature));
    if (by == BY_NUMBER) {
        control[by + TIES] = cursor.left.x;
        control[BY_WEIGHT + DEPTH] = uint(settings[TOP_P] != ~0u);
        uvec2 share = share_of(plus(cursor.above, times(cursor.left.x, weight)));
        control[BY_WEIGHT + LEFT] = share.x;
        control[BY_WEIGHT + LEFT + 1u] = share.y;
    } else {
        // The fewest ties whose weight is at least what is left.
        uint ties = 0u;
        for (uint bit = 1u << 31; bit != 0u; bit >>= 1) {
            if (less(times((ties | bit) - 1u, weight), cursor.left)) ties |= bit;
        }
        control[by + TIES] = ties;
    }
}

