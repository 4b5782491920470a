#version 450
// result = a * x[i]: a kernel whose outcome is one value.
//
// In:   x, floats; a and i as push constants.
// Out:  result, one float; with AS_RESULT, a block of fixed size, which Penstock returns.
// Work: one invocation.

layout(local_size_x = 1) in;

layout(set = 0, binding = 0) readonly buffer X { float x[]; };
#ifdef AS_RESULT
layout(set = 0, binding = 1) writeonly buffer Result { float result; };
#define RESULT result
#else
layout(set = 0, binding = 1) writeonly buffer Result { float result[]; };
#define RESULT result[0]
#endif
layout(push_constant) uniform Scalars { float a; uint i; };

void main() {
    RESULT = a * x[i];
}
