// Causal attention of one token through texel buffers, for CPU drivers.
//
//   q             float32 (HEADS * HEAD_SIZE), rotated, four to a texel, from `q_first` on
//   keys, values  the planes of the KV cache, 16 bytes to a texel, from `keys_first` and
//                 `values_first` on: with HALVES eight float16, else four float32. With BYTES 8 bytes
//                 to a texel, which are as many elements; their factors are as in cache.glsl
//   state         its word POSITION is the position of the token
//   y             float32 (HEADS * HEAD_SIZE)
//   parts, ends   with SPLITS > 1, instead of y: the partial results; see attention_join.comp
//
// The token sees rows 0 .. position, at most `context` rows.
//
// Groups (KV_HEADS * HEADS / KV_HEADS / HEADS_EACH, SPLITS); a workgroup is one subgroup of at least 8
// lanes, of which 8 are used, and takes HEADS_EACH heads that share a key head, and a share of the rows.
// It goes through these in blocks of 16. For the scores a lane takes two rows of a block; eight lanes
// load different parts of the queries, and pass them to all lanes by shuffles. For the weighted sums a
// lane takes TEXELS_EACH texels of the head, and gets the weights of the rows from the other lanes.
//
//   QUADS        quads of elements in a texel of a plane: with HALVES or BYTES 2, else 1
//   CHUNK        quads of a query that a load fetches: 8, 4, 2 or 1; they make up whole heads
//   CHUNK_TEXELS CHUNK / QUADS, at least 1
//   SCORES       2 * HEADS_EACH
//   SUM_QUADS    QUADS * TEXELS_EACH
//   SUMS         HEADS_EACH * SUM_QUADS
//
// As in product_rows.comp, loops are `do … while` and everything else is unrolled.

#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require

layout(local_size_x_id = 0) in;

#include "repeat.glsl"

layout(binding = 0, rgba32f) uniform readonly imageBuffer q;
#include "cache_texels.glsl"
layout(binding = 3) readonly buffer State { uint state[]; };
#if SPLITS > 1
layout(binding = 4) writeonly buffer Parts { float parts[]; };
layout(binding = 5) writeonly buffer Ends { float ends[]; };
#else
layout(binding = 4) writeonly buffer Y { float y[]; };
#endif
layout(push_constant) uniform Arguments {
    uint context;
    uint q_first;
    uint keys_first;
    uint values_first;
};

#define HEAD_BLOCKS (HEADS / KV_HEADS / HEADS_EACH)
const float HIDDEN = -3e38;   // the score of a row that must not be seen
const float LOWEST = -1e30;   // below every score, above HIDDEN

float peak[HEADS_EACH], total[HEADS_EACH];
float scores[SCORES];      // of two rows, head by head; weights later
vec4 queries[HEADS_EACH];  // this lane's part of a chunk
vec4 sums[SUMS];
vec4 loaded[2 * QUADS];   // a texel of each of two rows

#if defined(BYTES)
#define KEEP(row, texel)                                                               \
    {                                                                                  \
        uvec2 bits = texel.xy;                                                         \
        loaded[2 * row] = signed_bytes(bits.x);                                        \
        loaded[2 * row + 1] = signed_bytes(bits.y);                                    \
    }
#elif defined(HALVES)
#define KEEP(row, texel)                                                               \
    {                                                                                  \
        uvec4 bits = texel;                                                            \
        loaded[2 * row] = vec4(unpackHalf2x16(bits.x), unpackHalf2x16(bits.y));        \
        loaded[2 * row + 1] = vec4(unpackHalf2x16(bits.z), unpackHalf2x16(bits.w));    \
    }
#else
#define KEEP(row, texel) loaded[row] = texel;
#endif

float highest_of_lanes(float value) {
    value = max(value, subgroupShuffleXor(value, 1));
    value = max(value, subgroupShuffleXor(value, 2));
    return max(value, subgroupShuffleXor(value, 4));
}

float sum_of_lanes(float value) {
    value += subgroupShuffleXor(value, 1);
    value += subgroupShuffleXor(value, 2);
    return value + subgroupShuffleXor(value, 4);
}

// With BYTES a chunk is the 32 elements of a factor, which is applied to their sums.
#ifdef BYTES
float of_chunk[SCORES];
#define FOUND of_chunk
#else
#define FOUND scores
#endif

void add_scores(const uint quad, const uint part) {
#define ADD_SCORE(n)                                              \
    {                                                             \
        vec4 query = subgroupShuffle(queries[n], part);           \
        FOUND[2 * n] += dot(loaded[quad], query);                 \
        FOUND[2 * n + 1] += dot(loaded[QUADS + quad], query);     \
    }
    REPEAT(HEADS_EACH, ADD_SCORE)
}

// The texel `number` of a chunk, of both rows.
void take_keys(const uint number, uint first, uint second) {
    KEEP(0, imageLoad(keys, int(first + number)))
    KEEP(1, imageLoad(keys, int(second + number)))
#define SCORES_OF(quad) add_scores(quad, number * QUADS + quad);
    REPEAT(QUADS, SCORES_OF)
}

// Turns the scores of a head into weights. `row` is that of the first of the two.
void weigh(const uint n, uint row, uint end) {
    scores[2 * n] = row < end ? scores[2 * n] * SCALE : HIDDEN;
    scores[2 * n + 1] = row + 8u < end ? scores[2 * n + 1] * SCALE : HIDDEN;
    float highest = max(peak[n], highest_of_lanes(max(scores[2 * n], scores[2 * n + 1])));
    float fade = exp(peak[n] - highest);
    peak[n] = highest;
    scores[2 * n] = exp(scores[2 * n] - highest);
    scores[2 * n + 1] = exp(scores[2 * n + 1] - highest);
    total[n] = total[n] * fade + scores[2 * n] + scores[2 * n + 1];
#define FADE(s) sums[n * SUM_QUADS + s] *= fade;
    REPEAT(SUM_QUADS, FADE)
}

#ifdef BYTES
float factor;  // of a texel of values
#define WEIGHTED(weight) ((weight) * factor)
#else
#define WEIGHTED(weight) (weight)
#endif

void add_values(const uint row, const uint texel, const uint quad) {
#define ADD_VALUE(n) \
    sums[n * SUM_QUADS + texel * QUADS + quad] += \
        loaded[quad] * WEIGHTED(subgroupShuffle(scores[2 * n + row / 8], row % 8));
    REPEAT(HEADS_EACH, ADD_VALUE)
}

void take_value(const uint row, const uint texel, uint at) {
    KEEP(0, imageLoad(values, int(at)))
#define VALUE_OF(quad) add_values(row, texel, quad);
    REPEAT(QUADS, VALUE_OF)
}

// `begins` is where the row begins, and `in_row` where its head does, in texels.
void take_row(const uint row, uint begins, uint in_row, uint key_head, uint lane) {
#ifdef BYTES
#define LOAD_FACTOR(number)                                                            \
    uint word = factors_of(key_head) + number / 8u;                                    \
    factor = factor_of(imageLoad(values, int(begins + word / 2u)).xy, word, number / 4u);
#else
#define LOAD_FACTOR(number)
#endif
#define VALUE(texel)                                                                   \
    {                                                                                  \
        uint number = min(texel * 8u + lane, uint(TEXELS - 1));                        \
        LOAD_FACTOR(number)                                                            \
        take_value(row, texel, begins + in_row + number);                              \
    }
    REPEAT(TEXELS_EACH, VALUE)
}

void finish(const uint n, uint head, uint lane) {
    float all = sum_of_lanes(total[n]);
#if SPLITS > 1
    uint place = head * uint(SPLITS) + gl_WorkGroupID.y;
    if (gl_SubgroupInvocationID == 0u) {
        ends[2u * place] = peak[n];
        ends[2u * place + 1u] = all;
    }
    float factor = 1.0;
#define TO parts
#else
    uint place = head;
    float factor = 1.0 / all;
#define TO y
#endif
#define WRITE(s)                                                                              \
    {                                                                                         \
        uint texel = s / QUADS * 8u + lane;                                                   \
        if (texel < uint(TEXELS) && gl_SubgroupInvocationID < 8u) {                           \
            uint at = place * uint(HEAD_SIZE) + (texel * uint(QUADS) + s % QUADS) * 4u;       \
            vec4 found = sums[n * SUM_QUADS + s] * factor;                                    \
            TO[at] = found.x;                                                                 \
            TO[at + 1u] = found.y;                                                            \
            TO[at + 2u] = found.z;                                                            \
            TO[at + 3u] = found.w;                                                            \
        }                                                                                     \
    }
    REPEAT(SUM_QUADS, WRITE)
}

void main() {
    uint lane = gl_SubgroupInvocationID % 8u;
    uint key_head = gl_WorkGroupID.x / uint(HEAD_BLOCKS);
    uint head = gl_WorkGroupID.x * uint(HEADS_EACH);
    uint rows = min(state[POSITION] + 1u, context);
    uint blocks = (rows + 15u) / 16u;
    uint share = (blocks + uint(SPLITS) - 1u) / uint(SPLITS);
    uint row = min(gl_WorkGroupID.y * share * 16u, rows);
    uint end = min(row + share * 16u, rows);

#define BEGIN(n) peak[n] = LOWEST; total[n] = 0.0;
    REPEAT(HEADS_EACH, BEGIN)
#define CLEAR(s) sums[s] = vec4(0.0);
    REPEAT(SUMS, CLEAR)
    uint in_row = key_head * uint(TEXELS);
    uint query = q_first + head * uint(HEAD_SIZE / 4) + lane % uint(CHUNK);
    // Unknown to the compiler, which would unroll the loop: that only takes it longer.
    uint texels = min(uint(TEXELS), rows * uint(TEXELS));

    if (row < end) do {
        // A row that does not exist is replaced by one that does; its weight is 0.
        uint first = keys_first + min(row + lane, end - 1u) * uint(ROW_TEXELS);
        uint second = keys_first + min(row + 8u + lane, end - 1u) * uint(ROW_TEXELS);
#define CLEAR_SCORE(o) scores[o] = 0.0;
        REPEAT(SCORES, CLEAR_SCORE)
        uint at = 0u;
        do {
#define LOAD_QUERY(n) \
    queries[n] = imageLoad(q, int(query + n * (HEAD_SIZE / 4) + at * uint(QUADS)));
            REPEAT(HEADS_EACH, LOAD_QUERY)
#ifdef BYTES
#define CLEAR_CHUNK(o) of_chunk[o] = 0.0;
            REPEAT(SCORES, CLEAR_CHUNK)
#endif
#define KEYS(number) take_keys(number, first + in_row + at, second + in_row + at);
            REPEAT(CHUNK_TEXELS, KEYS)
#ifdef BYTES
            uint word = factors_of(key_head) + at / 8u;
            float factors[2];
            factors[0] = factor_of(imageLoad(keys, int(first + word / 2u)).xy, word, at / 4u);
            factors[1] = factor_of(imageLoad(keys, int(second + word / 2u)).xy, word, at / 4u);
#define ADD_CHUNK(o) scores[o] += factors[o % 2] * of_chunk[o];
            REPEAT(SCORES, ADD_CHUNK)
#endif
            at += uint(CHUNK_TEXELS);
        } while (at < texels);

#define WEIGH(n) weigh(n, row + lane, end);
        REPEAT(HEADS_EACH, WEIGH)

#define ROW(r)                                                                                \
    {                                                                                         \
        uint begins = values_first + min(row + r, end - 1u) * uint(ROW_TEXELS);               \
        take_row(r, begins, in_row, key_head, lane);                                          \
    }
        REPEAT_16(ROW)
        row += 16u;
    } while (row < end);

#define FINISH(n) finish(n, head + n, lane);
    REPEAT(HEADS_EACH, FINISH)
}
