// Adds one of several index arrays to `out_`: out_[i] += index * scale, for `count` indices that lie
// side by side from byte `keys_at` on. Group g takes `span` of them.
//
//   KEY_SIZE, KEY_SIGNED  bytes of an index, and whether it is signed: as in move.glsl, negative
//                         ones count from `limit`, and all are kept within 0 and `limit` - 1
//   FLIP                  count from the end: limit - 1 - index
//   FIRST                 set out_ instead of adding to it

FN void run() {
    uint begin = GROUP * span;
    uint end = min(count, begin + span);
    for (uint i = begin + LANE; i < end; i += LANES) {
        uint index = index_at(keys_at + i * uint(KEY_SIZE));
        if (FLIP != 0) index = limit - 1u - index;
        uint sum = index * scale;
        if (FIRST == 0) sum += out_[i].bits;
        out_[i].bits = sum;
    }
}
