// Causal attention of one token for CPU drivers that read uniform blocks much faster than storage
// buffers: the cache is bound in windows of as many rows as fit one.
//
//   q              float32 (HEADS * HEAD_SIZE), rotated
//   keys0 ..       WINDOWS windows of WINDOW_ROWS rows each of the plane of keys, from row `first` on
//   values0 ..     the same of the plane of values; see cache.glsl for rows and HALVES
//   state          its word POSITION is the position of the token
//   parts, ends    the partial result, written as share number `share`; see attention_join.comp
//
// The token sees rows 0 .. position, at most `context` rows. Windows beyond are not read, so anything
// may be bound there.
//
// Groups (KV_HEADS * HEADS / KV_HEADS / HEADS_EACH). A workgroup is one subgroup and takes HEADS_EACH
// heads that share a key head. It goes through all windows at once: for the scores a lane takes a row
// of each window; for the weighted sum it takes units of the head, and gets the weights of the rows
// from the other lanes by shuffle.

#extension GL_KHR_shader_subgroup_arithmetic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#extension GL_EXT_control_flow_attributes : require
#define SMALL (HEADS * HEAD_SIZE)

layout(local_size_x = LANES) in;

#include "input.glsl"

#ifdef HALVES
#define UNIT 8
#define WORDS uvec4
#else
#define UNIT 4
#define WORDS vec4
#endif
#define UNITS (HEAD_SIZE / UNIT)
#define ROW_UNITS (KV_HEADS * UNITS)
#define UNITS_EACH ((UNITS + LANES - 1) / LANES)
#define HEAD_BLOCKS (HEADS / KV_HEADS / HEADS_EACH)

INPUT(0, Q, q, SMALL);
layout(binding = 1) readonly buffer State { uint state[]; };
layout(binding = 2) writeonly buffer Parts { float parts[]; };
layout(binding = 3) writeonly buffer Ends { float ends[]; };
#define WINDOW(slot, Block, name) \
    layout(binding = slot) uniform Block { WORDS name[WINDOW_ROWS * ROW_UNITS]; };
WINDOW(4, Keys0, keys0)
WINDOW(5, Keys1, keys1)
WINDOW(6, Keys2, keys2)
WINDOW(7, Keys3, keys3)
WINDOW(8, Keys4, keys4)
WINDOW(9, Keys5, keys5)
WINDOW(10, Values0, values0)
WINDOW(11, Values1, values1)
WINDOW(12, Values2, values2)
WINDOW(13, Values3, values3)
WINDOW(14, Values4, values4)
WINDOW(15, Values5, values5)
layout(push_constant) uniform Arguments { uint first; uint share; uint context; };

#define WINDOWS 6
const float HIDDEN = -3e38;   // the score of a row that must not be seen
const float LOWEST = -1e30;   // below every score, above HIDDEN

void unpack(WORDS words, out float found[UNIT]) {
#ifdef HALVES
    vec2 a = unpackHalf2x16(words.x), b = unpackHalf2x16(words.y);
    vec2 c = unpackHalf2x16(words.z), d = unpackHalf2x16(words.w);
    found[0] = a.x; found[1] = a.y; found[2] = b.x; found[3] = b.y;
    found[4] = c.x; found[5] = c.y; found[6] = d.x; found[7] = d.y;
#else
    found[0] = words.x; found[1] = words.y; found[2] = words.z; found[3] = words.w;
#endif
}

float query[HEADS_EACH][UNIT];
float score[HEADS_EACH][WINDOWS];
float sum[HEADS_EACH][UNITS_EACH * UNIT];

void score_unit(WORDS words, uint window) {
    float key[UNIT];
    unpack(words, key);
    [[unroll]] for (uint i = 0u; i < uint(HEADS_EACH); ++i) {
        [[unroll]] for (uint e = 0u; e < uint(UNIT); ++e) score[i][window] += key[e] * query[i][e];
    }
}

void add_unit(WORDS words, uint number, float weight[HEADS_EACH]) {
    float value[UNIT];
    unpack(words, value);
    [[unroll]] for (uint i = 0u; i < uint(HEADS_EACH); ++i) {
        [[unroll]] for (uint e = 0u; e < uint(UNIT); ++e) {
            sum[i][number * uint(UNIT) + e] += weight[i] * value[e];
        }
    }
}

// Rows out of view may hold anything, NaN included, and NaN times 0 is NaN.
#define SEEN(words, window) \
    (first + window * uint(WINDOW_ROWS) + block + other < rows ? words : WORDS(0))

void main() {
    uint lane = gl_LocalInvocationID.x;
    uint key_head = gl_WorkGroupID.x / uint(HEAD_BLOCKS);
    uint head = gl_WorkGroupID.x * uint(HEADS_EACH);
    uint rows = min(state[POSITION] + 1u, context);
    // Rows in view of the window that has most of them.
    uint longest = rows > first ? min(rows - first, uint(WINDOW_ROWS)) : 0u;

    float peak[HEADS_EACH], total[HEADS_EACH];
    [[unroll]] for (uint i = 0u; i < uint(HEADS_EACH); ++i) {
        peak[i] = LOWEST;
        total[i] = 0.0;  // of this lane's rows
        [[unroll]] for (uint e = 0u; e < uint(UNITS_EACH * UNIT); ++e) sum[i][e] = 0.0;
    }

    for (uint block = 0u; block < longest; block += uint(LANES)) {
        uint at = (block + lane) * uint(ROW_UNITS) + key_head * uint(UNITS);
        [[unroll]] for (uint i = 0u; i < uint(HEADS_EACH); ++i) {
            [[unroll]] for (uint w = 0u; w < uint(WINDOWS); ++w) score[i][w] = 0.0;
        }
        for (uint u = 0u; u < uint(UNITS); ++u) {
            [[unroll]] for (uint i = 0u; i < uint(HEADS_EACH); ++i) {
                [[unroll]] for (uint e = 0u; e < uint(UNIT); ++e) {
                    query[i][e] = q[(head + i) * uint(HEAD_SIZE) + u * uint(UNIT) + e];
                }
            }
            score_unit(keys0[at + u], 0u);
            score_unit(keys1[at + u], 1u);
            score_unit(keys2[at + u], 2u);
            score_unit(keys3[at + u], 3u);
            score_unit(keys4[at + u], 4u);
            score_unit(keys5[at + u], 5u);
        }

        float weight[HEADS_EACH][WINDOWS];
        [[unroll]] for (uint i = 0u; i < uint(HEADS_EACH); ++i) {
            float highest = HIDDEN;
            [[unroll]] for (uint w = 0u; w < uint(WINDOWS); ++w) {
                uint row = first + w * uint(WINDOW_ROWS) + block + lane;
                weight[i][w] = row < rows ? score[i][w] * SCALE : HIDDEN;
                highest = max(highest, weight[i][w]);
            }
            float higher = max(peak[i], subgroupMax(highest));
            float fade = exp(peak[i] - higher);
            total[i] *= fade;
            [[unroll]] for (uint w = 0u; w < uint(WINDOWS); ++w) {
                weight[i][w] = exp(weight[i][w] - higher);
                total[i] += weight[i][w];
            }
            peak[i] = higher;
            [[unroll]] for (uint e = 0u; e < uint(UNITS_EACH * UNIT); ++e) sum[i][e] *= fade;
        }

        at = block * uint(ROW_UNITS) + key_head * uint(UNITS);
        for (uint other = 0u; other < uint(LANES); ++other, at += uint(ROW_UNITS)) {
            float share_of[WINDOWS][HEADS_EACH];
            [[unroll]] for (uint w = 0u; w < uint(WINDOWS); ++w) {
                [[unroll]] for (uint i = 0u; i < uint(HEADS_EACH); ++i) {
                    share_of[w][i] = subgroupShuffle(weight[i][w], other);
                }
            }
            [[unroll]] for (uint n = 0u; n < uint(UNITS_EACH); ++n) {
                uint from = at + min(n * uint(LANES) + lane, uint(UNITS) - 1u);
                add_unit(SEEN(values0[from], 0u), n, share_of[0]);
                add_unit(SEEN(values1[from], 1u), n, share_of[1]);
                add_unit(SEEN(values2[from], 2u), n, share_of[2]);
                add_unit(SEEN(values3[from], 3u), n, share_of[3]);
                add_unit(SEEN(values4[from], 4u), n, share_of[4]);
                add_unit(SEEN(values5[from], 5u), n, share_of[5]);
            }
        }
    }

    [[unroll]] for (uint i = 0u; i < uint(HEADS_EACH); ++i) {
        float all = subgroupAdd(total[i]);
        uint place = (head + i) * uint(SPLITS) + share;
        if (lane == 0u) {
            ends[2u * place] = peak[i];
            ends[2u * place + 1u] = all;
        }
        [[unroll]] for (uint n = 0u; n < uint(UNITS_EACH); ++n) {
            uint unit = n * uint(LANES) + lane;
            if (all > 0.0 && unit < uint(UNITS)) {
                [[unroll]] for (uint e = 0u; e < uint(UNIT); ++e) {
                    parts[place * uint(HEAD_SIZE) + unit * uint(UNIT) + e] = sum[i][n * uint(UNIT) + e];
                }
            }
        }
    }
}
