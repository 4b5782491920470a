// Rotates queries and keys by their positions, and appends keys and values to the KV cache.
//
//   q             float32 (count, HEADS * HEAD_SIZE); rotated into q_out, of the same shape
//   k, v          float32 (count, KV_HEADS * HEAD_SIZE)
//   angles        float32 (context, ROPE_DIMS / 2, 2): cosine and sine for each position and pair
//   state         its word POSITION is the position of token 0
//   keys, values  the planes of the cache, rows of KV_HEADS * HEAD_SIZE: token t goes to row
//                 position + t, and is dropped if the context has no such row. float32, or with
//                 HALVES pairs of float16 packed in words
//   q_words,      with NORMS: weights of an RMSNorm over each head before it is rotated, from
//   k_words       byte q_first and k_first on; see vector.glsl
//
// ADJACENT: a pair is elements 2i and 2i + 1; else i and i + ROPE_DIMS / 2. Elements of a head from
// ROPE_DIMS on are not rotated. SMALL: there is one token.
//
// A workgroup for each token and head of q, of k and of v: groups (HEADS + 2 * KV_HEADS, count).
// Pairs of neighbours, which are one word of HALVES, are dealt out to its invocations in turn. An
// invocation also takes the partners in the rotation, so that no weight or angle is loaded twice.

layout(local_size_x_id = 0) in;

#include "group.glsl"
#include "input.glsl"

INPUT(0, Q, q, HEADS * HEAD_SIZE);
INPUT(1, K, k, KV_HEADS * HEAD_SIZE);
INPUT(2, V, v, KV_HEADS * HEAD_SIZE);
layout(binding = 3) readonly buffer Angles { float angles[]; };
layout(binding = 4) readonly buffer State { uint state[]; };
layout(binding = 5) writeonly buffer Rotated { float q_out[]; };
struct Word { uint bits; };  // leaves the dtype of the plane open
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

uint from;      // where the head begins in its array
uint to;        // where it begins in a plane
uint row;       // row of `angles`
float scale;    // 1 / root mean square, if NORMS

#ifdef NORMS
float q_at(uint i) { return q[from + i] * scale * q_weight(q_first, i); }
float k_at(uint i) { return k[from + i] * scale * k_weight(k_first, i); }
#else
float q_at(uint i) { return q[from + i]; }
float k_at(uint i) { return k[from + i]; }
#endif
float v_at(uint i) { return v[from + i]; }

void put_q(uint i, vec2 two) {
    q_out[from + i] = two.x;
    q_out[from + i + 1u] = two.y;
}

#ifdef HALVES
#define PUT(plane, i, two) plane[(to + i) / 2u].bits = packHalf2x16(two)
#else
#define PUT(plane, i, two)                                                            \
    plane[to + i].bits = floatBitsToUint(two.x);                                      \
    plane[to + i + 1u].bits = floatBitsToUint(two.y)
#endif
void put_k(uint i, vec2 two) { PUT(keys, i, two); }
void put_v(uint i, vec2 two) { PUT(values, i, two); }

// Cosine and sine.
vec2 angle(uint pair) {
    uint at = (row * uint(ROPE_DIMS / 2) + pair) * 2u;
    return vec2(angles[at], angles[at + 1u]);
}

// A loop over the head, from one source to its destination. CPU drivers skip a loop of no iterations,
// but execute both sides of a branch; so a workgroup whose head is of another kind gets an end of 0.

#define COPY(at, put, start, end)                                                     \
    for (uint i = (start) + 2u * lane; i < (end); i += 2u * lanes) put(i, vec2(at(i), at(i + 1u)));

#if defined(ADJACENT)
#define TURN(at, put, end)                                                            \
    for (uint i = 2u * lane; i < (end); i += 2u * lanes) {                            \
        vec2 two = vec2(at(i), at(i + 1u)), turn = angle(i / 2u);                     \
        put(i, vec2(two.x * turn.x - two.y * turn.y, two.y * turn.x + two.x * turn.y)); \
    }
#elif ROPE_DIMS % 4 == 0
#define TURN(at, put, end)                                                            \
    for (uint i = 2u * lane; i < (end) / 2u; i += 2u * lanes) {                       \
        uint other = i + uint(ROPE_DIMS / 2);                                         \
        vec2 two = vec2(at(i), at(i + 1u)), others = vec2(at(other), at(other + 1u)); \
        vec2 one = angle(i), next = angle(i + 1u);                                    \
        vec2 cosines = vec2(one.x, next.x), sines = vec2(one.y, next.y);              \
        put(i, two * cosines - others * sines);                                       \
        put(other, others * cosines + two * sines);                                   \
    }
#else
// ROPE_DIMS / 2 is odd, so a word may hold one element of each half.
#define TURNED(at, i)                                                                 \
    (i < uint(ROPE_DIMS / 2)                                                          \
        ? at(i) * angle(i).x - at(i + uint(ROPE_DIMS / 2)) * angle(i).y               \
        : at(i) * angle(i - uint(ROPE_DIMS / 2)).x                                    \
            + at(i - uint(ROPE_DIMS / 2)) * angle(i - uint(ROPE_DIMS / 2)).y)
#define TURN(at, put, end)                                                            \
    for (uint i = 2u * lane; i < (end); i += 2u * lanes) {                            \
        put(i, vec2(TURNED(at, i), TURNED(at, (i + 1u))));                            \
    }
#endif

#define SQUARES(source, end)                                                          \
    for (uint i = lane; i < (end); i += lanes) squares += source[from + i] * source[from + i];

void main() {
    uint lane = gl_LocalInvocationID.x, lanes = gl_WorkGroupSize.x;
    uint head = gl_WorkGroupID.x, token = gl_WorkGroupID.y;
    uint position = state[POSITION] + token;
    row = min(position, context - 1u);

    bool of_q = head < uint(HEADS), of_v = head >= uint(HEADS + KV_HEADS), of_k = !of_q && !of_v;
    uint heads = of_q ? uint(HEADS) : uint(KV_HEADS);
    head -= of_q ? 0u : of_k ? uint(HEADS) : uint(HEADS + KV_HEADS);
    from = (token * heads + head) * uint(HEAD_SIZE);
    to = (row * uint(KV_HEADS) + head) * uint(HEAD_SIZE);

#ifdef NORMS
    float squares = 0.0;
    SQUARES(q, of_q ? uint(HEAD_SIZE) : 0u)
    SQUARES(k, of_k ? uint(HEAD_SIZE) : 0u)
    scale = 1.0 / sqrt(group_sum(squares) / float(HEAD_SIZE) + eps);
#endif

    // Keys and values of a token beyond the context are dropped.
    bool fits = position < context;
    of_k = of_k && fits;
    of_v = of_v && fits;
    TURN(q_at, put_q, of_q ? uint(ROPE_DIMS) : 0u)
    COPY(q_at, put_q, uint(ROPE_DIMS), of_q ? uint(HEAD_SIZE) : 0u)
    TURN(k_at, put_k, of_k ? uint(ROPE_DIMS) : 0u)
    COPY(k_at, put_k, uint(ROPE_DIMS), of_k ? uint(HEAD_SIZE) : 0u)
    COPY(v_at, put_v, 0u, of_v ? uint(HEAD_SIZE) : 0u)
}
