// Where element i of a move is, by any number of axes: the first `axes` rows of `table`.
//
// A row has the size of an axis, and the bytes from one element to the next along it: in src, in
// dst, and in the keys. The first is that of the innermost axis.

struct Place {
    uint from, to, key;  // bytes in src, in dst, and in the keys
    uint column, row;    // the indices along the two innermost axes
};

FN Place place_of(uint i) {
    Place found;
    found.from = src_at;
    found.to = dst_at;
    found.key = keys_at;
    found.column = found.row = 0u;
    for (uint axis = 0u; axis < axes; ++axis) {
        uint size = table[4u * axis].bits;
        uint next = i / size;
        uint index = i - next * size;
        found.from += index * table[4u * axis + 1u].bits;
        found.to += index * table[4u * axis + 2u].bits;
        found.key += index * table[4u * axis + 3u].bits;
        if (axis == 0u) found.column = index;
        if (axis == 1u) found.row = index;
        i = next;
    }
    return found;
}
