// Where element i of a move is, by up to four axes, the first of which (n0) is the innermost.
//
// Its bytes are at `src_at` + the sum of index * s0.. in src, and likewise in dst (d0..) and in the
// keys (k0..). n0, n1 and n2 are divided by with multipliers (m0..) and shifts (six bits of `shifts`
// each); a multiplier of 0 stands for 1.
//
//   AXES    axes that are walked: 1, 2 or 4

struct Place {
    uint from, to, key;  // bytes in src, in dst, and in the keys
    uint column, row;    // the indices along the two innermost axes
};

FN uint divided(uint i, uint m, uint place) {
    return m == 0u ? i : MULHI(i, m) >> ((shifts >> (6u * place)) & 63u);
}

FN uint along(uint i0, uint i1, uint i2, uint i3, uint t0, uint t1, uint t2, uint t3) {
    if (AXES == 1) return i0 * t0;
    if (AXES == 2) return i0 * t0 + i1 * t1;
    return i0 * t0 + i1 * t1 + i2 * t2 + i3 * t3;
}

FN Place place_of(uint i) {
    uint i0 = i, i1 = 0u, i2 = 0u, i3 = 0u;
    if (AXES > 1) { i1 = divided(i, m0, 0u); i0 = i - i1 * n0; }
    if (AXES > 2) {
        i2 = divided(i1, m1, 1u); i1 -= i2 * n1;
        i3 = divided(i2, m2, 2u); i2 -= i3 * n2;
    }
    Place found;
    found.from = src_at + along(i0, i1, i2, i3, s0, s1, s2, s3);
    found.to = dst_at + along(i0, i1, i2, i3, d0, d1, d2, d3);
    found.key = keys_at + along(i0, i1, i2, i3, k0, k1, k2, k3);
    found.column = i0;
    found.row = i1;
    return found;
}
