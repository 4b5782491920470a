// Keys: pairs of words (low, high) whose order as unsigned integers is that of elements.
//
//   SIZE        bytes of an element: 1, 2, 4 or 8; those below 8 have a key of one word
//   KIND        0 unsigned, 1 signed, 2 float, 3 bfloat16. NaN comes last, and 0.0 equals -0.0
//   DESCENDING  the opposite order, but for NaN

FN uvec2 key_of(uvec2 bits) {
    uint sign = SIZE == 1 ? 0x80u : SIZE == 2 ? 0x8000u : 0x80000000u;
    uint every = SIZE == 1 ? 0xFFu : SIZE == 2 ? 0xFFFFu : ~0u;
    uint infinity = KIND == 3 ? 0x7F80u : SIZE == 2 ? 0x7C00u : SIZE == 4 ? 0x7F800000u
                                                                          : 0x7FF00000u;
    uint top = SIZE == 8 ? bits.y : bits.x;
    uint rest = SIZE == 8 ? bits.x : 0u;
    if (KIND >= 2) {
        uint unsigned_ = top & ~sign;
        if (unsigned_ > infinity || (unsigned_ == infinity && rest != 0u)) {
            return SIZE == 8 ? uvec2(~0u, ~0u) : uvec2(every, 0u);
        }
        if ((unsigned_ | rest) == 0u) top = 0u;
        if ((top & sign) != 0u) { top ^= every; rest = ~rest; } else { top |= sign; }
    } else if (KIND == 1) {
        top ^= sign;
    }
    if (DESCENDING != 0) { top ^= every; rest = ~rest; }
    return SIZE == 8 ? uvec2(rest, top) : uvec2(top, 0u);
}

FN bool is_less(uvec2 a, uvec2 b) {
    if (SIZE < 8) return a.x < b.x;
    return a.y < b.y || (a.y == b.y && a.x < b.x);
}

// The bits of one element, of SIZE bytes, at byte `at` of a word or two.
FN uvec2 cut(uint word, uint next, uint at) {
    if (SIZE == 1) return uvec2((word >> ((at & 3u) * 8u)) & 0xFFu, 0u);
    if (SIZE == 2) return uvec2((word >> ((at & 2u) * 8u)) & 0xFFFFu, 0u);
    return uvec2(word, SIZE == 8 ? next : 0u);
}
