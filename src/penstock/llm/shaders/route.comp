// Chooses the experts of each token: those for which the router's product is largest.
//
// A softmax over the products of all experts gives their shares. Of equal products the one of the
// lower number is chosen first; NaN counts as the smallest. So whatever the numbers are, the experts
// of a token exist and differ.
//
//   logits      float32[tokens, experts]: the router's products
//   chosen      uint32[tokens, choices]
//   shares      float32[tokens, choices]; with `normalized` 1 they are divided by their sum
//   tiles, sources, places
//               see share.glsl and route_tiles.comp. Here each token is a tile of its own for each
//               expert that it takes; with GROUPED route_tiles.comp writes them instead
//
// Groups: one for each token. Its lanes share the experts.

layout(local_size_x_id = 0) in;

#include "group.glsl"

layout(binding = 0) readonly buffer Logits { float logits[]; };
layout(binding = 1) writeonly buffer Chosen { uint chosen[]; };
layout(binding = 2) buffer Shares { float shares[]; };
#ifndef GROUPED
layout(binding = 3) writeonly buffer Tiles { uint tiles[]; };
layout(binding = 4) writeonly buffer Sources { uint sources[]; };
layout(binding = 5) writeonly buffer Places { uint places[]; };
#endif
layout(push_constant) uniform Arguments { uint experts; uint choices; uint normalized; };

#define LEAST uintBitsToFloat(0xFF800000u)

float number_of(uint expert) {
    float value = logits[gl_WorkGroupID.x * experts + expert];
    bool is_nan = (floatBitsToUint(value) & 0x7FFFFFFFu) > 0x7F800000u;
    return is_nan ? LEAST : value;
}

void main() {
    uint lane = gl_LocalInvocationID.x, lanes = gl_WorkGroupSize.x;
    uint token = gl_WorkGroupID.x, first = token * choices;
    float last = -LEAST, peak = 0.0, total = 0.0;
    int last_expert = -1;
    for (uint choice = 0u; choice < choices; ++choice) {
        // The largest of what comes after the last choice, in the order of products, then of numbers.
        float best = LEAST;
        uint found = experts;
        for (uint expert = lane; expert < experts; expert += lanes) {
            float value = number_of(expert);
            bool left = value < last || (value == last && int(expert) > last_expert);
            if (left && (found == experts || value > best)) {
                best = value;
                found = expert;
            }
        }
        float largest = group_max(best);
        bool is_largest = found < experts && best == largest;
        uint expert = experts - uint(group_max(is_largest ? float(experts - found) : 0.0));
        last = largest;
        last_expert = int(expert);
        if (choice == 0u) peak = largest;
        float share = exp(largest - peak);
        total += share;
        if (choice % lanes == lane) {
            uint at = first + choice;
            chosen[at] = expert;
            shares[at] = share;
#ifndef GROUPED
            tiles[3u * at] = expert;
            tiles[3u * at + 1u] = at;
            tiles[3u * at + 2u] = at + 1u;
            sources[at] = token;
            places[at] = at;
#endif
        }
    }
    if (normalized == 0u) {
        float mine = 0.0;
        for (uint expert = lane; expert < experts; expert += lanes)
            mine += exp(number_of(expert) - peak);
        total = group_sum(mine);
    }
    for (uint choice = lane; choice < choices; choice += lanes) shares[first + choice] /= total;
}
