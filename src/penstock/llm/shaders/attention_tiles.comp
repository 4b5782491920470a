// Causal attention of several tokens for GPUs: tiles of queries and rows meet in shared memory.
//
//   q             float32 (tokens, HEADS * HEAD_SIZE), rotated
//   keys, values  the planes of the KV cache: with HALVES float16, with BYTES signed bytes and their
//                 factors, else float32; see cache.glsl
//   state         its word POSITION is the position of token 0 of the batch
//   y             float32 (tokens, HEADS * HEAD_SIZE)
//   parts, ends   with SPLIT instead of y; see attention_join.comp
//
// Token t looks at rows 0 .. position + t, at most `context` rows.
//
// Groups (tiles of queries, KV_HEADS, shares of the rows), of 128 invocations. The queries of a key head are those
// of its heads of all tokens, token by token; a tile has 32 of them. The workgroup goes through its
// share of the rows in blocks of 32, so that each load from the cache serves 32 queries:
//
//   1. Keys and queries go to shared memory, 8 quads of the head at a time. An invocation computes the
//      scores of 2 rows and 4 queries, and stores them.
//   2. Four invocations turn the 32 scores of a query into weights. Maximum and sum are kept online.
//   3. Values go to shared memory, VALUE_ROWS rows at a time. An invocation adds QUADS_EACH quads of the head
//      to the sums of 4 queries, which it keeps in registers.
//
// Shared memory has quad k of row r at k * 32 + (r ^ k), and the scores of row r of queries 4 * g to
// 4 * g + 3 at r * 32 + 4 * (g ^ r % 8): so invocations side by side use different memory banks. All of
// it is 13 KiB; every device has 16.
//
//   SPLIT        1 if there may be several shares, else 0
//   HEAD_QUADS   HEAD_SIZE / 4; the head is a multiple of four, up to 256
//   QUADS_EACH   HEAD_QUADS / 16, rounded up
//   SUMS         4 * QUADS_EACH
//   VALUE_ROWS   a power of two; VALUE_ROWS * HEAD_QUADS is at most 512
//   LOADS        quads of values that an invocation loads at a time: VALUE_ROWS * HEAD_QUADS / 128,
//                rounded up

#extension GL_EXT_control_flow_attributes : require

layout(local_size_x = 128) in;

#include "repeat.glsl"

// A struct leaves the dtype open, so that planes of either element type can be bound.
#if defined(BYTES)
struct Quad { uint bits; };
#elif defined(HALVES)
struct Quad { uvec2 bits; };
vec4 unpacked(Quad quad) { return vec4(unpackHalf2x16(quad.bits.x), unpackHalf2x16(quad.bits.y)); }
#else
struct Quad { uvec4 bits; };
vec4 unpacked(Quad quad) { return uintBitsToFloat(quad.bits); }
#endif

layout(binding = 0) readonly buffer Q { vec4 q[]; };
layout(binding = 1) readonly buffer Keys { Quad keys[]; };
layout(binding = 2) readonly buffer Values { Quad values[]; };
layout(binding = 3) readonly buffer State { uint state[]; };
#if SPLIT
layout(binding = 4) writeonly buffer Parts { vec4 parts[]; };
layout(binding = 5) writeonly buffer Ends { float ends[]; };
#else
layout(binding = 4) writeonly buffer Y { vec4 y[]; };
#endif
layout(push_constant) uniform Arguments { uint count; uint context; };

#define GROUP (HEADS / KV_HEADS)
#define CHUNKS ((HEAD_QUADS + 7) / 8)
const float HIDDEN = -3e38;   // the score of a row that a token must not see
const float LOWEST = -1e30;   // below every score, above HIDDEN

shared vec4 staged[512];      // keys, then queries; or values
shared float scores[32 * 32]; // weights later
shared float ends_of[4 * 32]; // maxima, or sums of weights, of a quarter of the rows of each query
shared float fades[32];

uint key_head, rows;          // rows in view of the tile
vec4 stored[4], row_keys[2], query_quads[4];
float found[8];
vec4 sums[SUMS];
float weights[4], mine[8];

// Where query `query` of the key head is in q, y and parts, in heads.
uint place_of(uint query) {
    return query / GROUP * HEADS + key_head * GROUP + query % GROUP;
}

// Quad `quad` of row `row` of a plane. A row that is not in view is replaced by one that is.
#ifdef BYTES
vec4 unpacked(uint four, uint two, uint quad) {
    int bytes = int(four);
    vec2 factors = unpackHalf2x16(two);
    return vec4(ivec4(bytes << 24, bytes << 16, bytes << 8, bytes) >> 24)
        * (quad / 8 % 2 == 0 ? factors.x : factors.y);
}
#define QUAD_OF(plane, row, quad)                                                            \
    unpacked(plane[min(row, rows - 1) * ROW_WORDS + key_head * HEAD_QUADS + quad].bits,        \
             plane[min(row, rows - 1) * ROW_WORDS + KV_HEADS * HEAD_QUADS                      \
                   + key_head * SCALE_WORDS + (quad) / 16].bits, quad)
#else
#define QUAD_OF(plane, row, quad) \
    unpacked(plane[(min(row, rows - 1) * KV_HEADS + key_head) * HEAD_QUADS + quad])
#endif

uint score_at(uint row, uint query) { return row * 32 + 4 * (query / 4 ^ row % 8) + query % 4; }

// Functions instead of loops: see product_rows.comp.

void add_scores(const uint row, const uint query) {
    vec4 key = row_keys[row], wanted = query_quads[query];
    float sum = found[row * 4 + query];
    sum += key.x * wanted.x;
    sum += key.y * wanted.y;
    sum += key.z * wanted.z;
    found[row * 4 + query] = sum + key.w * wanted.w;
}

void add_values(vec4 value, const uint n) {
#define ADD_VALUE(j) sums[j * QUADS_EACH + n] += weights[j] * value;
    REPEAT_4(ADD_VALUE)
}

void find_scores(uint lane, uint block, uint first, uint last) {
    uint part = lane % 8, line = lane / 8;  // of what this invocation loads
    uint row_lane = lane % 16, query_lane = lane / 16 * 4;
#define NOT_FOUND(o) found[o] = 0.0;
    REPEAT_8(NOT_FOUND)
    for (uint chunk = 0; chunk < CHUNKS; ++chunk) {
        uint quad = chunk * 8 + part;
        bool exists = quad < HEAD_QUADS;
        quad = min(quad, HEAD_QUADS - 1);
#define LOAD_KEY(n) stored[n] = QUAD_OF(keys, block + line + 16 * n, quad);
        REPEAT_2(LOAD_KEY)
#define LOAD_QUERY(n) \
    stored[2 + n] = q[place_of(min(first + line + 16 * n, last)) * HEAD_QUADS + quad];
        REPEAT_2(LOAD_QUERY)
        barrier();  // what was staged before is used up
#define STORE(o) \
    staged[o / 2 * 256 + part * 32 + (line ^ part) + 16 * (o % 2)] = exists ? stored[o] : vec4(0.0);
        REPEAT_4(STORE)
        barrier();
        // Unrolled, its loads would all come first, and take the registers of other subgroups.
        [[dont_unroll]] for (uint k = 0; k < 8; ++k) {
#define KEY(n) row_keys[n] = staged[k * 32 + (row_lane ^ k) + 16 * n];
            REPEAT_2(KEY)
#define QUERY(n) query_quads[n] = staged[256 + k * 32 + ((query_lane + n) ^ k)];
            REPEAT_4(QUERY)
#define ADD_SCORE(o) add_scores(o / 4, o % 4);
            REPEAT_8(ADD_SCORE)
        }
    }
#define STORE_SCORE(o) scores[score_at(row_lane + 16 * (o / 4), query_lane + o % 4)] = found[o] * SCALE;
    REPEAT_8(STORE_SCORE)
    barrier();
}

void main() {
    uint lane = gl_LocalInvocationID.x;
    key_head = gl_WorkGroupID.y;
    uint before = state[POSITION];
    uint first = gl_WorkGroupID.x * 32, last = min(first + 32, count * GROUP) - 1;
    rows = min(before + last / GROUP + 1, context);
    uint shares = gl_NumWorkGroups.z;
    uint blocks = (rows + 31) / 32, share = (blocks + shares - 1) / shares;
    uint block = min(gl_WorkGroupID.z * share, blocks) * 32;
    uint end = min(block + share * 32, blocks * 32);

    uint query = lane % 32, quarter = lane / 32;         // of the weights of this invocation
    uint seen = min(before + min(first + query, last) / GROUP + 1, context);
    float peak = LOWEST, total = 0.0;                    // total: of a quarter of the rows
    uint element = lane % 16, query_lane = lane / 16 * 4; // of its sums
#define CLEAR(o) sums[o] = vec4(0.0);
    REPEAT(SUMS, CLEAR)

    for (; block < end; block += 32) {
        find_scores(lane, block, first, last);

        float highest = peak;
#define SCORE(k)                                                                             \
    {                                                                                        \
        uint row = quarter * 8 + k;                                                          \
        mine[k] = block + row < seen ? scores[score_at(row, query)] : HIDDEN;                \
        highest = max(highest, mine[k]);                                                     \
    }
        REPEAT_8(SCORE)
        ends_of[lane] = highest;
        barrier();
#define HIGHEST(n) highest = max(highest, ends_of[n * 32 + query]);
        REPEAT_4(HIGHEST)
        float fade = exp(peak - highest);
        peak = highest;
        total *= fade;
#define WEIGHT(k)                                                                            \
    {                                                                                        \
        float weight = exp(mine[k] - highest);                                               \
        scores[score_at(quarter * 8 + k, query)] = weight;                                   \
        total += weight;                                                                     \
    }
        REPEAT_8(WEIGHT)
        if (quarter == 0) fades[query] = fade;
        barrier();

#define FADE(o) sums[o] *= fades[query_lane + o / QUADS_EACH];
        REPEAT(SUMS, FADE)
        for (uint from = 0; from < 32; from += VALUE_ROWS) {
#define LOAD_VALUE(n)                                                                        \
    {                                                                                        \
        uint at = min(lane + 128 * n, VALUE_ROWS * HEAD_QUADS - 1);                          \
        stored[n] = QUAD_OF(values, block + from + at / HEAD_QUADS, at % HEAD_QUADS);         \
    }
            REPEAT(LOADS, LOAD_VALUE)
            barrier();  // what was staged before is used up
#define STORE_VALUE(n) staged[min(lane + 128 * n, VALUE_ROWS * HEAD_QUADS - 1)] = stored[n];
            REPEAT(LOADS, STORE_VALUE)
            barrier();
            [[dont_unroll]] for (uint row = 0; row < VALUE_ROWS; ++row) {
#define ROW_WEIGHT(j) weights[j] = scores[score_at(from + row, query_lane + j)];
                REPEAT_4(ROW_WEIGHT)
#define ADD_VALUES(n) \
    add_values(staged[row * HEAD_QUADS + min(element + 16 * n, HEAD_QUADS - 1)], n);
                REPEAT(QUADS_EACH, ADD_VALUES)
            }
        }
    }

    barrier();  // the maxima are used up
    ends_of[lane] = total;
    barrier();
    float all = 0.0;
#define ADD_TOTAL(n) all += ends_of[n * 32 + query];
    REPEAT_4(ADD_TOTAL)
#if SPLIT
    if (quarter == 0 && first + query <= last) {
        uint place = place_of(first + query) * shares + gl_WorkGroupID.z;
        ends[2 * place] = peak;
        ends[2 * place + 1] = all;
    }
#endif
    if (quarter == 0) fades[query] = all;
    barrier();
#define WRITE(o)                                                                             \
    {                                                                                        \
        uint number = first + query_lane + o / QUADS_EACH, quad = element + o % QUADS_EACH * 16;         \
        float weight = fades[query_lane + o / QUADS_EACH];                                         \
        if (number <= last && quad < HEAD_QUADS)                                             \
            OUTPUT(place_of(number), quad, sums[o], weight);                                 \
    }
#if SPLIT
#define OUTPUT(place, quad, sum, weight) \
    if (weight > 0.0) parts[(place * shares + gl_WorkGroupID.z) * HEAD_QUADS + quad] = sum
#else
#define OUTPUT(place, quad, sum, weight) y[place * HEAD_QUADS + quad] = sum / weight
#endif
    REPEAT(SUMS, WRITE)
}
