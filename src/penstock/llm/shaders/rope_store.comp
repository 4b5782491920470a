// Rotates queries and keys by their positions, and appends keys and values to the KV cache.
//
//   q             float32 (count, HEADS * HEAD_SIZE); rotated into q_out, of the same shape. With
//                 GATED each head of q is followed by as many numbers that are not used here
//   k, v          float32 (count, KV_HEADS * HEAD_SIZE)
//   angles        float32 (context, ROPE_DIMS / 2, 2): cosine and sine for each position and pair
//   state         its word POSITION is the position of token 0
//   keys, values  the planes of the cache, rows of KV_HEADS * HEAD_SIZE: token t goes to row
//                 position + t, and is dropped if the context has no such row. float32, or with
//                 HALVES pairs of float16 packed in words, or with BYTES signed bytes and their
//                 factors: see cache.glsl
//   q_words,      with NORMS: weights of an RMSNorm over each head before it is rotated, from
//   k_words       byte q_first and k_first on; see vector.glsl. `shift` is added to each
//
// ADJACENT: a pair is elements 2i and 2i + 1; else i and i + ROPE_DIMS / 2. Elements of a head from
// ROPE_DIMS on are not rotated. SMALL: there is one token.
//
// A workgroup for each token and head of q, of k and of v: groups (HEADS + 2 * KV_HEADS, count).
// Pairs of neighbours, which are one word of HALVES, are dealt out to its invocations in turn. An
// invocation also takes the partners in the rotation, so that no weight or angle is loaded twice.
//
// With BYTES an invocation takes four neighbours of k or v, which are one word, and eight invocations
// the 32 elements of a factor: a 127th of their largest magnitude, rounded up to a float16, so that no
// quotient exceeds 127. An element is off by at most half the factor. With LONE a subgroup has at least
// 8 lanes, else a workgroup has an invocation for each word of a head.

layout(local_size_x_id = 0) in;

#include "group.glsl"
#include "input.glsl"
#if defined(BYTES) && defined(LONE)
#extension GL_KHR_shader_subgroup_shuffle : require
#endif

#ifdef GATED
#define QUERY_STEP (2 * HEAD_SIZE)
#else
#define QUERY_STEP HEAD_SIZE
#endif

INPUT(0, Q, q, HEADS * QUERY_STEP);
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
    float shift;
#endif
};

uint from;      // where the head begins in its array
uint turned;    // where it begins in q_out
uint to;        // where it begins in a plane
uint row;       // row of `angles`
float scale;    // 1 / root mean square, if NORMS

#ifdef NORMS
float q_at(uint i) { return q[from + i] * scale * (q_weight(q_first, i) + shift); }
float k_at(uint i) { return k[from + i] * scale * (k_weight(k_first, i) + shift); }
#else
float q_at(uint i) { return q[from + i]; }
float k_at(uint i) { return k[from + i]; }
#endif
float v_at(uint i) { return v[from + i]; }

void put_q(uint i, vec2 two) {
    q_out[turned + i] = two.x;
    q_out[turned + i + 1u] = two.y;
}

#if defined(BYTES)
#define PUT(plane, i, two)  // words of four: see below
#elif defined(HALVES)
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

#ifdef BYTES

// Element i of a key, rotated.
float turned_k(uint i) {
#ifdef ADJACENT
    vec2 turn = angle(min(i, uint(ROPE_DIMS - 1)) / 2u);
    float other = k_at(i ^ 1u) * (i % 2u == 0u ? -turn.y : turn.y);
#else
    const uint HALF = uint(ROPE_DIMS / 2);
    bool early = i < HALF;
    vec2 turn = angle(min(early ? i : i - HALF, HALF - 1u));
    float other = k_at(early ? i + HALF : i - HALF) * (early ? -turn.y : turn.y);
#endif
    return i < uint(ROPE_DIMS) ? k_at(i) * turn.x + other : k_at(i);
}

vec4 four_k(uint i) { return vec4(turned_k(i), turned_k(i + 1u), turned_k(i + 2u), turned_k(i + 3u)); }
vec4 four_v(uint i) { return vec4(v_at(i), v_at(i + 1u), v_at(i + 2u), v_at(i + 3u)); }

#include "largest.glsl"

// The factor of 32 elements, as a float16: never less than a 127th of the largest. NaN if one of them is
// not finite.
uint factor_of(float peak) {
    if (!is_finite(peak)) return 0x7E00u;
    float exact = peak / 127.0;
    uint bits = packHalf2x16(vec2(exact, 0.0));
    if (unpackHalf2x16(bits).x < exact) ++bits;
    return min(bits, 0x7BFFu);
}

uint rounded(vec4 four, uint factor) {
    float unit = unpackHalf2x16(factor).x;
    vec4 quotients = unit > 0.0 ? four / unit : vec4(0.0);
    uvec4 bytes = uvec4(ivec4(roundEven(clamp(quotients, -127.0, 127.0)))) & 0xFFu;
    return bytes.x | bytes.y << 8 | bytes.z << 16 | bytes.w << 24;
}

#define WORDS uint(HEAD_SIZE / 4)
#define WORD_AT (row * uint(ROW_WORDS) + head * WORDS)
#define FACTOR_AT (row * uint(ROW_WORDS) + uint(KV_HEADS) * WORDS + head * uint(SCALE_WORDS))

#ifdef LONE

float largest_of_eight(float value) {
    value = max(value, subgroupShuffleXor(value, 1u));
    value = max(value, subgroupShuffleXor(value, 2u));
    return max(value, subgroupShuffleXor(value, 4u));
}

// Two blocks at a time, because their factors share a word. The second may not exist.
#define STORE(four_at, plane, stores)                                                 \
    for (uint pair = 0u; pair < ((stores) ? uint(SCALE_WORDS) : 0u); ++pair) {        \
        uint first = pair * 16u + lane % 8u, second = min(first + 8u, WORDS - 8u + lane % 8u); \
        vec4 a = four_at(4u * first), b = four_at(4u * second);                       \
        uint a_factor = factor_of(largest_of_eight(largest(a)));                      \
        uint b_factor = factor_of(largest_of_eight(largest(b)));                      \
        if (lane < 8u) {                                                              \
            plane[WORD_AT + first].bits = rounded(a, a_factor);                       \
            if (second > first) plane[WORD_AT + second].bits = rounded(b, b_factor);  \
        }                                                                             \
        if (lane == 0u) plane[FACTOR_AT + pair].bits = a_factor | b_factor << 16;     \
    }

#else

shared float peaks[gl_WorkGroupSize.x];

float largest_of_block(uint first) {
    float found = 0.0;
    for (uint i = 0u; i < 8u; ++i) found = max(found, peaks[first + i]);
    return found;
}

// All invocations call; those of other heads store nothing.
#define STORE(four_at, plane, stores)                                                 \
    {                                                                                 \
        vec4 four = (stores) && lane < WORDS ? four_at(4u * lane) : vec4(0.0);        \
        barrier();                                                                    \
        peaks[lane] = largest(four);                                                  \
        barrier();                                                                    \
        if ((stores) && lane < WORDS) {                                               \
            uint factor = factor_of(largest_of_block(lane & ~7u));                    \
            plane[WORD_AT + lane].bits = rounded(four, factor);                       \
            if (lane % 16u == 0u) {                                                   \
                uint next = lane + 8u < WORDS ? factor_of(largest_of_block(lane + 8u)) : 0u; \
                plane[FACTOR_AT + lane / 16u].bits = factor | next << 16;             \
            }                                                                         \
        }                                                                             \
    }

#endif
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
    turned = (token * heads + head) * uint(HEAD_SIZE);
    from = of_q ? (token * heads + head) * uint(QUERY_STEP) : turned;
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
#ifdef BYTES
    STORE(four_k, keys, of_k)
    STORE(four_v, values, of_v)
#else
    TURN(k_at, put_k, of_k ? uint(ROPE_DIMS) : 0u)
    COPY(k_at, put_k, uint(ROPE_DIMS), of_k ? uint(HEAD_SIZE) : 0u)
    COPY(v_at, put_v, 0u, of_v ? uint(HEAD_SIZE) : 0u)
#endif
}
