// How the tokens of a chunk of a gated DeltaNet layer act on each other: the products of their keys, and
// of queries and keys, times what is left of the state in between.
//
//   qk        float32 (count, 2 * KEYS): normalised queries and keys, from quad `qk_first` on
//   factors   see delta_factors.comp
//   pairs     float32 (VALUE_HEADS, count, 2, CHUNK): for token t of a chunk and its token s, key of t
//             times key of s, if s is before t; then query of t times key of s, if s is not after t; else 0
//
// An invocation for each token and token of its chunk: groups (count * CHUNK invocations, KEY_HEADS).

#extension GL_EXT_control_flow_attributes : require

layout(local_size_x_id = 0) in;

#include "quads.glsl"
#include "delta.glsl"

QUADS(0, Keys, qk, load_qk)
layout(binding = 1) readonly buffer Factors { float factors[]; };
layout(binding = 2) writeonly buffer Pairs { float pairs[]; };
layout(push_constant) uniform Arguments { uint count; uint qk_first; };

void main() {
    uint token = gl_GlobalInvocationID.x / uint(CHUNK), other = gl_GlobalInvocationID.x % uint(CHUNK);
    uint key_head = gl_WorkGroupID.y;
    if (token >= count) return;
    uint place = token % uint(CHUNK);
    uint source = token - place + min(other, place);

    const uint row = uint(2 * KEYS / 4);
    uint query = qk_first + token * row + key_head * uint(KEY_QUADS);
    uint key = query + uint(KEYS / 4);
    uint earlier = qk_first + source * row + uint(KEYS / 4) + key_head * uint(KEY_QUADS);
    float of_keys = 0.0, of_query = 0.0;
    [[dont_unroll]] for (uint i = 0u; i < uint(KEY_QUADS); ++i) {
        vec4 theirs = load_qk(earlier + i);
        of_keys += dot(load_qk(key + i), theirs);
        of_query += dot(load_qk(query + i), theirs);
    }
    for (uint n = 0u; n < uint(SHARE); ++n) {
#ifdef TILED
        uint head = n * uint(KEY_HEADS) + key_head;
#else
        uint head = key_head * uint(SHARE) + n;
#endif
        uint at = 4u * head + 3u;
        float left = exp(factors[4u * token * uint(VALUE_HEADS) + at]
                         - factors[4u * source * uint(VALUE_HEADS) + at]);
        uint to = (head * count + token) * uint(2 * CHUNK) + other;
        pairs[to] = other < place ? left * of_keys : 0.0;
        pairs[to + uint(CHUNK)] = other <= place ? left * of_query : 0.0;
    }
}
