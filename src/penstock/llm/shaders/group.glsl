// Sums and maxima over a workgroup.
//
// With LONE the workgroup is a single subgroup, without shared memory and barriers, which are slow on
// CPU drivers. Else subgroups combine their values in shared memory. On a device without subgroup
// arithmetic (PLAIN), a tree reduction in shared memory does it all. Every invocation must call, and
// gets the same value.

#ifndef PLAIN
#extension GL_KHR_shader_subgroup_arithmetic : require
#endif

#ifdef LONE

float group_sum(float value) { return subgroupAdd(value); }
float group_max(float value) { return subgroupMax(value); }

#elif defined(PLAIN)

shared float joined[gl_WorkGroupSize.x];

#define JOIN(name, join)                                                      \
    float name(float value) {                                                 \
        uint lane = gl_LocalInvocationID.x;                                   \
        barrier();                                                            \
        joined[lane] = value;                                                 \
        barrier();                                                            \
        for (uint size = gl_WorkGroupSize.x / 2u; size > 0u; size /= 2u) {    \
            if (lane < size) {                                                \
                float a = joined[lane], b = joined[lane + size];              \
                joined[lane] = join;                                          \
            }                                                                 \
            barrier();                                                        \
        }                                                                     \
        return joined[0];                                                     \
    }
JOIN(group_sum, a + b)
JOIN(group_max, max(a, b))

#else

shared float joined[gl_WorkGroupSize.x];

#define JOIN(name, whole, first, join)                                        \
    float name(float value) {                                                 \
        float a = whole(value);                                               \
        barrier();                                                            \
        if (gl_SubgroupInvocationID == 0u) joined[gl_SubgroupID] = a;         \
        barrier();                                                            \
        a = joined[0];                                                        \
        for (uint i = 1u; i < gl_NumSubgroups; ++i) {                         \
            float b = joined[i];                                              \
            a = join;                                                         \
        }                                                                     \
        return a;                                                             \
    }
JOIN(group_sum, subgroupAdd, 0.0, a + b)
JOIN(group_max, subgroupMax, 0.0, max(a, b))

#endif
