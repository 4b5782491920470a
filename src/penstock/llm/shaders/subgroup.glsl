// Sums of 64 bits over a subgroup.

#extension GL_KHR_shader_subgroup_arithmetic : require
#extension GL_KHR_shader_subgroup_shuffle : require

uvec2 subgroup_sum(uvec2 value) {
    // In parts of 16 bits, so that sums of 32 bits do not overflow.
    uint low = subgroupAdd(value.x & 0xFFFFu), middle = subgroupAdd(value.x >> 16);
    uvec2 sum = plus(uvec2(low, 0u), uvec2(middle << 16, middle >> 16));
    return plus(sum, uvec2(0u, subgroupAdd(value.y)));
}
