// y[t, r] (+)= the sum over c of weight[r, c] * x[t, c], for few tokens, on GPUs.
//
// A workgroup takes ROWS rows and TOKENS tokens. Its lanes share the rows: neighbouring lanes take
// neighbouring steps of a unit (see blocks.glsl), EACH steps at a time, so that together they load
// consecutive memory. A lane uses each weight that it decodes for TOKENS tokens, and each x that it
// loads for ROWS rows. Subgroups add up their lanes' sums; if the workgroup is more than one
// subgroup, these meet in shared memory. The number of lanes in a subgroup, at least 4, may be any.
//
// words     uint32; the weights, see blocks.glsl
// x         float32[tokens, columns]
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
layout(binding = 1) readonly buffer X { vec4 x[]; };
layout(binding = 2) buffer Y { float y[]; };

uint fetch(uint source, uint at) { return words[at]; }

#include "share.glsl"
#include "steps.glsl"

#define PARTS (STEPS / EACH)  // lanes that share a unit

shared float joined[OUTPUTS * gl_WorkGroupSize.x / 4];

uint inputs[TOKENS];  // where in x each token begins, in quads
Head heads[ROWS];
vec4 weights[ROWS * QUADS];
float sums[OUTPUTS];

// Functions instead of loops: see product_rows.comp.

void multiply(uint column, const uint quad, const uint token) {
    vec4 values = x[inputs[token] + (column + quad * APART) / 4];
#define ADD_PRODUCT(n)                                                                       \
    {                                                                                        \
        vec4 weight = weights[n * QUADS + quad];                                             \
        float sum = sums[n * TOKENS + token];                                                \
        sum += weight.x * values.x;                                                          \
        sum += weight.y * values.y;                                                          \
        sum += weight.z * values.z;                                                          \
        sums[n * TOKENS + token] = sum + weight.w * values.w;                                \
    }
    REPEAT(ROWS, ADD_PRODUCT)
}

void decode(const uint n, uint step) {
    vec4 decoded[QUADS];
    read_step(0, heads[n], step, decoded);
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
#define TAKE(n) take_step(unit, step + n);
        REPEAT(EACH, TAKE)
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
