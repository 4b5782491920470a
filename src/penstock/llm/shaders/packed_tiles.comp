// product_tiles.comp with packed integer dot products: x is rounded to 8 bits (quantize.comp), and
// weights stay integers until four columns at a time are multiplied and added (packed.glsl).
//
// A slice of a row is 8 ints and, for each of the groups that it touches, a factor; so is that of a
// token. Its ints are ordered by group.
//
// Buffers and numbers are those of packed_vector.comp.
//
//   TILE      tokens of a tile: 16, 32 or 64
//   ROWS      rows of an invocation: 4 or 8
//   TOKENS    tokens of an invocation, TILE * 64 / (128 * ROWS)
//   OUTPUTS   ROWS * TOKENS
//   HALF      steps of a slice that one invocation decodes; two share a row. SLICE_STEPS / 2
//   LOADS     ints of x that one invocation loads: TILE / 16
//   DECODED   HALF * QUADS
//   VALUES    8 * TOKENS
//   FACTORS   DOT_GROUPS * TOKENS
//
// Mapping: x, groups of 64 rows; y, groups of TILE tokens, or tiles of some
// expert's (share.glsl).

layout(local_size_x = 128) in;

#include "repeat.glsl"

layout(push_constant) uniform Shape {
    uint pitch;
    uint rows;
    uint units;
    uint columns;
    uint tokens;
    uint stride;
    uint place;
    uint begin;
    uint add;
#ifdef EXPERTS
    uint split;
    uint gather;
#endif
};

layout(binding = 0) readonly buffer Words { uint words[]; };
layout(binding = 1) readonly buffer X { int x[]; };
layout(binding = 2) readonly buffer Factors { vec2 factors[]; };
layout(binding = 3) buffer Y { float y[]; };

uint fetch(uint source, uint at) { return words[at]; }

#include "share.glsl"
#include "packed.glsl"

#define SLICE_STEPS (8 / QUADS)
#define SHARE (MINIMA == 2 ? 1.0 : float(SLICE_STEPS) / float(STEPS))
#define SLICES (STEPS / SLICE_STEPS)  // of a unit
#define ROW_LANES (64 / ROWS)         // invocations side by side along the rows of the tile
#define TOKEN_LANES (TILE / TOKENS)   // and along its tokens

// Int i of row r is at r * PITCH + i: with this pitch four neighbouring rows, 16 bytes of each, are
// in different memory banks, and loads of 16 bytes are aligned.
#define PITCH 12
shared int weights[64 * PITCH];
shared int inputs[TILE * PITCH];
shared vec2 weight_factors[64 * DOT_GROUPS];
shared vec2 input_factors[TILE * DOT_GROUPS];

int decoded[DECODED], loaded[LOADS];
int values[VALUES];
vec2 value_factors[FACTORS];  // with MINIMA 2: .y is that of the slice
float sums[OUTPUTS];

// Functions instead of loops: see product_rows.comp.

void decode(inout Head head, uint step, const uint n) {
    int found[QUADS];
    read_bytes(0, head, step + n, found);
#define KEEP(quad) decoded[n * QUADS + quad] = found[quad];
    REPEAT(QUADS, KEEP)
}

void load_values(uint token, const uint t) {
#define VALUE(i) values[t * 8 + i] = inputs[token * PITCH + i];
    REPEAT_8(VALUE)
#define VALUE_FACTOR(group) value_factors[t * DOT_GROUPS + group] = input_factors[token * DOT_GROUPS + group];
    REPEAT(DOT_GROUPS, VALUE_FACTOR)
#if MINIMA == 2
#define VALUE_SUM(group)                                                                     \
    value_factors[t * DOT_GROUPS + group].y = value_factors[t * DOT_GROUPS + group].x        \
        * float(packed_dot(0x01010101, values[t * 8 + 2 * group], 0)                          \
                + packed_dot(0x01010101, values[t * 8 + 2 * group + 1], 0));
    REPEAT(DOT_GROUPS, VALUE_SUM)
#endif
}

int row[8];
vec2 row_factors[DOT_GROUPS];

void add_group(const uint output_, const uint t, const uint group) {
    int sum = 0;
#define ADD_DOT(i) \
    if (i / (8 / DOT_GROUPS) == group) sum += packed_dot(row[i], values[t * 8 + i], 0);
    REPEAT_8(ADD_DOT)
    vec2 factor = row_factors[group], x_factor = value_factors[t * DOT_GROUPS + group];
    sums[output_] += factor.x * x_factor.x * float(sum);
#if MINIMA
    sums[output_] += factor.y * x_factor.y;
#endif
}

void add_output(const uint output_, const uint t) {
#define ADD_GROUP(group) add_group(output_, t, group);
    REPEAT(DOT_GROUPS, ADD_GROUP)
}

void add_row(uint from, const uint n) {
#define ROW(i) row[i] = weights[from * PITCH + i];
    REPEAT_8(ROW)
#define ROW_FACTOR(group) row_factors[group] = weight_factors[from * DOT_GROUPS + group];
    REPEAT(DOT_GROUPS, ROW_FACTOR)
#define ADD_OUTPUT(t) add_output(n * TOKENS + t, t);
    REPEAT(TOKENS, ADD_OUTPUT)
}

void main() {
    if (!find_share(gl_WorkGroupID.y, TILE, begin)) return;
    uint lane = gl_LocalInvocationID.x;
    uint first_row = gl_WorkGroupID.x * 64, first_token = share.first;

    // What this invocation loads: half of a row's slice, and int `part` of LOADS tokens. A row or
    // token that does not exist is replaced by one that does; its sums are dropped.
    uint stored_row = lane / 2, from_step = lane % 2 * HALF;
    uint row_begin = share.begin + min(first_row + stored_row, rows - 1) * pitch;
    uint part = lane % 8, stored_token = lane / 8;
    uint part_column = 4 * (part % SLICE_STEPS) + part / SLICE_STEPS * APART;
    uint starts[LOADS];
#define START(n) \
    starts[n] = row_of_x(min(first_token + stored_token + 16 * n, share.end - 1)) * (columns / 4);
    REPEAT(LOADS, START)

    // What it computes: rows and tokens from these on, as many apart as there are lanes beside it.
    uint row_lane = lane % ROW_LANES, token_lane = lane / ROW_LANES;
#define CLEAR(o) sums[o] = 0.0;
    REPEAT(OUTPUTS, CLEAR)

    for (uint slice = 0; slice < units * SLICES; ++slice) {
        uint unit = slice / SLICES, step = slice % SLICES * SLICE_STEPS;
        Head head = read_head_at(0, row_begin, unit, step + from_step);
        vec2 factor[DOT_GROUPS];
#define FACTOR(group) \
    factor[group] = factor_of(head, step, group) * vec2(1.0, SHARE);
        REPEAT(DOT_GROUPS, FACTOR)
#define DECODE(n) decode(head, step + from_step, n);
        REPEAT(HALF, DECODE)
        uint column = unit * UNIT + 4 * step + part_column;
#define LOAD(n) loaded[n] = x[starts[n] + column / 4];
        REPEAT(LOADS, LOAD)
        // The first lanes of each eight load the factors of x.
        uint block = unit * (UNIT / 32) + min(part, DOT_GROUPS - 1);
        vec2 x_factors[LOADS];
#define LOAD_FACTOR(n) x_factors[n] = factors[starts[n] / 8 + block];
        REPEAT(LOADS, LOAD_FACTOR)

        barrier();  // the slice before is used up
#define STORE_WEIGHT(o)                                                                      \
    weights[stored_row * PITCH + o % QUADS * SLICE_STEPS + from_step + o / QUADS] = decoded[o];
        REPEAT(DECODED, STORE_WEIGHT)
#define STORE_FACTOR(group) \
    if (from_step == 0) weight_factors[stored_row * DOT_GROUPS + group] = factor[group];
        REPEAT(DOT_GROUPS, STORE_FACTOR)
#define STORE_INPUT(n)                                                                       \
    inputs[(stored_token + 16 * n) * PITCH + part] = loaded[n];                              \
    if (part < DOT_GROUPS) input_factors[(stored_token + 16 * n) * DOT_GROUPS + part] = x_factors[n];
        REPEAT(LOADS, STORE_INPUT)
        barrier();

#define LOAD_VALUES(t) load_values(token_lane + t * TOKEN_LANES, t);
        REPEAT(TOKENS, LOAD_VALUES)
#define ADD_ROW(n) add_row(row_lane + n * ROW_LANES, n);
        REPEAT(ROWS, ADD_ROW)
    }

#define WRITE(o)                                                                             \
    {                                                                                        \
        uint row = first_row + row_lane + o / TOKENS * ROW_LANES;                            \
        uint token = first_token + token_lane + o % TOKENS * TOKEN_LANES;                    \
        if (row < rows && token < share.end) {                                                  \
            uint at = token * stride + place + row;                                          \
            float before = 0.0;                                                              \
            if (add != 0) before = y[at];                                                    \
            y[at] = before + sums[o];                                                        \
        }                                                                                    \
    }
    REPEAT(OUTPUTS, WRITE)
}
