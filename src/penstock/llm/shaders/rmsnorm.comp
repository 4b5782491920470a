// RMSNorm: y = x / sqrt(mean(x²) + eps) * (w + shift), row by row.
//
//   x      float32, rows of n; `first_row` is the first to be normalised (0 with SMALL)
//   state  with PADDED: the first row is as many before `first_row` as its word PADDING says
//   words  the n weights, from byte `first` on; see vector.glsl
//   y      float32, rows of n, from row 0 on; must not alias x
//
// A workgroup for each row and part of its columns: groups (parts, rows). Every workgroup sums the
// squares of the whole row, not only of its part: on a CPU driver that is cheaper than a second
// launch. SMALL: n, if there is a single row.

layout(local_size_x_id = 0) in;

#include "group.glsl"
#include "input.glsl"
#include "vector.glsl"

INPUT(0, X, x, SMALL);
VECTOR(1, W, words, weight)
layout(binding = 2) writeonly buffer Y { float y[]; };
#ifdef PADDED
layout(binding = 3) readonly buffer State { uint state[]; };
#define FIRST_ROW (first_row - state[PADDING])
#else
#define FIRST_ROW first_row
#endif
layout(push_constant) uniform Arguments { uint n; uint first_row; uint first; float eps; float shift; };

void main() {
    uint lane = gl_LocalInvocationID.x, lanes = gl_WorkGroupSize.x;
    uint row = gl_WorkGroupID.y;
    uint from = (FIRST_ROW + row) * n;
    float squares = 0.0;
    for (uint i = lane; i < n; i += lanes) {
        float value = x[from + i];
        squares += value * value;
    }
    float scale = 1.0 / sqrt(group_sum(squares) / float(n) + eps);
    for (uint i = gl_WorkGroupID.x * lanes + lane; i < n; i += gl_NumWorkGroups.x * lanes) {
        y[row * n + i] = x[from + i] * scale * (weight(first, i) + shift);
    }
}
