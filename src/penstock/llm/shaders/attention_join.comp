// Combines the partial results of the shares of the rows, for each query: the second half of
// attention. Reads the first `shares` of SPLITS shares.
//
//   parts   float32 (queries, SPLITS, HEAD_SIZE): sums of values, weighted relative to the share's
//           highest score; not written where the share had no rows
//   ends    float32 (queries, SPLITS, 2): that highest score, and the sum of the weights (0: no rows).
//           SMALL: the number of floats that are bound
//   y       float32 (queries, HEAD_SIZE)
//
// An invocation for each element of y.

layout(local_size_x_id = 0) in;

#include "input.glsl"

layout(binding = 0) readonly buffer Parts { float parts[]; };
INPUT(1, Ends, ends, SMALL);
layout(binding = 2) writeonly buffer Y { float y[]; };
layout(push_constant) uniform Arguments { uint n; uint shares; };

void main() {
    uint i = gl_GlobalInvocationID.x;
    if (i >= n) return;
    uint query = i / uint(HEAD_SIZE), element = i % uint(HEAD_SIZE);
    float peak = -1e30, total = 0.0, sum = 0.0;
    for (uint k = 0u; k < shares; ++k) {
        uint place = query * uint(SPLITS) + k;
        float weights = ends[2u * place + 1u];
        if (weights > 0.0) {
            float highest = ends[2u * place];
            float higher = max(peak, highest);
            float fade = exp(peak - higher), gain = exp(highest - higher);
            sum = sum * fade + gain * parts[place * uint(HEAD_SIZE) + element];
            total = total * fade + gain * weights;
            peak = higher;
        }
    }
    y[i] = sum / total;
}
