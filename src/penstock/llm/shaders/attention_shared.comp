// Causal attention for GPUs: a workgroup for each head, token and share of the rows in view.
//
//   q             float32 (tokens, HEADS * HEAD_SIZE), rotated
//   keys, values  the planes of the KV cache; see cache.glsl
//   state         its word POSITION is the position of token 0 of the batch
//   y             float32 (tokens, HEADS * HEAD_SIZE)
//   parts, ends   with SPLITS > 1 instead of y; see attention_join.comp
//
// The tokens of the launch are first_token .. first_token + count - 1 of the batch; q and y begin
// with the first of them. Token t looks at rows 0 .. position + t, at most `context` rows.
//
// Groups (SPLITS, HEADS, count). Rows are taken in blocks of one row per invocation. For the scores
// an invocation takes a row; for the weighted sum it takes a unit of the head, so that loads of
// neighbouring invocations coalesce. If there are more invocations than units, LINES invocations share
// a unit, and each takes every LINES-th row. Query, weights and final sums go through shared memory.

layout(local_size_x = SIZE) in;

#include "group.glsl"
#include "cache.glsl"

layout(binding = 0) readonly buffer Q { float q[]; };
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

// With more units than invocations, an invocation takes several.
#define UNITS_EACH ((UNITS + SIZE - 1) / SIZE)
#define LINES ((SIZE + UNITS - 1) / UNITS > 1 ? SIZE / UNITS : 1)
const float HIDDEN = -3e38;   // the score of a row that does not exist
const float LOWEST = -1e30;   // below every score, above HIDDEN

shared float query[HEAD_SIZE];
shared float weights[SIZE];
shared float sums[LINES * HEAD_SIZE];

void main() {
    uint lane = gl_LocalInvocationID.x;
    uint head = gl_WorkGroupID.y, token = gl_WorkGroupID.z;
    uint key_head = head / uint(HEADS / KV_HEADS);
    uint rows = min(state[POSITION] + first_token + token + 1u, context);
    uint share = (rows + uint(SPLITS) - 1u) / uint(SPLITS);
    uint start = min(gl_WorkGroupID.x * share, rows), end = min(start + share, rows);

    uint number = token * uint(HEADS) + head;
    for (uint i = lane; i < uint(HEAD_SIZE); i += uint(SIZE)) {
        query[i] = q[number * uint(HEAD_SIZE) + i] * SCALE;
    }
    barrier();

    float peak = LOWEST, total = 0.0, sum[UNITS_EACH * UNIT];
    for (uint e = 0u; e < uint(UNITS_EACH * UNIT); ++e) sum[e] = 0.0;
    uint line = lane / uint(UNITS);  // only with LINES > 1 is there more than one
    uint unit = LINES > 1 ? lane % uint(UNITS) : lane;

    for (uint block = start; block < end; block += uint(SIZE)) {
        uint row = block + lane;
        float score = HIDDEN;
        if (row < end) {
            score = 0.0;
            for (uint u = 0u; u < uint(UNITS); ++u) {
                float key[UNIT];
                load_key(row, key_head, u, key);
                for (uint e = 0u; e < uint(UNIT); ++e) score += key[e] * query[u * uint(UNIT) + e];
            }
        }
        float higher = max(peak, group_max(score));
        float fade = exp(peak - higher), weight = exp(score - higher);
        peak = higher;
        total = total * fade + weight;  // of this invocation's rows
        for (uint e = 0u; e < uint(UNITS_EACH * UNIT); ++e) sum[e] *= fade;
        weights[lane] = weight;
        barrier();

        uint in_block = min(end - block, uint(SIZE));
        if (LINES == 1 || line < uint(LINES)) {
            for (uint other = LINES > 1 ? line : 0u; other < in_block; other += uint(LINES)) {
                for (uint n = 0u; n < uint(UNITS_EACH); ++n) {
                    if (unit + n * uint(SIZE) < uint(UNITS)) {
                        float value[UNIT];
                        load_value(block + other, key_head, unit + n * uint(SIZE), value);
                        for (uint e = 0u; e < uint(UNIT); ++e) {
                            sum[n * uint(UNIT) + e] += weights[other] * value[e];
                        }
                    }
                }
            }
        }
        barrier();
    }

    total = group_sum(total);
    if (LINES == 1 || line < uint(LINES)) {
        for (uint n = 0u; n < uint(UNITS_EACH); ++n) {
            if (unit + n * uint(SIZE) < uint(UNITS)) {
                uint to = (LINES > 1 ? line : 0u) * uint(HEAD_SIZE) + (unit + n * uint(SIZE)) * uint(UNIT);
                for (uint e = 0u; e < uint(UNIT); ++e) sums[to + e] = sum[n * uint(UNIT) + e];
            }
        }
    }
    barrier();

#if SPLITS > 1
    uint place = number * uint(SPLITS) + gl_WorkGroupID.x;
    if (lane == 0u) {
        ends[2u * place] = peak;
        ends[2u * place + 1u] = total;
    }
    if (total == 0.0) return;
#endif
    for (uint i = lane; i < uint(HEAD_SIZE); i += uint(SIZE)) {
        float joined_sum = 0.0;
        for (uint k = 0u; k < uint(LINES); ++k) joined_sum += sums[k * uint(HEAD_SIZE) + i];
#if SPLITS > 1
        parts[place * uint(HEAD_SIZE) + i] = joined_sum;
#else
        y[number * uint(HEAD_SIZE) + i] = joined_sum / total;
#endif
    }
}
