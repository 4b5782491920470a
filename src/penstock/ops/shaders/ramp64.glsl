// out_[i] = start + i * step for `count` floats of SIZE bytes, 4 or 8, computed in float64: the
// product is rounded, and then the sum, as NumPy does. Group g takes `span`.

FN void run() {
    uint begin = GROUP * span;
    uint end = min(count, begin + span);
    for (uint i = begin + LANE; i < end; i += LANES) {
        EXACT double product = double(i) * WIDE_REAL(step_low, step_high);
        double value = WIDE_REAL(start_low, start_high) + product;
        if (SIZE == 8) {
            out_[2u * i].bits = LOW_BITS(value);
            out_[2u * i + 1u].bits = HIGH_BITS(value);
        } else {
            out_[i].bits = BITS(float(value));
        }
    }
}
