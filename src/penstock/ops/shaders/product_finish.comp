// made[i] = the sum over s of sums[s, i], as an element of `dtype`.
//
// sums   [segments, count]
// made   words; each is written whole, and what lies beyond the last element in it is zero
// count  number of elements
//
// Mapping: an invocation for each word, or for each element that has more than one.

#include "product.glsl"

layout(local_size_x_id = 0) in;

layout(push_constant) uniform Shape {
    uint count;
    uint segments;
    uint sums_at;  // the first word of the sums
    uint made_at;
};

layout(binding = 0) readonly buffer Sums { Word sums[]; };
layout(binding = 1) writeonly buffer Made { Word made[]; };

T total(uint i) {
    T sum = T(0);
    for (uint s = 0u; s < segments; ++s) {
        uint at = sums_at + (s * count + i) * (SIZE / 4u);
#if SIZE == 4
        sum = add(sum, number_of(uvec4(sums[at].bits, 0u, 0u, 0u)));
#elif SIZE == 8
        sum = add(sum, number_of(uvec4(sums[at].bits, sums[at + 1u].bits, 0u, 0u)));
#else
        sum = add(sum, number_of(uvec4(sums[at].bits, sums[at + 1u].bits, sums[at + 2u].bits,
                                       sums[at + 3u].bits)));
#endif
    }
    return sum;
}

void main() {
    uint word = gl_GlobalInvocationID.x + gl_GlobalInvocationID.y * gl_NumWorkGroups.x * gl_WorkGroupSize.x;
#if SIZE == 4
    uint each = 4u / element_size();
    if (word >= (count + each - 1u) / each) return;
    uint bits = 0u;
    for (uint n = 0u; n < each; ++n)
        if (word * each + n < count) bits |= encoded(total(word * each + n)) << (n * 32u / each);
    made[made_at + word].bits = bits;
#else
    if (word < count) PUT(made, made_at, word, total(word))
#endif
}
