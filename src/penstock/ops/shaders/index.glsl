// The index at byte `at` of the keys, which are integers of KEY_SIZE bytes, signed if KEY_SIGNED.
// Negative ones count from `limit`, and all are kept within 0 and `limit` - 1.

FN uint index_at(uint at) {
    uint word = keys[at >> 2u].bits;
    uint high = 0u;
    if (KEY_SIZE == 1) {
        word = (word >> ((at & 3u) * 8u)) & 0xFFu;
        if (KEY_SIGNED != 0 && word > 0x7Fu) { word |= 0xFFFFFF00u; high = ~0u; }
    } else if (KEY_SIZE == 2) {
        word = (word >> ((at & 2u) * 8u)) & 0xFFFFu;
        if (KEY_SIGNED != 0 && word > 0x7FFFu) { word |= 0xFFFF0000u; high = ~0u; }
    } else if (KEY_SIZE == 4) {
        if (KEY_SIGNED != 0 && word > 0x7FFFFFFFu) high = ~0u;
    } else {
        high = keys[(at >> 2u) + 1u].bits;
    }
    if (KEY_SIGNED != 0 && high > 0x7FFFFFFFu) {
        uint from_end = word + limit;
        return high != ~0u || from_end >= limit ? 0u : from_end;
    }
    return high != 0u || word >= limit ? limit - 1u : word;
}
