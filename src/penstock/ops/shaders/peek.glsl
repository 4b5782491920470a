// Returns the word at `at`.

FN void run() {
    if (GROUP == 0u && LANE == 0u) RESULT(value) = x[at].bits;
}
