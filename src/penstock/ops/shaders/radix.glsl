// A pass of a stable radix sort, by the eight bits of the keys from `shift` on.
//
// There are `rows` of `row` elements, which are sorted each for itself. A row has `parts` parts of
// `each` elements, one for each invocation. counts has a word for each row, digit and part, in that
// order, so that the sums before them are the places of the elements in all rows together.
//
// src has elements in words (two, if SIZE is 8), but the `first` pass reads elements as they are in
// the array, from byte `src_at` on, and their indices within the row are implied. In the `last`
// pass indices are written as 64-bit integers.
//
//   STAGE    0 count the digits; 1 move the elements, counting the places up
//   INDEXED  0 move elements; 1 move their indices, too; in the last pass, with `keep` 0, only those

FN uvec2 element(uint i) {
    if (first != 0u) {
        uint at = src_at + i * uint(SIZE);
        return cut(src[at >> 2u].bits, SIZE == 8 ? src[(at >> 2u) + 1u].bits : 0u, at);
    }
    if (SIZE == 8) return uvec2(src[2u * i].bits, src[2u * i + 1u].bits);
    return uvec2(src[i].bits, 0u);
}

FN uint digit(uvec2 bits) {
    uvec2 key = key_of(bits);
    return ((shift >= 32u ? key.y : key.x) >> (shift & 31u)) & 255u;
}

FN void run() {
    uint id = GROUP * LANES + LANE;
    if (id >= rows * parts) return;
    uint in_row = id / parts, part = id % parts;
    uint start = in_row * row;
    uint begin = part * each;
    uint end = min(row, begin + each);
    uint place = in_row * 256u * parts + part;
    if (STAGE == 0) {
        for (uint k = 0u; k < 256u; ++k) counts[place + k * parts].bits = 0u;
        for (uint i = begin; i < end; ++i) {
            uint at = place + digit(element(start + i)) * parts;
            counts[at].bits = counts[at].bits + 1u;
        }
    } else {
        for (uint i = begin; i < end; ++i) {
            uvec2 bits = element(start + i);
            uint at = place + digit(bits) * parts;
            uint to = counts[at].bits;
            counts[at].bits = to + 1u;
            if (keep != 0u) {
                if (SIZE == 8) {
                    dst[2u * to].bits = bits.x;
                    dst[2u * to + 1u].bits = bits.y;
                } else {
                    dst[to].bits = bits.x;
                }
            }
            if (INDEXED != 0) {
                uint index = i;
                if (first == 0u) index = src_index[start + i].bits;
                if (last != 0u) {
                    dst_index[2u * to].bits = index;
                    dst_index[2u * to + 1u].bits = 0u;
                } else {
                    dst_index[to].bits = index;
                }
            }
        }
    }
}
