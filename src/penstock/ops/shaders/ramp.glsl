// out_[i] = start + i * step for `count` integers of 64 bits, modulo 2^64. Group g takes `span`.

FN void run() {
    uint begin = GROUP * span;
    uint end = min(count, begin + span);
    for (uint i = begin + LANE; i < end; i += LANES) {
        uint product = i * step_low;
        uint low = start_low + product;
        uint carry = low < product ? 1u : 0u;
        out_[2u * i].bits = low;
        out_[2u * i + 1u].bits = start_high + MULHI(i, step_low) + i * step_high + carry;
    }
}
