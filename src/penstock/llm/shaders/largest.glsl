// The largest magnitude of numbers that are about to be rounded to bytes. Rounding would turn NaN into
// an ordinary number, and nothing after it could notice: so the factor of bytes is NaN instead, if one
// of their numbers is not finite.

#define INFINITE 0x7F800000u

// Infinite if one of the four is NaN: max() may leave NaN out.
float largest(vec4 four) {
    uvec4 sizes = floatBitsToUint(four) & 0x7FFFFFFFu;  // in the order of the magnitudes
    uint found = max(max(sizes.x, sizes.y), max(sizes.z, sizes.w));
    return uintBitsToFloat(min(found, INFINITE));
}

bool is_finite(float magnitude) { return floatBitsToUint(magnitude) < INFINITE; }
