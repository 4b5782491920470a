// Finds where each of `count` elements of `wanted` would be inserted into the sorted array x of
// `length_` elements, such that it stays sorted. Both lie side by side, from bytes `x_at` and
// `wanted_at` on. Group g takes `span` of them.
//
//   RIGHT   0 before elements that are equal; 1 behind them; 2 no place, but whether there are any,
//           a byte each: an invocation takes four elements, and NaN equals nothing
//   SORTER  x is sorted by an array of 64-bit indices, which are kept within x

FN uvec2 x_element(uint i) {
    uint index = i;
    if (SORTER != 0) {
        uint at = sorter_at + 8u * i;
        uint low = sorter[at >> 2u].bits, high = sorter[(at >> 2u) + 1u].bits;
        index = high != 0u || low >= length_ ? length_ - 1u : low;
        if (high > 0x7FFFFFFFu) index = high == ~0u && low + length_ < length_ ? low + length_ : 0u;
    }
    uint at = x_at + index * uint(SIZE);
    return cut(x[at >> 2u].bits, SIZE == 8 ? x[(at >> 2u) + 1u].bits : 0u, at);
}

FN uvec2 wanted_element(uint i) {
    uint at = wanted_at + i * uint(SIZE);
    return cut(wanted[at >> 2u].bits, SIZE == 8 ? wanted[(at >> 2u) + 1u].bits : 0u, at);
}

FN uint found_at(uvec2 key) {
    uint low = 0u, high = length_;
    while (low < high) {
        uint middle = (low + high) / 2u;
        uvec2 other = key_of(x_element(middle));
        bool before = RIGHT == 1 ? !is_less(key, other) : is_less(other, key);
        if (before) low = middle + 1u; else high = middle;
    }
    return low;
}

FN uint is_there(uint i) {
    uvec2 key = key_of(wanted_element(i));
    uint top = SIZE == 8 ? key.y : key.x;
    uint last = SIZE == 1 ? 0xFFu : SIZE == 2 ? 0xFFFFu : ~0u;
    if (KIND >= 2 && top == last) return 0u;
    uint at = found_at(key);
    return at < length_ && !is_less(key, key_of(x_element(at))) ? 1u : 0u;
}

FN void run() {
    uint begin = GROUP * span;
    uint end = min(RIGHT == 2 ? (count + 3u) / 4u : count, begin + span);
    for (uint i = begin + LANE; i < end; i += LANES) {
        if (RIGHT == 2) {
            uint made = 0u;
            for (uint k = 0u; k < 4u && 4u * i + k < count; ++k) {
                made |= is_there(4u * i + k) << (8u * k);
            }
            out_[i].bits = made;
        } else {
            out_[2u * i].bits = found_at(key_of(wanted_element(i)));
            out_[2u * i + 1u].bits = 0u;
        }
    }
}
