// Turns flat indices into those along one axis: out[i] = x[i] / inner % extent, in 64 bits.
// x starts with word `x_first`. Group g takes `span` of `count` indices, which have 31 bits; they
// are divided by with multipliers (`inner_m`, `extent_m`) and shifts, since CPUs divide slowly.
//
//   INNER   whether `inner` is more than 1
//   EXTENT  whether there is an extent of more than 1

FN void run() {
    uint begin = GROUP * span;
    uint end = min(count, begin + span);
    for (uint i = begin + LANE; i < end; i += LANES) {
        uint index = x[x_first + i].bits;
        if (INNER != 0) index = MULHI(index, inner_m) >> inner_shift;
        if (EXTENT != 0) index -= (MULHI(index, extent_m) >> extent_shift) * extent;
        out_[2u * i].bits = index;
        out_[2u * i + 1u].bits = 0u;
    }
}
