// product_vector.comp with packed integer dot products: x is rounded to 8 bits (quantize.comp), and
// weights stay integers until four columns at a time are multiplied and added (packed.glsl).
//
// A workgroup takes ROWS rows and TOKENS tokens. Its lanes share the rows: neighbouring lanes take
// neighbouring steps of a unit (see blocks.glsl), EACH steps at a time, so that together they load
// consecutive memory. A lane uses each weight that it decodes for TOKENS tokens, and each x that it
// loads for ROWS rows. Subgroups add up their lanes' sums; if the workgroup is more than one
// subgroup, these meet in shared memory. The number of lanes in a subgroup, at least 4, may be any.
//
// words     uint32; the weights, see blocks.glsl
// x         int8[tokens, columns], four to an int32
// factors   float32[tokens, columns / 32, 2]: see packed.glsl
// y         float32[tokens, stride]; the result of the first row goes to column `place`
// begin     the byte at which the first row begins
// pitch     bytes from one row to the next
// rows      number of rows
// units     units per row; they cover all columns
// tokens    number of tokens
// add       1: adds to y instead of overwriting it
//
//   EACH      consecutive steps of a lane, a divisor of STEPS
//   OUTPUTS   ROWS * TOKENS, at most the lanes of a workgroup
//   INPUTS    QUADS * TOKENS
//   DOTS      DOT_GROUPS * OUTPUTS
//
// Mapping: x, groups of ROWS rows; y, groups of TOKENS tokens, or tiles of
// some expert's (share.glsl).

#extension GL_KHR_shader_subgroup_arithmetic : require

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

#define PARTS (STEPS / EACH)  // lanes that share a unit

shared float joined[OUTPUTS * gl_WorkGroupSize.x / 4];

uint inputs[TOKENS];  // where in x each token begins, in quads
Head heads[ROWS];
int weights[ROWS * QUADS];
int dots[DOTS];
#if MINIMA == 2
int input_sums[DOT_GROUPS * TOKENS];
#endif
float sums[OUTPUTS];

#define GROUP_OF(quad) (DOT_GROUPS == 1 ? 0 : quad)

// Functions instead of loops: see product_rows.comp.

void multiply(uint column, const uint quad, const uint token) {
    int values = x[inputs[token] + (column + quad * APART) / 4];
#if MINIMA == 2
    input_sums[quad * TOKENS + token] += packed_dot(0x01010101, values, 0);
#endif
#define ADD_DOT(n)                                                                           \
    dots[(n * TOKENS + token) * DOT_GROUPS + GROUP_OF(quad)] +=                                  \
        packed_dot(weights[n * QUADS + quad], values, 0);
    REPEAT(ROWS, ADD_DOT)
}

void decode(const uint n, uint step) {
    int decoded[QUADS];
    read_bytes(0, heads[n], step, decoded);
#define KEEP(quad) weights[n * QUADS + quad] = decoded[quad];
    REPEAT(QUADS, KEEP)
}

void take_step(uint unit, uint step) {
#define DECODE(n) decode(n, step);
    REPEAT(ROWS, DECODE)
    uint column = unit * UNIT + 4 * step;
#define MULTIPLY(o) multiply(column, o / TOKENS, o % TOKENS);
    REPEAT(INPUTS, MULTIPLY)
}

void add_group(vec2 factor, vec2 x_factor, const uint output_, const uint group) {
    sums[output_] += factor.x * x_factor.x * float(dots[output_ * DOT_GROUPS + group]);
#if MINIMA == 2
    sums[output_] += factor.y * x_factor.x * float(input_sums[group * TOKENS + output_ % TOKENS]);
#elif MINIMA
    sums[output_] += factor.y * (float(EACH) / float(STEPS)) * x_factor.y;
#endif
}

void add_row(uint unit, uint step, const uint n, const uint group) {
    vec2 factor = factor_of(heads[n], step, group);
    uint block = unit * (UNIT / 32) + group;
#define ADD_TOKEN(t) add_group(factor, factors[inputs[t] / 8 + block], n * TOKENS + t, group);
    REPEAT(TOKENS, ADD_TOKEN)
}

void finish(uint unit, uint step, const uint n) {
#define ADD_GROUP(group) add_row(unit, step, n, group);
    REPEAT(DOT_GROUPS, ADD_GROUP)
}

void main() {
    if (!find_share(gl_WorkGroupID.y, TOKENS, begin)) return;
    uint lane = gl_LocalInvocationID.x, lanes = gl_WorkGroupSize.x;
    uint first_row = gl_WorkGroupID.x * ROWS, first_token = share.first;
    // A row or token that does not exist is replaced by one that does; its sums are dropped.
#define INPUT(n) inputs[n] = row_of_x(min(first_token + n, share.end - 1)) * (columns / 4);
    REPEAT(TOKENS, INPUT)
    uint starts[ROWS];
#define BEGIN(n) starts[n] = share.begin + min(first_row + n, rows - 1) * pitch;
    REPEAT(ROWS, BEGIN)
#define CLEAR(o) sums[o] = 0.0;
    REPEAT(OUTPUTS, CLEAR)

    for (uint part = lane; part < units * PARTS; part += lanes) {
        uint unit = part / PARTS, step = part % PARTS * EACH;
#define HEAD(n) heads[n] = read_head_at(0, starts[n], unit, step);
        REPEAT(ROWS, HEAD)
#define NO_DOT(o) dots[o] = 0;
        REPEAT(DOTS, NO_DOT)
#if MINIMA == 2
#define NO_SUM(o) input_sums[o] = 0;
        REPEAT(INPUTS, NO_SUM)
#endif
#define TAKE(n) take_step(unit, step + n);
        REPEAT(EACH, TAKE)
#define FINISH(n) finish(unit, step, n);
        REPEAT(ROWS, FINISH)
    }

    // Lane o writes sum o.
    float mine = 0.0;
#define JOIN(o)                                                                              \
    {                                                                                        \
        float sum = subgroupAdd(sums[o]);                                                    \
        if (lane == o) mine = sum;                                                           \
        if (gl_SubgroupInvocationID == 0) joined[o * gl_NumSubgroups + gl_SubgroupID] = sum; \
    }
    REPEAT(OUTPUTS, JOIN)
    barrier();
    if (gl_NumSubgroups > 1 && lane < OUTPUTS) {
        mine = 0.0;
        for (uint i = 0; i < gl_NumSubgroups; ++i) mine += joined[lane * gl_NumSubgroups + i];
    }
    uint row = first_row + lane / TOKENS, token = first_token + lane % TOKENS;
    if (lane < OUTPUTS && row < rows && token < share.end) {
        uint at = token * stride + place + row;
        if (add != 0) mine += y[at];
        y[at] = mine;
    }
}
