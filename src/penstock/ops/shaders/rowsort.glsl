// Sorts short rows, each by one invocation: a stable merge sort between the halves of `data`.
//
// There are `rows` of `row` elements, from byte `src_at` of src on. Elements are words in data (two,
// if SIZE is 8), and `half_` is the number of elements in a half. Group g takes `span` rows. The
// merges alternate between the halves; the host knows in which one they end. With INDEXED, the
// elements' indices within their rows move along, in `places`.

FN uvec2 element(uint i) {
    if (SIZE == 8) return uvec2(data[2u * i].bits, data[2u * i + 1u].bits);
    return uvec2(data[i].bits, 0u);
}

FN void put(uint i, uvec2 bits) {
    if (SIZE == 8) {
        data[2u * i].bits = bits.x;
        data[2u * i + 1u].bits = bits.y;
    } else {
        data[i].bits = bits.x;
    }
}

FN void sort_row(uint start) {
    for (uint i = 0u; i < row; ++i) {
        uint at = src_at + (start + i) * uint(SIZE);
        put(start + i, cut(src[at >> 2u].bits, SIZE == 8 ? src[(at >> 2u) + 1u].bits : 0u, at));
        if (INDEXED != 0) places[start + i].bits = i;
    }
    uint from = start, to = start + half_;
    for (uint width = 1u; width < row; width *= 2u) {
        uint left = 0u, left_end = min(width, row), right = left_end;
        uint right_end = min(2u * width, row);
        for (uint k = 0u; k < row; ++k) {
            if (k == right_end) {
                left = k;
                left_end = min(left + width, row);
                right = left_end;
                right_end = min(left + 2u * width, row);
            }
            bool take_right = left >= left_end;
            if (left < left_end && right < right_end) {
                take_right = is_less(key_of(element(from + right)), key_of(element(from + left)));
            }
            uint i = take_right ? right : left;
            put(to + k, element(from + i));
            if (INDEXED != 0) places[to + k].bits = places[from + i].bits;
            if (take_right) ++right; else ++left;
        }
        uint swapped = from;
        from = to;
        to = swapped;
    }
}

FN void run() {
    uint begin = GROUP * span;
    uint end = min(rows, begin + span);
    for (uint r = begin + LANE; r < end; r += LANES) sort_row(r * row);
}
