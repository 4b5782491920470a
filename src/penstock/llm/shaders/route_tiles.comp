// Brings the tokens that take the same expert together, in tiles of up to `tile` (see share.glsl).
//
//   chosen    uint32[pairs]: the expert of each pair of a token and a choice
//   tiles     uint32[pairs / tile + experts, 3]
//   sources   uint32[pairs]: by row, in the order of experts, the token
//   places    uint32[pairs]: by pair, its row
//
// An invocation for each expert. The expert before whose rows come `first` others writes the tiles
// from first / tile + expert on, up to those of the next expert. It fills all of them but two at most,
// which are empty. So no invocation needs to know how many tiles the others take.

layout(local_size_x_id = 0) in;

layout(binding = 0) readonly buffer Chosen { uint chosen[]; };
layout(binding = 1) writeonly buffer Tiles { uint tiles[]; };
layout(binding = 2) writeonly buffer Sources { uint sources[]; };
layout(binding = 3) writeonly buffer Places { uint places[]; };
layout(push_constant) uniform Arguments { uint experts; uint choices; uint pairs; uint tile; };

void main() {
    uint expert = gl_GlobalInvocationID.x;
    if (expert >= experts) return;
    uint first = 0u, rows = 0u, count = pairs;
    for (uint pair = 0u; pair < count; ++pair) {
        uint one = chosen[pair];
        first += uint(one < expert);
        rows += uint(one == expert);
    }

    uint end = first + rows, next = end / tile + expert + 1u;
    uint from = first;
    for (uint slot = first / tile + expert; slot < next; ++slot) {
        uint to = min(from + tile, end);
        tiles[3u * slot] = expert;
        tiles[3u * slot + 1u] = from;
        tiles[3u * slot + 2u] = to;
        from = to;
    }

    uint row = first;
    if (rows > 0u) {
        for (uint pair = 0u; pair < count; ++pair) {
            if (chosen[pair] == expert) {
                sources[row] = pair / choices;
                places[pair] = row;
                ++row;
            }
        }
    }
}
