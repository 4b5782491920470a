// The result of the cursors: tokens with a key above `cut` are kept, and the first `kept_ties` with
// that key.

layout(binding = 0) readonly buffer Settings { uint settings[]; };
layout(binding = 1) readonly buffer Control { uint control[]; };

uint cut, kept_ties, peak;
float inverse_temperature, log_min_p;

void find_cut() {
    peak = control[PEAK];
    inverse_temperature = uintBitsToFloat(settings[INVERSE_TEMPERATURE]);
    log_min_p = uintBitsToFloat(settings[LOG_MIN_P]);
    cut = 0u;
    kept_ties = ~0u;
    // Top-p keeps a subset of what top-k keeps.
    if (control[BY_WEIGHT + DEPTH] == DIGITS + 1u) {
        cut = control[BY_WEIGHT + KEY];
        kept_ties = control[BY_WEIGHT + TIES];
    } else if (control[BY_NUMBER + DEPTH] == DIGITS + 1u) {
        cut = control[BY_NUMBER + KEY];
        kept_ties = control[BY_NUMBER + TIES];
    }
}

// The weight of a token, 0 if min-p drops it.
uint weight_above_min_p(uint key) {
    float depth = depth_of(key, peak, inverse_temperature);
    return depth >= log_min_p ? weight_of(depth) : 0u;
}
