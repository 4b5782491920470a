// Finds the elements of x that are not zero, in order. An invocation takes `each` consecutive ones
// of `count`; `each` is a multiple of 4, and x starts with a word.
//
//   SIZE   bytes of an element; mask0.. are the bits of its words that count (not a float's sign)
//   STAGE  0  places[id] = how many the invocation has found
//          1  found[places[id]..] = their indices, where places has the sums of those before,
//             and of all at its end. Every index is stored and the next one overwrites those that
//             are not wanted: a store under a condition that varies is slower on CPUs

FN bool is_true(uint i) {
    if (SIZE == 2) return ((x[i >> 1u].bits >> ((i & 1u) * 16u)) & mask0 & 0xFFFFu) != 0u;
    uint at = i * uint(SIZE / 4);
    uint seen = x[at].bits & mask0;
    if (SIZE > 4) seen |= x[at + 1u].bits & mask1;
    if (SIZE > 8) seen |= (x[at + 2u].bits & mask2) | (x[at + 3u].bits & mask3);
    return seen != 0u;
}

FN void put(uint place, uint limit, uint i) {
    if (place < limit) found[place].bits = i;
}

FN void run() {
    uint id = GROUP * LANES + LANE;
    uint begin = id * each;
    if (begin >= count) return;
    uint end = min(count, begin + each);
    uint place = 0u, limit = 0u;
    if (STAGE == 1) {
        place = places[id].bits;
        limit = places[id + 1u].bits;
    }
    if (SIZE == 1) {
        // The highest bit of each byte that is not 0, four at a time.
        for (uint i = begin; i < end; i += 4u) {
            uint four = x[i >> 2u].bits;
            if (end - i < 4u) four &= ~0u >> (8u * (4u - (end - i)));
            four = (((four & 0x7F7F7F7Fu) + 0x7F7F7F7Fu) | four) & 0x80808080u;
            if (STAGE == 1) {
                put(place, limit, i);
                place += (four >> 7u) & 1u;
                put(place, limit, i + 1u);
                place += (four >> 15u) & 1u;
                put(place, limit, i + 2u);
                place += (four >> 23u) & 1u;
                put(place, limit, i + 3u);
                place += four >> 31u;
            } else {
                place += ((four >> 7u) * 0x01010101u) >> 24u;
            }
        }
    } else {
        for (uint i = begin; i < end; ++i) {
            if (STAGE == 1) put(place, limit, i);
            place += is_true(i) ? 1u : 0u;
        }
    }
    if (STAGE == 0) places[id].bits = place;
}
