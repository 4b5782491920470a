#version 450
// x[i * stride] += a: one element in every page of a large array.
//
// In:      a, stride and n, the number of elements to touch, as push constants.
// In, out: x, at least n * stride floats.
// Work:    one element per invocation; invocations past n do nothing.

layout(local_size_x = 256) in;

layout(set = 0, binding = 0) buffer X { float x[]; };
layout(push_constant) uniform Scalars { float a; uint stride; uint n; };

void main() {
    uint i = gl_GlobalInvocationID.x;
    if (i < n) x[i * stride] += a;
}
