// Moves elements from `src` to `dst`, bits as they are, through axes of any strides.
//
// `place_of` (place.glsl, or place_table.glsl for many axes) says where element i is. Group g takes
// the elements from g * span on, and its lanes take them side by side.
//
//   SIZE    bytes of an element: 1, 2, 4, 8 or 16
//   PACKED  elements of 1 or 2 bytes lie side by side in dst: a lane takes a word of them.
//           `count` still is the number of elements.
//   MODE    0 copy
//           1 gather: the key, an integer of KEY_SIZE bytes (signed if KEY_SIGNED), is an index:
//             negative ones count from `limit`, and all are kept within 0 and `limit` - 1. Then
//             those from `low` to `low` + `room` - 1 move from index - low, times `jump` bytes
//             further on in src; others do not move
//           2 scatter: the same, but further on in dst
//           3 mask: those move whose key, a byte, is not 0
//           4 lower triangle: 0 instead of elements whose column (axis 0) exceeds their row (axis
//             1) by more than `limit`, a signed number
//           5 upper triangle: 0 where it is less

FN uint part(uint from) {
    return (src[from >> 2u].bits >> ((from & 3u) * 8u)) & (SIZE == 1 ? 0xFFu : 0xFFFFu);
}

FN void put_part(uint to, uint value) {
    uint word = to >> 2u, bit = (to & 3u) * 8u;
    uint mask = (SIZE == 1 ? 0xFFu : 0xFFFFu) << bit;
    if (MODE == 2) {
        // Two elements may have the same target; then one of them must be there in the end.
        uint seen = dst[word].bits;
        for (uint tries = 0u; tries < 256u; ++tries) {
            uint was = SWAP(dst[word].bits, seen, (seen & ~mask) | (value << bit));
            if (was == seen) return;
            seen = was;
        }
    }
    AND(dst[word].bits, ~mask);
    OR(dst[word].bits, value << bit);
}

FN void move(uint i) {
    Place at = place_of(i);
    uint from = at.from, to = at.to;
    bool zero = false;
    if (MODE == 1 || MODE == 2) {
        uint index = index_at(at.key) - low;
        if (index >= room) return;
        if (MODE == 1) from += index * jump; else to += index * jump;
    } else if (MODE == 3) {
        if (((keys[at.key >> 2u].bits >> ((at.key & 3u) * 8u)) & 0xFFu) == 0u) return;
    } else if (MODE >= 4) {
        int over = int(at.column) - int(at.row) - int(limit);
        zero = MODE == 4 ? over > 0 : over < 0;
    }
    if (SIZE < 4) {
        put_part(to, zero ? 0u : part(from));
    } else {
        uint a = from >> 2u, b = to >> 2u;
        dst[b].bits = zero ? 0u : src[a].bits;
        if (SIZE > 4) dst[b + 1u].bits = zero ? 0u : src[a + 1u].bits;
        if (SIZE > 8) {
            dst[b + 2u].bits = zero ? 0u : src[a + 2u].bits;
            dst[b + 3u].bits = zero ? 0u : src[a + 3u].bits;
        }
    }
}

// The bits of element i, for a packed dst.
FN uint fetched(uint i) {
    Place at = place_of(i);
    uint from = at.from;
    if (MODE == 1) {
        from += (index_at(at.key) - low) * jump;
    } else if (MODE >= 4) {
        int over = int(at.column) - int(at.row) - int(limit);
        if (MODE == 4 ? over > 0 : over < 0) return 0u;
    }
    return part(from);
}

// A word of dst, which begins with element `first`; at its ends dst shares words with others.
FN void move_word(uint word, uint first) {
    const uint each = SIZE == 1 ? 4u : 2u;
    const uint bits = SIZE == 1 ? 8u : 16u;
    uint made = 0u, mask = 0u;
    for (uint k = 0u; k < each; ++k) {
        uint i = first + k;  // wraps around in front of the first
        if (i < count) {
            made |= fetched(i) << (k * bits);
            mask |= (SIZE == 1 ? 0xFFu : 0xFFFFu) << (k * bits);
        }
    }
    if (mask == ~0u) {
        dst[word].bits = made;
    } else {
        AND(dst[word].bits, ~mask);
        OR(dst[word].bits, made);
    }
}

FN void run() {
    uint begin = GROUP * span;
    if (PACKED != 0) {
        const uint each = SIZE == 1 ? 4u : 2u;
        uint lead = (dst_at & 3u) / uint(SIZE < 4 ? SIZE : 1);
        uint units = (lead + count + each - 1u) / each;
        uint end = min(units, begin + span);
        for (uint u = begin + LANE; u < end; u += LANES) {
            move_word((dst_at >> 2u) + u, u * each - lead);
        }
    } else {
        uint end = min(count, begin + span);
        for (uint i = begin + LANE; i < end; i += LANES) move(i);
    }
}
