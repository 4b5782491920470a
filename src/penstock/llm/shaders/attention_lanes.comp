// Causal attention for CPU drivers: a workgroup is one subgroup, without shared memory or barriers.
//
//   q             float32 (tokens, HEADS * HEAD_SIZE), rotated; SMALL: the number of floats bound
//   keys, values  the planes of the KV cache; see cache.glsl
//   state         its word POSITION is the position of token 0 of the batch
//   y             float32 (tokens, HEADS * HEAD_SIZE)
//   parts, ends   with SPLITS > 1 instead of y; see attention_join.comp
//
// The tokens of the launch are first_token .. first_token + count - 1 of the batch; q and y begin
// with the first of them. Token t looks at rows 0 .. position + t, at most `context` rows.
//
// Groups (SPLITS, KV_HEADS * HEAD_BLOCKS, token blocks). A workgroup takes TOKENS tokens times
// HEADS_EACH heads that share a key head, so that each load from the cache serves all of them, and one
// of SPLITS shares of the rows in view. It goes through its share in blocks of one row per lane. For
// the scores a lane takes a row of the block; for the weighted sum it takes units of the head, and
// gets the weights of the rows from the other lanes by shuffle. Maximum and sum are kept online, so
// that no scores are stored. The number of groups does not depend on the position: a group without
// rows writes only that it had none.

#extension GL_KHR_shader_subgroup_arithmetic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#extension GL_EXT_control_flow_attributes : require

layout(local_size_x = LANES) in;

#include "input.glsl"
#include "cache.glsl"

INPUT(0, Q, q, SMALL);
PLANE(1, Keys, keys, load_key)
PLANE(2, Values, values, load_value)
layout(binding = 3) readonly buffer State { uint state[]; };
#if SPLITS > 1
layout(binding = 4) writeonly buffer Parts { float parts[]; };
layout(binding = 5) writeonly buffer Ends { float ends[]; };
#else
layout(binding = 4) writeonly buffer Y { float y[]; };
#endif
layout(push_constant) uniform Arguments { uint count; uint first_token; uint context; };

#define QUERIES (TOKENS * HEADS_EACH)
#define HEAD_BLOCKS (HEADS / KV_HEADS / HEADS_EACH)
#define UNITS_EACH ((UNITS + LANES - 1) / LANES)
#define STRIDE 4  // units of a key per loop iteration: the loop condition is costly on CPUs
const float HIDDEN = -3e38;   // the score of a row that a token must not see
const float LOWEST = -1e30;   // below every score, above HIDDEN

uint token_of(uint query) { return gl_WorkGroupID.z * uint(TOKENS) + query / uint(HEADS_EACH); }

uint head_of(uint query) {
    uint block = gl_WorkGroupID.y;
    return block * uint(HEADS_EACH) + query % uint(HEADS_EACH);
}

void main() {
    uint lane = gl_LocalInvocationID.x;
    uint key_head = gl_WorkGroupID.y / uint(HEAD_BLOCKS);
    uint before = state[POSITION] + first_token;  // rows before that of token 0
    uint last = min(gl_WorkGroupID.z * uint(TOKENS) + uint(TOKENS), count) - 1u;
    uint rows = min(before + last + 1u, context);

    uint blocks = (rows + uint(LANES) - 1u) / uint(LANES);
    uint share = (blocks + uint(SPLITS) - 1u) / uint(SPLITS);
    uint block = min(gl_WorkGroupID.x * share, blocks), end = min(block + share, blocks);

    uint from[QUERIES];  // where the query begins in q
    uint seen[QUERIES];  // rows that the query sees
    float peak[QUERIES], total[QUERIES], sum[QUERIES][UNITS_EACH * UNIT];
    [[unroll]] for (uint i = 0u; i < uint(QUERIES); ++i) {
        uint token = min(token_of(i), last);
        from[i] = (token * uint(HEADS) + head_of(i)) * uint(HEAD_SIZE);
        seen[i] = min(before + token + 1u, context);
        peak[i] = LOWEST;
        total[i] = 0.0;  // of this lane's rows
        [[unroll]] for (uint e = 0u; e < uint(UNITS_EACH * UNIT); ++e) sum[i][e] = 0.0;
    }

    for (; block < end; ++block) {
        uint row = block * uint(LANES) + lane;
        uint key_row = min(row, rows - 1u);
        float score[QUERIES];
        [[unroll]] for (uint i = 0u; i < uint(QUERIES); ++i) score[i] = 0.0;
        for (uint u = 0u; u < uint(UNITS); u += uint(STRIDE)) {
            [[unroll]] for (uint k = 0u; k < uint(STRIDE); ++k) {
#if UNITS % STRIDE
                if (u + k >= uint(UNITS)) break;
#endif
                float key[UNIT];
                load_key(key_row, key_head, u + k, key);
                [[unroll]] for (uint i = 0u; i < uint(QUERIES); ++i) {
                    [[unroll]] for (uint e = 0u; e < uint(UNIT); ++e) {
                        score[i] += key[e] * q[from[i] + (u + k) * uint(UNIT) + e];
                    }
                }
            }
        }

        float weight[QUERIES];
        [[unroll]] for (uint i = 0u; i < uint(QUERIES); ++i) {
            float scaled = row < seen[i] ? score[i] * SCALE : HIDDEN;
            float higher = max(peak[i], subgroupMax(scaled));
            float fade = exp(peak[i] - higher);
            weight[i] = exp(scaled - higher);
            total[i] = total[i] * fade + weight[i];
            peak[i] = higher;
            [[unroll]] for (uint e = 0u; e < uint(UNITS_EACH * UNIT); ++e) sum[i][e] *= fade;
        }

        uint in_block = min(rows - block * uint(LANES), uint(LANES));
        for (uint other = 0u; other < in_block; ++other) {
            float share_of[QUERIES];
            [[unroll]] for (uint i = 0u; i < uint(QUERIES); ++i) {
                share_of[i] = subgroupShuffle(weight[i], other);
            }
            [[unroll]] for (uint n = 0u; n < uint(UNITS_EACH); ++n) {
                float value[UNIT];
                uint unit = min(n * uint(LANES) + lane, uint(UNITS) - 1u);
                load_value(block * uint(LANES) + other, key_head, unit, value);
                [[unroll]] for (uint i = 0u; i < uint(QUERIES); ++i) {
                    [[unroll]] for (uint e = 0u; e < uint(UNIT); ++e) {
                        sum[i][n * uint(UNIT) + e] += share_of[i] * value[e];
                    }
                }
            }
        }
    }

    [[unroll]] for (uint i = 0u; i < uint(QUERIES); ++i) {
        float all = subgroupAdd(total[i]);
        if (token_of(i) > last) continue;
        uint query = token_of(i) * uint(HEADS) + head_of(i);
#if SPLITS > 1
        uint place = query * uint(SPLITS) + gl_WorkGroupID.x;
        if (lane == 0u) {
            ends[2u * place] = peak[i];
            ends[2u * place + 1u] = all;
        }
        if (all == 0.0) continue;
#else
        uint place = query;
        float factor = 1.0 / all;
#endif
        [[unroll]] for (uint n = 0u; n < uint(UNITS_EACH); ++n) {
            uint unit = n * uint(LANES) + lane;
            if (unit < uint(UNITS)) {
                [[unroll]] for (uint e = 0u; e < uint(UNIT); ++e) {
                    uint to = place * uint(HEAD_SIZE) + unit * uint(UNIT) + e;
#if SPLITS > 1
                    parts[to] = sum[i][n * uint(UNIT) + e];
#else
                    y[to] = sum[i][n * uint(UNIT) + e] * factor;
#endif
                }
            }
        }
    }
}
