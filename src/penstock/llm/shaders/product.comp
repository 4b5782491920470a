// y[t, r] (+)= the sum over c of weight[r, c] * x[t, c], in one of four ways.
//
// Lanes share rows: the units of a row (see blocks.glsl) are dealt out to them in turn. A lane uses
// each weight that it decodes for TOKENS tokens, and each x that it reads for ROWS rows. Then the
// lanes add up their sums.
//
//   WAY = ALONE      a lane is an invocation, and shares its rows with no other
//   WAY = SUBGROUP   the lanes of a subgroup share rows; a workgroup is one or more subgroups
//   WAY = SHARED     the lanes of a workgroup share rows, and add up in shared memory, as a tree
//   WAY = WINDOWED   as SUBGROUP, but weights and x are read from uniform buffers: ROWS windows of
//                    WINDOW words, and COLUMNS floats for each token. For lavapipe, which gathers the
//                    lanes' reads of a storage buffer one by one through memory, but reads a uniform
//                    buffer, whose size is limited, several times as fast.
//
// y         float32[tokens, stride]; the result of the first row goes to column `place`
// x         float32[tokens, columns]; with VECTORS columns is a multiple of four
// begin0    the byte at which the first row begins; WINDOWED: also begin1, …, in each window
// pitch     bytes from one row to the next
// rows      number of rows
// span      a lane takes the rows r, r + span, …, r + (ROWS - 1) * span, of those that exist
// units     whole units per row
// tokens    number of tokens
// CUT       the launch takes only units `from_unit` to `to_unit` - 1, and other launches the rest: all
//           together would exceed the driver's limit on loop iterations
// ADD       adds to y instead of overwriting it
// OUTPUTS   ROWS * TOKENS
// UNROLL    steps to unroll, a divisor of STEPS
// WRITERS   lanes that write results, at most the lanes of a subgroup
//
// Mapping: x, the rows of a span; y, groups of TOKENS tokens (WINDOWED: a single group), or
// tiles of some expert's (share.glsl).

#define ALONE 0
#define SUBGROUP 1
#define SHARED 2
#define WINDOWED 3

#if WAY == SUBGROUP || WAY == WINDOWED
#extension GL_KHR_shader_subgroup_arithmetic : require
#endif
#if WAY == WINDOWED
#extension GL_EXT_scalar_block_layout : require
#endif

layout(local_size_x_id = 0) in;

#include "repeat.glsl"

layout(push_constant) uniform Shape {
    uint pitch;
    uint rows;
    uint span;
    uint units;
    uint columns;
    uint tokens;
    uint stride;
    uint place;
#ifdef CUT
    uint from_unit;
    uint to_unit;
#endif
#if WAY == WINDOWED
#define BEGIN_OF(n) uint begin##n;
    REPEAT(ROWS, BEGIN_OF)
#else
    uint begin0;
#endif
#ifdef EXPERTS
    uint split;
    uint gather;
#endif
};

#if WAY == WINDOWED

#define WINDOW_OF(n) layout(binding = n, scalar) uniform Words##n { uint words##n[WINDOW]; };
#define TOKEN_OF(n) layout(binding = ROWS + n, scalar) uniform X##n { float x##n[COLUMNS]; };
REPEAT(ROWS, WINDOW_OF)
REPEAT(TOKENS, TOKEN_OF)
layout(binding = ROWS + TOKENS) buffer Y { float y[]; };

#define FROM_WINDOW(n) if (source == n) return words##n[at];
#define FROM_TOKEN(n) \
    if (token == n) return vec4(x##n[at], x##n[at + 1], x##n[at + 2], x##n[at + 3]);
uint fetch(uint source, uint at) { REPEAT(ROWS, FROM_WINDOW) return 0u; }
vec4 read_x(uint token, uint at) { REPEAT(TOKENS, FROM_TOKEN) return vec4(0.0); }

#else

layout(binding = 0) readonly buffer Words { uint words[]; };
#ifdef VECTORS
layout(binding = 1) readonly buffer X { vec4 x[]; };
#else
layout(binding = 1) readonly buffer X { float x[]; };
#endif
layout(binding = 2) buffer Y { float y[]; };

#include "share.glsl"

#ifdef EXPERTS
uint rows_of_x[TOKENS];  // read once
#define ROW_OF_X(token) rows_of_x[token]
#else
#define ROW_OF_X(token) min(share.first + token, share.end - 1)
#endif

uint fetch(uint source, uint at) { return words[at]; }

vec4 read_x(uint token, uint at) {
    at += ROW_OF_X(token) * columns;
#ifdef VECTORS
    return x[at >> 2];
#else
    return vec4(x[at], x[at + 1], x[at + 2], x[at + 3]);
#endif
}

#endif

#include "blocks.glsl"

#if WAY == ALONE
const uint lane = 0, lanes = 1;
uint first_row() { return gl_GlobalInvocationID.x; }
#elif WAY == SHARED
#define lane gl_LocalInvocationID.x
#define lanes gl_WorkGroupSize.x
uint first_row() { return gl_WorkGroupID.x; }
shared float parts[OUTPUTS * gl_WorkGroupSize.x];
#else
#define lane gl_SubgroupInvocationID
#define lanes gl_SubgroupSize
uint first_row() { return gl_WorkGroupID.x * gl_NumSubgroups + gl_SubgroupID; }
#endif

float sums[OUTPUTS];

// Where row n of this lane begins. A row that does not exist is replaced by one that does.
#if WAY == WINDOWED
#define ROW_BEGIN(n) begin##n + min(first_row(), span - 1) * pitch
#else
#define ROW_BEGIN(n) share.begin + min(min(first_row(), span - 1) + n * span, rows - 1) * pitch
#endif

void write(uint n, uint token, float sum) {
    uint row = first_row() + n * span;
#if WAY != WINDOWED
    token += share.first;
    bool exists = token < share.end;
#else
    bool exists = token < tokens;
#endif
    if (first_row() < span && row < rows && exists) {
        uint at = token * stride + place + row;
#ifdef ADD
        y[at] += sum;
#else
        y[at] = sum;
#endif
    }
}

void main() {
#if WAY != WINDOWED
    if (!find_share(gl_WorkGroupID.y, TOKENS, begin0)) return;
#endif
#ifdef EXPERTS
#define ROW_OF(n) rows_of_x[n] = row_of_x(min(share.first + n, share.end - 1));
    REPEAT(TOKENS, ROW_OF)
#endif
#define CLEAR(o) sums[o] = 0.0;
    REPEAT(OUTPUTS, CLEAR)
    // Read once: some compilers would load push constants again for every unit.
    uint row_begins[ROWS];
#define BEGIN(n) row_begins[n] = ROW_BEGIN(n);
    REPEAT(ROWS, BEGIN)
#ifdef CUT
    uint first_unit = from_unit, row_units = to_unit;
#else
    uint first_unit = 0, row_units = units;
#endif

    for (uint unit = first_unit + lane; unit < row_units; unit += lanes) {
        Head heads[ROWS];
#define HEAD(n) heads[n] = read_head(n, row_begins[n], unit);
        REPEAT(ROWS, HEAD)
        for (uint at = 0; at < STEPS; at += UNROLL)
        for (uint i = 0; i < UNROLL; ++i) {  // from 0: else some compilers do not see the trip count
            uint step = at + i;
            vec4 inputs[QUADS * TOKENS];
            for (uint quad = 0; quad < QUADS; ++quad) {
                uint column = unit * UNIT + 4 * step + quad * APART;
#define INPUT(n) inputs[quad * TOKENS + n] = read_x(n, column);
                REPEAT(TOKENS, INPUT)
            }
            vec4 weights[QUADS];
#define STEP(n)                                                                              \
    read_step(n, heads[n], step, weights);                                                   \
    for (uint quad = 0; quad < QUADS; ++quad)                                                \
        for (uint token = 0; token < TOKENS; ++token)                                        \
            sums[n * TOKENS + token] += dot(weights[quad], inputs[quad * TOKENS + token]);
            REPEAT(ROWS, STEP)
        }
    }

#if (KIND == F32 || KIND == F16 || KIND == BF16) && WAY != WINDOWED && !defined(VECTORS)
    // Columns after the last unit; only the launch that takes the last unit adds them.
    uint columns_end = row_units == units ? columns : 0;
    for (uint column = units * UNIT + lane; column < columns_end; column += lanes) {
#define REST(n)                                                                              \
    float weight##n = read_one(n, row_begins[n], column);                                     \
    for (uint token = 0; token < TOKENS; ++token)                                            \
        sums[n * TOKENS + token] +=                                                          \
            weight##n * x[ROW_OF_X(token) * columns + column];
        REPEAT(ROWS, REST)
    }
#endif

#if WAY == ALONE
#define WRITE(o) write(o / TOKENS, o % TOKENS, sums[o]);
    REPEAT(OUTPUTS, WRITE)
#elif WAY == SHARED
#define PART(o) parts[o * lanes + lane] = sums[o];
    REPEAT(OUTPUTS, PART)
    for (uint half_size = lanes / 2; half_size > 0; half_size /= 2) {
        barrier();
        if (lane < half_size)
            for (uint o = 0; o < OUTPUTS; ++o)
                parts[o * lanes + lane] += parts[o * lanes + lane + half_size];
    }
    barrier();
    for (uint o = lane; o < OUTPUTS; o += lanes) write(o / TOKENS, o % TOKENS, parts[o * lanes]);
#else
    // WRITERS lanes write at a time, each another sum.
    float mine[(OUTPUTS + WRITERS - 1) / WRITERS];
#define JOIN(o)                             \
    sums[o] = subgroupAdd(sums[o]);         \
    if (o % WRITERS == 0 || lane == o % WRITERS) mine[o / WRITERS] = sums[o];
    REPEAT(OUTPUTS, JOIN)
    for (uint i = 0; i < mine.length(); ++i) {
        uint o = i * WRITERS + lane;
        if (lane < WRITERS && o < OUTPUTS) write(o / TOKENS, o % TOKENS, mine[i]);
    }
#endif
}
