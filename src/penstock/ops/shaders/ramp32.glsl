// out_[i] = start + i * step for `count` float32, computed in float32. Group g takes `span`.

FN void run() {
    uint begin = GROUP * span;
    uint end = min(count, begin + span);
    for (uint i = begin + LANE; i < end; i += LANES) {
        EXACT float product = float(i) * REAL(step_low);
        out_[i].bits = BITS(REAL(start_low) + product);
    }
}
