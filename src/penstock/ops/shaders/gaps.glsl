// The distances from each of `count` places to the next one, the last of which is `end_`, in 64
// bits. Group g takes `span` of them.

FN void run() {
    uint begin = GROUP * span;
    uint end = min(count, begin + span);
    for (uint i = begin + LANE; i < end; i += LANES) {
        uint next = end_;
        if (i + 1u < count) next = places[i + 1u].bits;
        out_[2u * i].bits = next - places[i].bits;
        out_[2u * i + 1u].bits = 0u;
    }
}
