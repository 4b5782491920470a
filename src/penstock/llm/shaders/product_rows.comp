// y[t, r] (+)= the sum over c of weight[r, c] * x[t, c], with a lane for each row.
//
// A workgroup is one subgroup of at least 8 lanes. A lane takes ROWS rows and TOKENS tokens, and keeps
// their sums in registers: it uses each weight that it decodes for TOKENS tokens. Eight lanes load
// different parts of x, and pass them to all lanes by shuffles: each part is loaded once, and used for
// ROWS rows. No sums are shared, so nothing is added up at the end.
//
// For CPU drivers: lavapipe compiles a load from a texel buffer to a gather of words, or for texels of
// four words to a load for each lane and a transposition, which is faster; and a shuffle to one
// instruction, but a load from a storage buffer to a branch and a load for each lane. It runs each
// `for` once more than its body, masked out, which a `do … while` avoids; and at each turn it merges
// all that the loop changes under a mask, hence UNROLL.
//
// words     uint32, four per texel with WIDE, else one; the weights, see blocks.glsl
// x         float32[tokens, columns], four columns per texel, from texel `x_first` on
// y         float32[tokens, stride]; the result of the first row goes to column `place`
// begin     the byte at which the first row begins
// pitch     bytes from one row to the next
// rows      number of rows
// units     units per row, at least one; they cover all columns
// tokens    number of tokens
// add       1: adds to y instead of overwriting it
//
//   ROWS      rows of a lane, up to 8
//   TOKENS    tokens of a lane: 1, 2, 4, or a multiple of 8 up to 32
//   OUTPUTS   ROWS * TOKENS
//   FACTORED  scales and offsets are applied to sums over units, not to weights; see blocks.glsl. For
//             one token, with TURNS = 1
//   DOTS_EACH QUADS * GROUPS of blocks.glsl
//   DOTS      ROWS * DOTS_EACH
//   LOADS     loads of x for the same columns: TOKENS / 8, or 1
//   LOADED    tokens of one load: 8, or TOKENS
//   TILES     QUADS * LOADS
//   PARTS     consecutive quads of columns that one load of x fetches for each token: 8 / TOKENS, or
//             1, and at most STEPS
//   UNROLL    how often PARTS steps are unrolled in a turn of the inner loop
//   TURNS     turns of the inner loop: STEPS / (PARTS * UNROLL)
//
// Mapping: x, ROWS times as many rows as a subgroup has lanes; y, groups of TOKENS tokens, or tiles of
// some expert's (share.glsl).

#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require

layout(local_size_x_id = 0) in;

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
    uint x_first;
    uint add;
#ifdef EXPERTS
    uint split;
    uint gather;
#endif
};

#ifdef WIDE
layout(binding = 0, rgba32ui) uniform readonly uimageBuffer words;
#else
layout(binding = 0, r32ui) uniform readonly uimageBuffer words;
#endif
layout(binding = 1, rgba32f) uniform readonly imageBuffer x;
layout(binding = 2) buffer Y { float y[]; };

#ifdef WIDE
uvec4 fetch_four(uint source, uint at) { return imageLoad(words, int(at)); }
#else
uint fetch(uint source, uint at) { return imageLoad(words, int(at)).x; }
#endif

#include "share.glsl"
#include "blocks.glsl"

uint inputs[LOADS];  // where in x this lane's part of each load begins, in texels
Head heads[ROWS];
vec4 weights[QUADS * ROWS];
float sums[OUTPUTS];
#if PARTS > 1
vec4 loaded[TILES];
#endif

// Functions instead of loops: every compiler inlines them, so that indices of arrays are constants and
// the arrays stay in registers. A macro cannot repeat inside itself, hence a function for each level.

vec4 load(uint unit, uint step, const uint tile) {
    uint column = unit * UNIT + 4 * step + tile / LOADS * APART;
    return imageLoad(x, int(inputs[tile % LOADS] + column / 4));
}

#ifdef FACTORED
float dots[DOTS], input_sums[DOTS_EACH];  // of a unit
#endif

void add_products(const uint quad, const uint token, const uint group, vec4 values) {
#ifdef FACTORED
#define ADD_PRODUCT(n) \
    dots[n * DOTS_EACH + group * QUADS + quad] += dot(weights[quad * ROWS + n], values);
#else
#define ADD_PRODUCT(n) sums[n * TOKENS + token] += dot(weights[quad * ROWS + n], values);
#endif
    REPEAT(ROWS, ADD_PRODUCT)
}

void multiply(uint unit, uint step, const uint part, const uint tile) {
#if PARTS > 1
    vec4 given = loaded[tile];
#else
    vec4 given = load(unit, step, tile);
#endif
#define TOKEN(t) \
    add_products(tile / LOADS, tile % LOADS * 8 + t, part * GROUPS / PARTS,                    \
                 subgroupShuffle(given, t * PARTS + part));
    REPEAT(LOADED, TOKEN)
}

void decode(const uint n, uint step) {
    vec4 decoded[QUADS];
    read_step(n, heads[n], step, decoded);
#define KEEP(quad) weights[quad * ROWS + n] = decoded[quad];
    REPEAT(QUADS, KEEP)
}

void take_step(uint unit, uint step, const uint part) {
#define DECODE(n) decode(n, step);
    REPEAT(ROWS, DECODE)
#define MULTIPLY(tile) multiply(unit, step, part, tile);
    REPEAT(TILES, MULTIPLY)
}

void take_parts(uint unit, uint step) {
#if PARTS > 1
#define LOAD(tile) loaded[tile] = load(unit, step, tile);
    REPEAT(TILES, LOAD)
#endif
#define PART(part) take_step(unit, step + part, part);
    REPEAT(PARTS, PART)
}

#ifdef FACTORED
// What the lanes loaded of x, added up: for FACTORED each has another part of the unit.
void add_inputs(const uint tile) {
    float sum = dot(loaded[tile], vec4(1.0));
#if PARTS > 1
    sum += subgroupShuffleXor(sum, 1);
#endif
#if PARTS > 2
    sum += subgroupShuffleXor(sum, 2);
#endif
#if PARTS > 4 && GROUPS == 1
    sum += subgroupShuffleXor(sum, 4);
#endif
#if GROUPS == 1
    input_sums[tile] = sum;
#else
    input_sums[tile] = subgroupShuffle(sum, 0);
    input_sums[QUADS + tile] = subgroupShuffle(sum, 4);
#endif
}

void finish_unit(const uint n) {
    float of_row[DOTS_EACH];
#define OF_ROW(d) of_row[d] = dots[n * DOTS_EACH + d];
    REPEAT(DOTS_EACH, OF_ROW)
    sums[n] += factored(heads[n], of_row, input_sums);
}
#endif

void main() {
    if (!find_share(gl_WorkGroupID.y, TOKENS, begin)) return;
    uint lane = gl_SubgroupInvocationID, lanes = gl_WorkGroupSize.x;
    uint first_row = gl_WorkGroupID.x * lanes * ROWS + lane;
    uint first_token = share.first;
    // A row or token that does not exist is replaced by one that does; its sums are dropped.
#define INPUT(n)                                                                              \
    inputs[n] = x_first + lane % 8 % PARTS                                                    \
        + row_of_x(min(first_token + 8 * n + lane % 8 / PARTS, share.end - 1)) * (columns / 4);
    REPEAT(LOADS, INPUT)
    uint starts[ROWS];
#define BEGIN(n) starts[n] = share.begin + min(first_row + n * lanes, rows - 1) * pitch;
    REPEAT(ROWS, BEGIN)
#define CLEAR(o) sums[o] = 0.0;
    REPEAT(OUTPUTS, CLEAR)

    // lavapipe would read a push constant again in every turn, with some twenty instructions.
    uint unit = 0, all_units = units;
    do {
#define HEAD(n) heads[n] = read_head(n, starts[n], unit);
        REPEAT(ROWS, HEAD)
#ifdef FACTORED
#define CLEAR_DOT(o) dots[o] = 0.0;
        REPEAT(DOTS, CLEAR_DOT)
#endif
        uint step = 0;
#define TAKE(n) take_parts(unit, step + n * PARTS);
#if TURNS > 1
        // Unknown to the compiler, which would unroll it all: the code gets too long to be fast.
        uint end = min(STEPS, all_units * STEPS);
        do {
#ifdef WIDE
#define RESUME(n) resume(heads[n]);
            REPEAT(ROWS, RESUME)
#endif
            REPEAT(UNROLL, TAKE)
            step += UNROLL * PARTS;
        } while (step < end);
#else
        REPEAT(UNROLL, TAKE)
#endif
#ifdef FACTORED
#define ADD_INPUTS(tile) add_inputs(tile);
        REPEAT(TILES, ADD_INPUTS)
#define FINISH_UNIT(n) finish_unit(n);
        REPEAT(ROWS, FINISH_UNIT)
#endif
    } while (++unit < all_units);

#define WRITE(o)                                                                    \
    {                                                                               \
        uint row = first_row + o / TOKENS * lanes, token = first_token + o % TOKENS; \
        if (row < rows && token < share.end) {                                         \
            uint at = token * stride + place + row;                                 \
            float before = 0.0;                                                     \
            if (add != 0u) before = y[at];                                          \
            y[at] = before + sums[o];                                               \
        }                                                                           \
    }
    REPEAT(OUTPUTS, WRITE)
}
