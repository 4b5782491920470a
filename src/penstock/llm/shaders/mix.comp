// x[t] += the sum over a token's experts of their share times their result.
//
//   x        float32[tokens, columns]
//   y        float32[tokens * choices, columns]: the experts' results, see share.glsl
//   places   uint32[tokens, choices]: the rows of y
//   shares   float32[tokens, choices]
//   shared_y, gates
//            with COMMON, float32[tokens, columns] and float32[tokens]: the result of the expert that
//            all tokens share, which is added times the sigmoid of the gate
//
// Mapping: x, an invocation for each column; y, the tokens.

layout(local_size_x_id = 0) in;

layout(binding = 0) buffer X { float x[]; };
layout(binding = 1) readonly buffer Y { float y[]; };
layout(binding = 2) readonly buffer Places { uint places[]; };
layout(binding = 3) readonly buffer Shares { float shares[]; };
#ifdef COMMON
layout(binding = 4) readonly buffer Common { float shared_y[]; };
layout(binding = 5) readonly buffer Gates { float gates[]; };
#endif
layout(push_constant) uniform Arguments { uint columns; uint choices; };

void main() {
    uint column = gl_GlobalInvocationID.x, token = gl_WorkGroupID.y;
    if (column >= columns) return;
    float sum = 0.0;
    for (uint pair = token * choices; pair < (token + 1u) * choices; ++pair)
        sum += shares[pair] * y[places[pair] * columns + column];
#ifdef COMMON
    sum += shared_y[token * columns + column] / (1.0 + exp(-gates[token]));
#endif
    x[token * columns + column] += sum;
}
