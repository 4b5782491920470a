// Parts of an exclusive sum over `count` words, `each` consecutive ones for an invocation.
//
//   STAGE  0  sums[id] = the sum of the invocation's values
//          1  replace the values by the sums of those in front of them, which begin with sums[id]
//          2  the same with sums that begin with 0, for a single invocation

FN void run() {
    uint id = GROUP * LANES + LANE;
    uint begin = id * each;
    if (begin >= count) return;
    uint end = min(count, begin + each);
    uint total = 0u;
    if (STAGE == 1) total = sums[id].bits;
    for (uint i = begin; i < end; ++i) {
        uint value = values[i].bits;
        if (STAGE > 0) values[i].bits = total;
        total += value;
    }
    if (STAGE == 0) sums[id].bits = total;
}
