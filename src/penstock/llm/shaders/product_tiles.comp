// y[t, r] (+)= the sum over c of weight[r, c] * x[t, c], for many tokens, on GPUs.
//
// A workgroup of 128 computes a tile of 64 rows and TILE tokens, a slice of 32 columns at a time. It
// decodes the weights of a slice once, into shared memory, and loads the slice of x beside it. Then
// each invocation multiplies ROWS rows with TOKENS tokens and keeps their sums in registers.
//
// A slice is 8 quads of four columns, those of SLICE_STEPS steps of a unit (see blocks.glsl): its
// columns need not be neighbours. Shared memory has quad q of row r at q * 64 + (r ^ q): so neither
// the invocations that store the quads of a row, nor those that load a quad of several rows, meet in
// a memory bank. All of it is 16 KiB at most, which every device has.
//
// Buffers and numbers are those of product_vector.comp.
//
//   TILE      tokens of a tile: 16, 32 or 64
//   ROWS      rows of an invocation: 4 or 8
//   TOKENS    tokens of an invocation, TILE * 64 / (128 * ROWS)
//   OUTPUTS   ROWS * TOKENS
//   HALF      steps of a slice that one invocation decodes; two share a row. SLICE_STEPS / 2
//   LOADS     quads of x that one invocation loads: TILE / 16
//   DECODED   HALF * QUADS
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
layout(binding = 1) readonly buffer X { vec4 x[]; };
layout(binding = 2) buffer Y { float y[]; };

uint fetch(uint source, uint at) { return words[at]; }

#include "share.glsl"
#include "steps.glsl"

#define SLICE_STEPS (8 / QUADS)
#define SLICES (STEPS / SLICE_STEPS)  // of a unit
#define ROW_LANES (64 / ROWS)         // invocations side by side along the rows of the tile
#define TOKEN_LANES (TILE / TOKENS)   // and along its tokens

shared vec4 weights[8 * 64];
shared vec4 inputs[8 * TILE];

vec4 decoded[DECODED], loaded[LOADS];
vec4 values[TOKENS];
float sums[OUTPUTS];

// Functions instead of loops: see product_rows.comp.

void decode(inout Head head, uint step, const uint n) {
    vec4 found[QUADS];
    read_step(0, head, step + n, found);
#define KEEP(quad) decoded[n * QUADS + quad] = found[quad];
    REPEAT(QUADS, KEEP)
}

void add_row(uint from, const uint n) {
    vec4 weight = weights[from + n * ROW_LANES];
#define ADD_PRODUCT(t)                                                                       \
    {                                                                                        \
        float sum = sums[n * TOKENS + t];                                                    \
        sum += weight.x * values[t].x;                                                       \
        sum += weight.y * values[t].y;                                                       \
        sum += weight.z * values[t].z;                                                       \
        sums[n * TOKENS + t] = sum + weight.w * values[t].w;                                 \
    }
    REPEAT(TOKENS, ADD_PRODUCT)
}

void main() {
    if (!find_share(gl_WorkGroupID.y, TILE, begin)) return;
    uint lane = gl_LocalInvocationID.x;
    uint first_row = gl_WorkGroupID.x * 64, first_token = share.first;

    // What this invocation loads: half of a row's slice, and quad `part` of LOADS tokens. A row or
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
#define DECODE(n) decode(head, step + from_step, n);
        REPEAT(HALF, DECODE)
        uint column = unit * UNIT + 4 * step + part_column;
#define LOAD(n) loaded[n] = x[starts[n] + column / 4];
        REPEAT(LOADS, LOAD)

        barrier();  // the slice before is used up
#define STORE_WEIGHT(o)                                                                      \
    {                                                                                        \
        uint quad = o % QUADS * SLICE_STEPS + from_step + o / QUADS;                         \
        weights[quad * 64 + (stored_row ^ quad)] = decoded[o];                               \
    }
        REPEAT(DECODED, STORE_WEIGHT)
#define STORE_INPUT(n) inputs[part * TILE + (stored_token ^ part) + 16 * n] = loaded[n];
        REPEAT(LOADS, STORE_INPUT)
        barrier();

        for (uint quad = 0; quad < 8; ++quad) {
            uint of_tokens = quad * TILE + (token_lane ^ quad);
#define VALUE(t) values[t] = inputs[of_tokens + t * TOKEN_LANES];
            REPEAT(TOKENS, VALUE)
            uint of_rows = quad * 64 + (row_lane ^ quad);
#define ADD_ROW(n) add_row(of_rows, n);
            REPEAT(ROWS, ADD_ROW)
        }
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
