// Two-word integers and double, on a device without 64-bit integers. The upper word of a double is
// exact, times 2^32 too, so that only the sum rounds.

precise double ps_float64(ps_i64 x) {
    return double(int(x.words.y)) * 4294967296.0lf + double(x.words.x);
}
precise double ps_float64(ps_u64 x) {
    return double(x.words.y) * 4294967296.0lf + double(x.words.x);
}

precise uvec2 ps_words_of_size(double size) {
    double high = ps_trunc(size * 2.3283064365386962890625e-10lf);
    return uvec2(uint(size - high * 4294967296.0lf), uint(high));
}

ps_i64 ps_int64(double x) {
    uvec2 size = ps_words_of_size(ps_abs(x));
    return ps_i64(x < double(0) ? ps_minus_words(size) : size);
}

ps_u64 ps_uint64(double x) {
    uvec2 size = ps_words_of_size(ps_abs(x));
    return ps_u64(x < double(0) ? ps_minus_words(size) : size);
}
