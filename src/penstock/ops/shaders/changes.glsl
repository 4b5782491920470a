// Notes which of `count` sorted elements differ from the one before: flags[i] is 1 if so, else 0.
// The first does, and every NaN. Elements lie side by side from byte `x_at` on. Group g takes
// `span` of them. With ALSO, flags that are 1 already stay so.

FN uvec2 element_key(uint i) {
    uint at = x_at + i * uint(SIZE);
    return key_of(cut(x[at >> 2u].bits, SIZE == 8 ? x[(at >> 2u) + 1u].bits : 0u, at));
}

FN void run() {
    uint begin = GROUP * span;
    uint end = min(count, begin + span);
    uint last = SIZE == 1 ? 0xFFu : SIZE == 2 ? 0xFFFFu : ~0u;
    for (uint i = begin + LANE; i < end; i += LANES) {
        uvec2 key = element_key(i);
        bool changed = i == 0u || (KIND >= 2 && (SIZE == 8 ? key.y : key.x) == last);
        if (!changed) changed = key != element_key(i - 1u);
        uint flag = changed ? 1u : 0u;
        if (ALSO != 0) flag |= flags[i].bits;
        flags[i].bits = flag;
    }
}
