// What the kernels of a gated DeltaNet layer share: sizes, and where each number of a token is.
//
//   KEY_HEADS, VALUE_HEADS  heads; SHARE of the latter use the same key head: neighbours, or with TILED
//                           every KEY_HEADS-th
//   KEY_SIZE, VALUE_SIZE    numbers in a head
//   FUSED                   a row of `mixed` has, for each key head, its query, its key, the values that
//                           share it, and their gates. Else it has all queries, all keys and all values,
//                           and the gates are in an array of their own
//   FUSED_FACTORS           the same of the numbers that decide how much a token writes and fades
//
// The memory of a layer has SLOTS slots of SLOT_SIZE numbers. The slot p % SLOTS has what a token at
// position p needs of those before it: the state of each value head, KEY_SIZE × VALUE_SIZE numbers, four
// of a column side by side; and, from WINDOW_AT on, the rows of the last TAPS - 1 tokens before the
// convolution. Before position 0 all of it is zero, whatever the memory holds.

#define KEYS (KEY_HEADS * KEY_SIZE)
#define VALUES (VALUE_HEADS * VALUE_SIZE)
#define SHARE (VALUE_HEADS / KEY_HEADS)
#define GROUP_SIZE (2 * KEY_SIZE + 2 * SHARE * VALUE_SIZE)  // of FUSED
#define KEY_QUADS (KEY_SIZE / 4)

uint key_head_of(uint head) {
#ifdef TILED
    return head % uint(KEY_HEADS);
#else
    return head / uint(SHARE);
#endif
}

// Where the convolution's channel is in a row of `mixed`.
uint place_of_channel(uint channel) {
#ifdef FUSED
    if (channel < uint(KEYS)) return channel / uint(KEY_SIZE) * uint(GROUP_SIZE) + channel % uint(KEY_SIZE);
    channel -= uint(KEYS);
    if (channel < uint(KEYS))
        return channel / uint(KEY_SIZE) * uint(GROUP_SIZE) + uint(KEY_SIZE) + channel % uint(KEY_SIZE);
    channel -= uint(KEYS);
    uint shared_values = uint(SHARE * VALUE_SIZE);
    return channel / shared_values * uint(GROUP_SIZE) + uint(2 * KEY_SIZE) + channel % shared_values;
#else
    return channel;
#endif
}

// Where the gates of a value head begin in a row.
uint place_of_gates(uint head) {
#ifdef FUSED
    return head / uint(SHARE) * uint(GROUP_SIZE) + uint(2 * KEY_SIZE + SHARE * VALUE_SIZE)
        + head % uint(SHARE) * uint(VALUE_SIZE);
#else
    return head * uint(VALUE_SIZE);
#endif
}

// Where the factors of a value head are in a row: how much it writes, and how much it fades.
uvec2 places_of_factors(uint head) {
#ifdef FUSED_FACTORS
    uint at = head / uint(SHARE) * uint(2 * SHARE) + head % uint(SHARE);
    return uvec2(at, at + uint(SHARE));
#else
    return uvec2(head);
#endif
}

float sigmoid(float x) { return 1.0 / (1.0 + exp(-x)); }

float softplus(float x) { return max(x, 0.0) + log(1.0 + exp(-abs(x))); }
