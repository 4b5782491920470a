// sums[s, b, m, n] = the sum over k of segment s of left[b, m, k] * right[b, k, n], in tiles of shared
// memory: for GPUs.
//
// A group of 16 × 16 invocations takes a tile of 64 × 64 sums, DEPTH numbers of k at a time: it copies
// these parts of both operands to shared memory, at any strides and decoded, and each invocation adds
// products to its 4 × 4 sums, which are 16 apart, so that neighbours read neighbouring banks.
//
//   DEPTH        8 or 16
//   ROWS_FIRST, COLUMNS_FIRST (constants): neighbouring invocations load neighbouring rows of `left`, or
//                columns of `right`; otherwise neighbouring k. The host chooses what memory has side by
//                side.
//
// Mapping: x, tiles of columns; y, tiles of rows; z, batches, of all segments one after the other.

#include "product.glsl"

layout(local_size_x = 256) in;

layout(constant_id = 2) const bool ROWS_FIRST = false;
layout(constant_id = 3) const bool COLUMNS_FIRST = true;

layout(push_constant) uniform Shape {
    uint rows;
    uint columns;
    uint inner;
    uint span;  // of a segment
    uint batches;
    uint batch_0;  // the sizes of the two inner axes of the batch, and the strides of all three
    uint batch_1;
    uint left_at;  // all offsets and strides of the operands are bytes
    uint left_row;
    uint left_inner;
    uint left_0;
    uint left_1;
    uint left_2;
    uint right_at;
    uint right_column;
    uint right_inner;
    uint right_0;
    uint right_1;
    uint right_2;
    uint sums_at;  // the first word of the sums
};

layout(binding = 0) readonly buffer Left { Word left[]; };
layout(binding = 1) readonly buffer Right { Word right[]; };
layout(binding = 2) writeonly buffer Sums { Word sums[]; };

shared T of_left[DEPTH][64];
shared T of_right[DEPTH][64];

void main() {
    uint own = gl_LocalInvocationID.x, x = own % 16u, y = own / 16u;
    uint segment = gl_WorkGroupID.z / batches, batch = gl_WorkGroupID.z % batches;
    uint b0 = batch % batch_0, b1 = batch / batch_0 % batch_1, b2 = batch / batch_0 / batch_1;
    uint from_left = left_at + b0 * left_0 + b1 * left_1 + b2 * left_2;
    uint from_right = right_at + b0 * right_0 + b1 * right_1 + b2 * right_2;
    uint first_row = gl_WorkGroupID.y * 64u, first_column = gl_WorkGroupID.x * 64u;
    T kept[4][4];
    [[unroll]] for (uint i = 0u; i < 4u; ++i)
        [[unroll]] for (uint j = 0u; j < 4u; ++j) kept[i][j] = T(0);

    uint begin = segment * span, end = min(begin + span, inner);
    for (uint k = begin; k < end; k += DEPTH) {
        [[unroll]] for (uint i = 0u; i < DEPTH / 4; ++i) {
            uint number = i * 256u + own;
            uint line = ROWS_FIRST ? number % 64u : number / DEPTH;
            uint deep = ROWS_FIRST ? number / 64u : number % DEPTH;
            uint at = from_left + (first_row + line) * left_row + (k + deep) * left_inner;
            T loaded = T(0);
            if (first_row + line < rows && k + deep < end) loaded = decoded(RAW(left, at));
            of_left[deep][line] = loaded;
            line = COLUMNS_FIRST ? number % 64u : number / DEPTH;
            deep = COLUMNS_FIRST ? number / 64u : number % DEPTH;
            at = from_right + (first_column + line) * right_column + (k + deep) * right_inner;
            loaded = T(0);
            if (first_column + line < columns && k + deep < end) loaded = decoded(RAW(right, at));
            of_right[deep][line] = loaded;
        }
        barrier();
        [[unroll]] for (uint deep = 0u; deep < DEPTH; ++deep) {
            T of_rows[4];
            T of_columns[4];
            [[unroll]] for (uint i = 0u; i < 4u; ++i) {
                of_rows[i] = of_left[deep][y + 16u * i];
                of_columns[i] = of_right[deep][x + 16u * i];
            }
            [[unroll]] for (uint i = 0u; i < 4u; ++i)
                [[unroll]] for (uint j = 0u; j < 4u; ++j)
                    kept[i][j] = add_product(kept[i][j], of_rows[i], of_columns[j]);
        }
        barrier();
    }
    uint to = gl_WorkGroupID.z * rows * columns;
    [[unroll]] for (uint i = 0u; i < 4u; ++i)
        [[unroll]] for (uint j = 0u; j < 4u; ++j) {
            uint row = first_row + y + 16u * i, column = first_column + x + 16u * j;
            if (row < rows && column < columns) PUT(sums, sums_at, to + row * columns + column, kept[i][j])
        }
}
