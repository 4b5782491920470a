// float16 and bfloat16, which are computed as float, by their bits. This is HIP C++ as well.

// A float16 in the low bits of an integer: rounded to the nearest, half to even.
uint ps_pack_half(float x) {
    uint bits = floatBitsToUint(x), sign = bits >> 16 & 0x8000u, size = bits & 0x7fffffffu;
    uint normal = size - 0x38000000u;
    normal = (normal + 0xfffu + (normal >> 13 & 1u)) >> 13;
    uint exponent = size >> 23;
    // To units of the smallest subnormal.
    uint shift = exponent > 125u ? 0u : exponent < 95u ? 31u : 126u - exponent;
    uint whole = (size & 0x7fffffu) | 0x800000u;
    uint tiny = (whole + (((1u << shift) - 1u) >> 1) + (whole >> shift & 1u)) >> shift;
    tiny = size < 0x33000000u ? 0u : tiny;
    uint half_ = size < 0x38800000u ? tiny : size < 0x47800000u ? normal : 0x7c00u;
    half_ = size > 0x7f800000u ? 0x7e00u | (size >> 13 & 0x3ffu) : half_;
    return sign | half_;
}

float ps_unpack_half(uint bits) {
    uint sign = (bits & 0x8000u) << 16, size = bits & 0x7fffu;
    uint tiny = floatBitsToUint(float(size) * 5.9604644775390625e-8f);
    uint wide = size < 0x400u ? tiny : (size << 13) + (size < 0x7c00u ? 0x38000000u : 0x70000000u);
    return uintBitsToFloat(sign | wide);
}

// A bfloat16: the upper half of a float, rounded likewise.
uint ps_pack_bfloat(float x) {
    uint bits = floatBitsToUint(x);
    bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
    return nan ? bits >> 16 | 0x40u : (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
}

float ps_unpack_bfloat(uint bits) { return uintBitsToFloat(bits << 16); }
