// Running sums or products along one axis: what scan.comp does, one element at a time.
//
//   PRODUCT, TOTALS, STARTED   as in scan.comp;  SIZE, OUT_SIZE: bytes of an element, and of a result

#include "axes_numbers.hip"

static __device__ Number joined(Number a, Number b) { return PRODUCT ? times(a, b) : plus(a, b); }

extern "C" __global__ void scan(
    const Byte *x, const Byte *p, Byte *y, Word at, Word last, Word first, Word jobs, Word span,
    Word lines, Word count, Word chunk, Word pace, Word to, Word initial, Word kept_0, Word kept_1,
    Word kept_2, Word step_0, Word step_1, Word step_2, Word step_3, Word to_0, Word to_1,
    Word to_2, Word to_3) {
    Word jobs_end = (blockIdx.x + 1) * span < jobs ? (blockIdx.x + 1) * span : jobs;
    Word begin = blockIdx.y * chunk, here = count - begin < chunk ? count - begin : chunk;
    Byte *out = y + 4 * (Long)first;
    for (Word job = blockIdx.x * span + threadIdx.x; job < jobs_end; job += blockDim.x) {
        Word rest = job / kept_0, along = job - rest * kept_0;
        Word more = rest / kept_1, most = more / kept_2;
        Word byte = at + begin * pace + along * step_0 + (rest - more * kept_1) * step_1 +
                    (more - most * kept_2) * step_2 + most * step_3;
        Word output = (begin + initial) * to + along * to_0 + (rest - more * kept_1) * to_1 +
                      (more - most * kept_2) * to_2 + most * to_3;
        Word line = blockIdx.y * lines + job;
        Number total = STARTED ? ((const Number *)p)[line] : PRODUCT ? one() : nothing_at_all();
        if (!TOTALS && initial && blockIdx.y == 0)
            store(out + (Long)(output - to) * OUT_SIZE, total);
        for (Word k = 0; k < here; ++k, byte += pace, output += to) {
            total = joined(total, number_at(x + byte));
            if (!TOTALS) store(out + (Long)output * OUT_SIZE, total);
        }
        if (TOTALS) store(out + (Long)line * OUT_SIZE, total);
    }
}
