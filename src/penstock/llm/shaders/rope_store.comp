// Rotates queries and keys by their positions, and puts keys and values into the cache.
//
//   q             float32 (count, HEADS * HEAD_SIZE); rotated into q_out, of the same shape
//   k, v          float32 (count, KV_HEADS * HEAD_SIZE)
//   angles        float32 (context, ROPE_DIMS / 2, 2): cosine and sine for each position and pair
//   state         its word POSITION is the position of token 0
//   keys, values  the planes of the cache, rows of KV_HEADS * HEAD_SIZE: token t goes to row
//                 position + t, and nowhere if the context has no such row. float32, or with
//                 HALVES float16 in pairs, as bits in words
//   q_words,      with NORMS: weights of an RMSNorm over each head before it is rotated, from
//   k_words       byte q_first and k_first on; see vector.glsl
//
// ADJACENT: a pair is elements 2i and 2i + 1; else i and i + ROPE_DIMS / 2. Elements of a head from
// ROPE_DIMS on are not rotated. SMALL: there is one token.
//
// A workgroup for each token and head of q, of k and of v: groups (HEADS + 2 * KV_HEADS, count). Its
// invocations take every so many-th two neighbours of the head, which are one word of HALVES.

layout(local_size_x_id = 0) in;

#include "group.glsl"
#include "input.glsl"

INPUT(0, Q, q, HEADS * HEAD_SIZE);
INPUT(1, K, k, KV_HEADS * HEAD_SIZE);
INPUT(2, V, v, KV_HEADS * HEAD_SIZE);
layout(binding = 3) readonly buffer Angles { float angles[]; };
layout(binding = 4) readonly buffer State { uint state[]; };
layout(binding = 5) writeonly buffer Rotated { float q_out[]; };
struct Word { uint bits; };  // says nothing of the dtype of the plane
layout(binding = 6) writeonly buffer Keys { Word keys[]; };
layout(binding = 7) writeonly buffer Values { Word values[]; };
#ifdef NORMS
#include "vector.glsl"
VECTOR(8, QNorm, q_words, q_weight)
VECTOR(9, KNorm, k_words, k_weight)
#endif
layout(push_constant) uniform Arguments {
    uint context;
#ifdef NORMS
    uint q_first;
    uint k_first;
    float eps;
#endif
};

const uint OF_Q = 0u, OF_K = 1u, OF_V = 2u;

uint part;      // OF_Q, OF_K or OF_V
uint from;      // where the head begins in its array
uint row;       // of angles
float scale;    // of the norm

float source(uint i) { return part == OF_Q ? q[from + i] : part == OF_K ? k[from + i] : v[from + i]; }

float normed(uint i) {
#ifdef NORMS
    return source(i) * scale * (part == OF_Q ? q_weight(q_first, i) : k_weight(k_first, i));
#else
    return source(i);
#endif
}

float rotated(uint i) {
    if (i >= uint(ROPE_DIMS)) return normed(i);
#ifdef ADJACENT
    bool first_of_pair = i % 2u == 0u;
    uint pair = i / 2u, other = i ^ 1u;
#else
    uint half_size = uint(ROPE_DIMS) / 2u;
    bool first_of_pair = i < half_size;
    uint pair = first_of_pair ? i : i - half_size;
    uint other = first_of_pair ? i + half_size : i - half_size;
#endif
    uint at = (row * (uint(ROPE_DIMS) / 2u) + pair) * 2u;
    float sine = first_of_pair ? -angles[at + 1u] : angles[at + 1u];
    return normed(i) * angles[at] + normed(other) * sine;
}

void main() {
    uint lane = gl_LocalInvocationID.x, lanes = gl_WorkGroupSize.x;
    uint head = gl_WorkGroupID.x, token = gl_WorkGroupID.y;
    uint position = state[POSITION] + token;
    row = min(position, context - 1u);

    part = head < uint(HEADS) ? OF_Q : head < uint(HEADS + KV_HEADS) ? OF_K : OF_V;
    uint heads = part == OF_Q ? uint(HEADS) : uint(KV_HEADS);
    if (part != OF_Q) head -= part == OF_K ? uint(HEADS) : uint(HEADS + KV_HEADS);
    from = (token * heads + head) * uint(HEAD_SIZE);

#ifdef NORMS
    float squares = 0.0;
    if (part != OF_V) {
        for (uint i = lane; i < uint(HEAD_SIZE); i += lanes) {
            float value = source(i);
            squares += value * value;
        }
    }
    scale = 1.0 / sqrt(group_sum(squares) / float(HEAD_SIZE) + eps);
#endif

    if (part != OF_Q && position >= context) return;
    uint to = (position * uint(KV_HEADS) + head) * uint(HEAD_SIZE);
    for (uint i = 2u * lane; i < uint(HEAD_SIZE); i += 2u * lanes) {
        vec2 two = part == OF_V ? vec2(source(i), source(i + 1u)) : vec2(rotated(i), rotated(i + 1u));
        if (part == OF_Q) {
            q_out[from + i] = two.x;
            q_out[from + i + 1u] = two.y;
            continue;
        }
#ifdef HALVES
        uint at = (to + i) / 2u, bits = packHalf2x16(two);
        if (part == OF_K) keys[at].bits = bits;
        else values[at].bits = bits;
#else
        uvec2 bits = floatBitsToUint(two);
        if (part == OF_K) {
            keys[to + i].bits = bits.x;
            keys[to + i + 1u].bits = bits.y;
        } else {
            values[to + i].bits = bits.x;
            values[to + i + 1u].bits = bits.y;
        }
#endif
    }
}
