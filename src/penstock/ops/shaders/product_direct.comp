// sums[s, b, m, n] = the sum over k of segment s of left[b, m, k] * right[b, k, n], of elements where
// they are: for small products, and for those of a matrix and a vector, which read each element once.
//
// An invocation takes ROWS rows and COLUMNS columns, and keeps their sums in registers.
//
//   ALONG     the invocations of a group share their sums: each takes every n-th k. Otherwise they take
//             different columns, COLUMNS times as many as the group has invocations
//   TREE      with ALONG: sums are added up in shared memory. Otherwise a group is one subgroup, and
//             shuffles do it
//   PAIRED    not a product of matrices: a column has a row of its own in `left`, and there is one row
//             of sums
//   TEXELS    the operands are texel buffers, one word per texel; see product.glsl
//
// Mapping: x, columns; y, rows; z, batches, of all segments one after the other.

#if defined(ALONG) && !defined(TREE)
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#endif

#include "product.glsl"

layout(local_size_x_id = 0) in;
#define GROUP gl_WorkGroupSize.x  // a power of two

#include "repeat.glsl"
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
    uint to_row;  // strides of the sums, in sums
    uint to_column;
    uint sums_at;  // the first word of the sums
};

SOURCE(0, left);
SOURCE(1, right);
layout(binding = 2) writeonly buffer Sums { Word sums[]; };

T kept[ROWS * COLUMNS];
T of_columns[COLUMNS];
uint row_starts[ROWS];
uint column_starts[COLUMNS];

void take_row(const uint row, uint k) {
    T given = decoded(RAW(left, row_starts[row] + k * left_inner));
#define MULTIPLY(n) kept[row * COLUMNS + n] = add_product(kept[row * COLUMNS + n], given, of_columns[n]);
    REPEAT(COLUMNS, MULTIPLY)
}

void clear_row(const uint row) {
#define CLEAR(n) kept[row * COLUMNS + n] = T(0);
    REPEAT(COLUMNS, CLEAR)
}

#ifdef ALONG
#define APART 1u
#ifdef TREE
shared T parts[GROUP];

T joined(T sum) {
    uint own = gl_LocalInvocationID.x;
    parts[own] = sum;
    for (uint half_ = GROUP / 2u; half_ > 0u; half_ /= 2u) {
        barrier();
        if (own < half_) parts[own] = add(parts[own], parts[own + half_]);
    }
    T total = parts[0];
    barrier();
    return total;
}
#else
T joined(T sum) {
#define SHUFFLE(n) if (GROUP > n) sum = add(sum, number_of(subgroupShuffleXor(bits_of(sum), n)));
    SHUFFLE(1u) SHUFFLE(2u) SHUFFLE(4u) SHUFFLE(8u) SHUFFLE(16u) SHUFFLE(32u)
    return sum;
}
#endif
#else
#define APART GROUP
#endif

void write_row(const uint row, uint y, uint x, uint to) {
#define WRITE(n) { \
        uint column = x + n * APART; \
        JOIN(row * COLUMNS + n) \
        if (y < rows && column < columns && WRITES) \
            PUT(sums, sums_at, to + y * to_row + column * to_column, kept[row * COLUMNS + n]) }
#ifdef ALONG
#define JOIN(o) kept[o] = joined(kept[o]);
#define WRITES gl_LocalInvocationID.x == 0u
#else
#define JOIN(o)
#define WRITES true
#endif
    REPEAT(COLUMNS, WRITE)
}

void main() {
    uint own = gl_LocalInvocationID.x;
    uint segment = gl_WorkGroupID.z / batches, batch = gl_WorkGroupID.z % batches;
    uint b0 = batch % batch_0, b1 = batch / batch_0 % batch_1, b2 = batch / batch_0 / batch_1;
    uint first_row = gl_WorkGroupID.y * ROWS;
#ifdef ALONG
    uint first_column = gl_WorkGroupID.x * COLUMNS;
    uint step = GROUP, offset = own;
#else
    uint first_column = gl_WorkGroupID.x * GROUP * COLUMNS + own;
    uint step = 1u, offset = 0u;
#endif
    // A row or column that does not exist is replaced by one that does; its sums are dropped.
    uint from_left = left_at + b0 * left_0 + b1 * left_1 + b2 * left_2;
    uint from_right = right_at + b0 * right_0 + b1 * right_1 + b2 * right_2;
#ifdef PAIRED
    row_starts[0] = from_left + min(first_column, columns - 1u) * left_row;
#else
#define ROW_START(n) row_starts[n] = from_left + min(first_row + n, rows - 1u) * left_row;
    REPEAT(ROWS, ROW_START)
#endif
#define COLUMN_START(n) \
    column_starts[n] = from_right + min(first_column + n * APART, columns - 1u) * right_column;
    REPEAT(COLUMNS, COLUMN_START)
#define CLEAR_ROW(row) clear_row(row);
    REPEAT(ROWS, CLEAR_ROW)
    uint k = segment * span, end = min(k + span, inner);
    for (k += offset; k < end; k += step) {
#define LOAD_COLUMN(n) of_columns[n] = decoded(RAW(right, column_starts[n] + k * right_inner));
        REPEAT(COLUMNS, LOAD_COLUMN)
#define TAKE_ROW(row) take_row(row, k);
        REPEAT(ROWS, TAKE_ROW)
    }
    uint to = gl_WorkGroupID.z * rows * columns;
#define WRITE_ROW(row) write_row(row, first_row + row, first_column, to);
    REPEAT(ROWS, WRITE_ROW)
}
