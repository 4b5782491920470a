#version 450
// result = a * x[i]: a kernel whose outcome is one value.
//
// In:   x, floats; a and i as push constants.
// Out:  result, one float.
// Work: one invocation.

layout(local_size_x = 1) in;

layout(set = 0, binding = 0) readonly buffer X { float x[]; };
layout(set = 0, binding = 1) writeonly buffer Result { float result[]; };
layout(push_constant) uniform Scalars { float a; uint i; };

void main() {
    result[0] = a * x[i];
}
