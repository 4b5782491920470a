#version 450
// y = a * x + y, element by element.
//
// In:      x, n floats; a and n as push constants.
// In, out: y, n floats.
// Work:    one element per invocation; invocations past n do nothing.

layout(local_size_x = 256) in;

layout(set = 0, binding = 0) readonly buffer X { float x[]; };
layout(set = 0, binding = 1) buffer Y { float y[]; };
layout(push_constant) uniform Scalars { float a; uint n; };

void main() {
    uint i = gl_GlobalInvocationID.x;
    if (i < n) y[i] = a * x[i] + y[i];
}
