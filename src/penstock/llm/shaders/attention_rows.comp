// Causal attention of several tokens, with a lane for each query, for CPU drivers.
//
//   q             float32 (tokens, HEADS * HEAD_SIZE), rotated, four to a texel, from `q_first` on
//   keys, values  the planes of the KV cache, 16 bytes to a texel, from `keys_first` and
//                 `values_first` on: with HALVES eight float16, else four float32. With BYTES 8 bytes
//                 to a texel, which are as many elements; their factors are as in cache.glsl
//   state         its word POSITION is the position of token 0 of the batch
//   y             float32 (tokens, HEADS * HEAD_SIZE), four to a texel, from `y_first` on
//
// Token t looks at rows 0 .. position + t, at most `context` rows.
//
// Groups (tiles of queries, KV_HEADS); a workgroup is one subgroup of at least 8 lanes. The queries of
// a key head are those of its heads of all tokens, token by token; a lane takes EACH of them. The
// workgroup goes through the rows in blocks of 16. Eight lanes load different rows of a block, and pass
// them to all lanes by shuffles, so that each load serves all queries of the workgroup. A lane has the
// scores of its queries in registers: maximum and sum are its own, kept online, and no scores are
// stored. Its weighted sums are in shared memory, which no other lane touches: that is the fastest
// memory that a loop can index.
//
//   EACH       queries of a lane
//   SCORES     16 * EACH
//   QUADS      quads of elements in a texel of a plane: with HALVES or BYTES 2, else 1
//   MINE       QUADS * EACH
//   ROW_QUADS  16 * QUADS
//
// As in product_rows.comp, loops are `do … while` and everything else is unrolled.

#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require

layout(local_size_x_id = 0) in;

#include "repeat.glsl"

layout(binding = 0, rgba32f) uniform readonly imageBuffer q;
#include "cache_texels.glsl"
layout(binding = 3) readonly buffer State { uint state[]; };
layout(binding = 4, rgba32f) uniform writeonly imageBuffer y;
layout(push_constant) uniform Arguments {
    uint count;
    uint context;
    uint q_first;
    uint keys_first;
    uint values_first;
    uint y_first;
};

#define GROUP (HEADS / KV_HEADS)
const float HIDDEN = -3e38;   // the score of a row that a token must not see
const float LOWEST = -1e30;   // below every score, above HIDDEN

shared vec4 sums[TEXELS * MINE * gl_WorkGroupSize.x];
#define PLACE(o) ((at * uint(MINE) + o) * lanes + lane)

uint seen[EACH];    // rows that a query sees
uint place[EACH];   // texel at which a query begins, in q and y, without q_first and y_first
float peak[EACH], total[EACH], fade[EACH];
float scores[SCORES];     // weights later
vec4 loaded[2 * QUADS];   // a texel of each of 2 * 8 rows
vec4 mine[MINE];  // a texel's elements of each query, or of its sums

#if defined(BYTES)
#define KEEP(half_block, texel)                                                              \
    {                                                                                        \
        uvec2 bits = texel.xy;                                                               \
        loaded[2 * half_block] = signed_bytes(bits.x) * factors[half_block];                 \
        loaded[2 * half_block + 1] = signed_bytes(bits.y) * factors[half_block];             \
    }
float factors[2];
// The factors of texel `at` of the rows `low` and `high` of a plane.
#define LOAD_FACTORS(plane, first)                                                           \
    {                                                                                        \
        uint word = factors_of(key_head) + at / 8u;                                          \
        uint from = first + word / 2u;                                                       \
        factors[0] = factor_of(imageLoad(plane, int(from + low)).xy, word, at / 4u);         \
        factors[1] = factor_of(imageLoad(plane, int(from + high)).xy, word, at / 4u);        \
    }
#elif defined(HALVES)
#define KEEP(half_block, texel)                                                              \
    {                                                                                        \
        uvec4 bits = texel;                                                                  \
        loaded[2 * half_block] = vec4(unpackHalf2x16(bits.x), unpackHalf2x16(bits.y));       \
        loaded[2 * half_block + 1] = vec4(unpackHalf2x16(bits.z), unpackHalf2x16(bits.w));   \
    }
#else
#define KEEP(half_block, texel) loaded[half_block] = texel;
#endif
#ifndef BYTES
#define LOAD_FACTORS(plane, first)
#endif

// The elements `quad` of row `row` of the block, for all lanes.
vec4 row_of_block(const uint row, const uint quad) {
    return subgroupShuffle(loaded[row / 8 * QUADS + quad], row % 8);
}

void add_scores(const uint row, const uint quad) {
    vec4 key = row_of_block(row, quad);
#define ADD_SCORE(n) scores[n * 16 + row] += dot(key, mine[n * QUADS + quad]);
    REPEAT(EACH, ADD_SCORE)
}

void add_values(const uint row, const uint quad) {
    vec4 value = row_of_block(row, quad);
#define ADD_VALUE(n) mine[n * QUADS + quad] += scores[n * 16 + row] * value;
    REPEAT(EACH, ADD_VALUE)
}

// Turns the scores of a query into weights.
void weigh(const uint n, uint first_row) {
    float highest = peak[n];
#define SCALED(row)                                                                          \
    {                                                                                        \
        const uint at = n * 16 + row;                                                        \
        scores[at] = first_row + row < seen[n] ? scores[at] * SCALE : HIDDEN;                \
        highest = max(highest, scores[at]);                                                  \
    }
    REPEAT_16(SCALED)
    fade[n] = exp(peak[n] - highest);
    peak[n] = highest;
    float sum = 0.0;
#define WEIGHT(row)                                              \
    scores[n * 16 + row] = exp(scores[n * 16 + row] - highest);  \
    sum += scores[n * 16 + row];
    REPEAT_16(WEIGHT)
    total[n] = total[n] * fade[n] + sum;
}

void main() {
    uint lane = gl_SubgroupInvocationID, lanes = gl_WorkGroupSize.x;
    uint queries = count * uint(GROUP), key_head = gl_WorkGroupID.y;
    uint before = state[POSITION];
    uint first = gl_WorkGroupID.x * lanes * uint(EACH);
    uint last = min(first + lanes * uint(EACH), queries) - 1u;
    uint rows = min(before + last / uint(GROUP) + 1u, context);

    // A query that does not exist is replaced by one that does; its results are dropped.
#define QUERY(n)                                                                             \
    {                                                                                        \
        uint query = min(first + n * lanes + lane, last);                                    \
        uint token = query / uint(GROUP);                                                    \
        uint head = key_head * uint(GROUP) + query % uint(GROUP);                            \
        place[n] = (token * uint(HEADS) + head) * uint(HEAD_SIZE / 4);                       \
        seen[n] = min(before + token + 1u, context);                                         \
        peak[n] = LOWEST;                                                                    \
        total[n] = 0.0;                                                                      \
    }
    REPEAT(EACH, QUERY)

    // Unknown to the compiler, which would unroll the loops: that only takes it longer.
    uint texels = min(uint(TEXELS), rows * uint(TEXELS));
    uint block = 0u;  // its first row
    uint in_row = key_head * uint(TEXELS);
    do {
        uint low = min(block + lane % 8u, rows - 1u) * uint(ROW_TEXELS);
        uint high = min(block + 8u + lane % 8u, rows - 1u) * uint(ROW_TEXELS);
#define CLEAR(o) scores[o] = 0.0;
        REPEAT(SCORES, CLEAR)
        uint at = 0u;
        do {
            LOAD_FACTORS(keys, keys_first)
            KEEP(0, imageLoad(keys, int(keys_first + low + in_row + at)))
            KEEP(1, imageLoad(keys, int(keys_first + high + in_row + at)))
#define LOAD_QUERY(o) \
    mine[o] = imageLoad(q, int(q_first + place[o / QUADS] + at * uint(QUADS) + o % QUADS));
            REPEAT(MINE, LOAD_QUERY)
#define SCORE_OF(o) add_scores(o % 16, o / 16);
            REPEAT(ROW_QUADS, SCORE_OF)
        } while (++at < texels);

#define WEIGH(n) weigh(n, block);
        REPEAT(EACH, WEIGH)
        bool begins = block == 0u;
        at = 0u;
        do {
            LOAD_FACTORS(values, values_first)
            KEEP(0, imageLoad(values, int(values_first + low + in_row + at)))
            KEEP(1, imageLoad(values, int(values_first + high + in_row + at)))
#define LOAD_SUM(o) mine[o] = begins ? vec4(0.0) : sums[PLACE(o)] * fade[o / QUADS];
            REPEAT(MINE, LOAD_SUM)
#define VALUE_OF(o) add_values(o % 16, o / 16);
            REPEAT(ROW_QUADS, VALUE_OF)
#define STORE_SUM(o) sums[PLACE(o)] = mine[o];
            REPEAT(MINE, STORE_SUM)
        } while (++at < texels);
        block += 16u;
    } while (block < rows);

    uint at = 0u;
    do {
#define WRITE(o)                                                                             \
    if (first + o / QUADS * lanes + lane <= last)                                            \
        imageStore(y, int(y_first + place[o / QUADS] + at * uint(QUADS) + o % QUADS),        \
                   sums[PLACE(o)] / total[o / QUADS]);
        REPEAT(MINE, WRITE)
    } while (++at < texels);
}
