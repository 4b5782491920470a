// sums[s, b, m, n] = the sum over k of segment s of left[b, m, k] * right[b, k, n], with a lane for
// each column.
//
// A workgroup is one subgroup. A lane takes 8 rows and COLUMNS columns, a subgroup apart, and keeps
// their sums in registers. The lanes load different rows of `left` and pass them to all lanes by
// shuffles; each loads its own columns of `right`. Both are packed (product_pack.comp), in panels of 8
// rows and of COLUMNS columns for each lane, so that every load is of neighbouring 16 bytes.
//
// For CPU drivers: lavapipe compiles a load from a texel buffer to a gather and a shuffle to one
// instruction, but a load from a storage buffer to a branch and a load for each lane. TEXELS: the
// operands are texel buffers. It runs each `for` once more than its body, which `do … while` avoids.
//
//   COLUMNS   2 or 4
//   LOADS     (a constant) rows that a lane loads: 1, or 2 in a subgroup of 4
//
// Mapping: x, panels of columns; y, panels of rows; z, batches, of all segments one after the other.

#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require

#include "product.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 2) const uint LOADS = 1u;

#include "repeat.glsl"
layout(push_constant) uniform Shape {
    uint rows;
    uint columns;
    uint parts;  // of a line, of 16 bytes
    uint span;  // parts of a segment
    uint batches;
    uint batch_0;  // the sizes of the two inner axes of the batch, and the strides of all three
    uint batch_1;
    uint left_0;
    uint left_1;
    uint left_2;
    uint right_0;
    uint right_1;
    uint right_2;
    uint to_row;  // strides of the sums, in sums
    uint to_column;
    uint sums_at;  // the first word of the sums
};

#ifdef TEXELS
layout(binding = 0) uniform usamplerBuffer left;
layout(binding = 1) uniform usamplerBuffer right;
#define FETCH(name, index) texelFetch(name, int(index))
#else
layout(binding = 0) readonly buffer Left { uvec4 left[]; };
layout(binding = 1) readonly buffer Right { uvec4 right[]; };
#define FETCH(name, index) name[index]
#endif
layout(binding = 2) writeonly buffer Sums { Word sums[]; };

T kept[8 * COLUMNS];
uvec4 of_columns[COLUMNS];
uvec4 of_rows[2];

T multiplied(T sum, uvec4 x, uvec4 y) {
#if KIND == F32
    return sum + dot(uintBitsToFloat(x), uintBitsToFloat(y));
#elif SAME == 4
    return add_product(add_product(add_product(add_product(sum, x.x, y.x), x.y, y.y), x.z, y.z), x.w, y.w);
#elif SAME == 2
    sum = add_product(sum, number_of(x), number_of(y));
    return add_product(sum, number_of(x.zwzw), number_of(y.zwzw));
#else
    return add_product(sum, number_of(x), number_of(y));
#endif
}

// Functions instead of loops: every compiler inlines them, so that indices of arrays are constants.

void take_row(const uint row) {
    uvec4 given = LOADS > 1u ? subgroupShuffle(of_rows[row % 2u], row / 2u)
                             : subgroupShuffle(of_rows[0], row);
#define MULTIPLY(n) kept[row * COLUMNS + n] = multiplied(kept[row * COLUMNS + n], given, of_columns[n]);
    REPEAT(COLUMNS, MULTIPLY)
}

void clear_row(const uint row) {
#define CLEAR(n) kept[row * COLUMNS + n] = T(0);
    REPEAT(COLUMNS, CLEAR)
}

void write_row(const uint row, uint y, uint x, uint to) {
    if (y >= rows) return;
#define WRITE(n) if (x + n * gl_WorkGroupSize.x < columns) \
        PUT(sums, sums_at, to + y * to_row + (x + n * gl_WorkGroupSize.x) * to_column, kept[row * COLUMNS + n])
    REPEAT(COLUMNS, WRITE)
}

void main() {
    uint lane = gl_SubgroupInvocationID, width = gl_WorkGroupSize.x * COLUMNS;
    uint segment = gl_WorkGroupID.z / batches, batch = gl_WorkGroupID.z % batches;
    uint b0 = batch % batch_0, b1 = batch / batch_0 % batch_1, b2 = batch / batch_0 / batch_1;
    uint part = segment * span, end = min(part + span, parts);
    uint from_left = b0 * left_0 + b1 * left_1 + b2 * left_2
        + (gl_WorkGroupID.y * parts + part) * 8u + lane % 8u * LOADS;
    uint from_right = b0 * right_0 + b1 * right_1 + b2 * right_2
        + (gl_WorkGroupID.x * parts + part) * width + lane;
#define CLEAR_ROW(row) clear_row(row);
    REPEAT(8, CLEAR_ROW)
    do {
        of_rows[0] = FETCH(left, from_left);
        if (LOADS > 1u) of_rows[1] = FETCH(left, from_left + 1u);
#define LOAD_COLUMN(n) of_columns[n] = FETCH(right, from_right + n * gl_WorkGroupSize.x);
        REPEAT(COLUMNS, LOAD_COLUMN)
#define TAKE_ROW(row) take_row(row);
        REPEAT(8, TAKE_ROW)
        from_left += 8u;
        from_right += width;
    } while (++part < end);
    uint to = gl_WorkGroupID.z * rows * columns;
#define WRITE_ROW(row) write_row(row, gl_WorkGroupID.y * 8u + row, gl_WorkGroupID.x * width + lane, to);
    REPEAT(8, WRITE_ROW)
}
