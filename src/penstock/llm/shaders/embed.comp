// y[t] = weight[tokens[t]], decoded: each weight has exactly the value of the reference decoder.
//
// An id outside the table gives a row of zeros. If the table is in several pieces, each piece has a
// launch, which writes the rows that the piece holds; the launch of the first piece (row == 0) also
// writes the zeros.
//
// y         float32[count, stride]
// tokens    uint32[count]; negative ids of int32 are read as large ones
// begin     the byte of `words` at which the piece's first row begins
// pitch     bytes from one row to the next
// row       number of the piece's first row
// rows      number of rows of the piece
// all_rows  number of rows of the table
// units     whole units per row: see blocks.glsl
//
// Mapping: x, an invocation for each unit of a row, then one for each column that does not fill a
// unit; y, the tokens.

layout(local_size_x_id = 0) in;

struct Token { uint id; };  // a struct leaves the dtype open: int32 can be bound, too
layout(binding = 0) readonly buffer Words { uint words[]; };
layout(binding = 1) readonly buffer Tokens { Token tokens[]; };
layout(binding = 2) writeonly buffer Y { float y[]; };

layout(push_constant) uniform Shape {
    uint begin;
    uint pitch;
    uint row;
    uint rows;
    uint all_rows;
    uint units;
    uint columns;
    uint stride;
};

uint fetch(uint source, uint at) { return words[at]; }

#include "repeat.glsl"
#include "blocks.glsl"

void main() {
    uint unit = gl_GlobalInvocationID.x;
    uint id = tokens[gl_WorkGroupID.y].id;
    uint target = gl_WorkGroupID.y * stride;
    bool here = id >= row && id - row < rows;
    bool nowhere = id >= all_rows && row == 0u;
    if (!here && !nowhere) return;
    uint begins = begin + (here ? id - row : 0u) * pitch;

    if (unit < units) {
        Head head = read_head(0u, begins, unit);
        for (uint step = 0; step < STEPS; ++step) {
            vec4 weights[QUADS];
            read_step(0u, head, step, weights);
            for (uint quad = 0; quad < QUADS; ++quad)
                for (uint i = 0; i < 4; ++i)
                    y[target + unit * UNIT + 4 * step + quad * APART + i] =
                        here ? weights[quad][i] : 0.0;
        }
        return;
    }
#if KIND == F32 || KIND == F16 || KIND == BF16
    uint column = units * UNIT + unit - units;
    if (column < columns) y[target + column] = here ? read_one(0u, begins, column) : 0.0;
#endif
}
