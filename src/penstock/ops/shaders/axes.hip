// Reduces an array along axes: what axes.comp does, with the arguments and parts that it has. A job
// is one part of the elements of one output.
//
//   FOLD, LONG, OPERATION, FINISH, ARE_PARTS, SIDEWAYS   as in axes.comp
//   OUT_SIZE   bytes of what is stored for an output

#include "axes_numbers.hip"

#define NUMBERS 0
#define COUNT 1
#define BLOCK (ARE_PARTS ? 1u : 16u)

#if FOLD == NUMBERS

#define KIND (OPERATION & 3)
typedef Number Block;
static __device__ Block nothing() { return KIND == 1 ? one() : nothing_at_all(); }
static __device__ Block taken(Block block, const Byte *place, Word, Number mean) {
    Number number = number_at(place);
    if (KIND == 1) return times(block, number);
#if NUMBER != WHOLE
    if (KIND == 2) number = square(minus(number, mean));
#endif
    return plus(block, number);
}
#if NUMBER == WHOLE
typedef Number Total;
static __device__ Total alone(Block block) { return block; }
static __device__ Total joined(Total a, Total b) { return KIND == 1 ? times(a, b) : plus(a, b); }
static __device__ void finish(Byte *place, Total total, Word, Word) { store(place, total); }
#else
struct Total { Number sum, rest; };
static __device__ Total alone(Block block) { return Total{block, nothing_at_all()}; }
static __device__ Total joined(Total a, Total b) {
    if (KIND == 1) return alone(times(a.sum, b.sum));
    Number sum = plus(a.sum, b.sum), other = minus(sum, a.sum);
    Number rest = plus(minus(a.sum, minus(sum, other)), minus(b.sum, other));
    return Total{sum, plus(rest, plus(a.rest, b.rest))};
}
static __device__ void finish(Byte *place, Total total, Word low, Word high) {
    Number value = with_rest(total.sum, total.rest);
    if (FINISH && (OPERATION & 4))
        value = over(value, sizeof(Real) == 4 ? (Real)float_of_bits(low)
                                              : (Real)double_of_words(low, high));
    if (FINISH && (OPERATION & 8)) value = root(value);
    store(place, value);
}
#endif
typedef Number Extra;
static __device__ Extra extra_of(const Byte *means, Word output) {
    if (KIND != 2) return nothing_at_all();
    return ((const Number *)means)[output];
}

#elif FOLD == COUNT

typedef Word Block;
typedef Word Total;
typedef Word Extra;
static __device__ Extra extra_of(const Byte *, Word) { return 0; }
static __device__ Block nothing() { return 0; }
static __device__ bool is_true(const Byte *place) {
    switch (SOURCE) {
        case 0: case 1: case 2: return *place != 0;
        case 3: case 4: return *(const unsigned short *)place != 0;
        case 5: case 6: return *(const Word *)place != 0;
        case 7: case 8: return *(const Long *)place != 0;
        case 9: case 10: return (*(const unsigned short *)place & 0x7FFF) != 0;
        case 11: return *(const float *)place != 0;
        case 12: return *(const double *)place != 0;
        case 13: return ((const float *)place)[0] != 0 || ((const float *)place)[1] != 0;
        default: return ((const double *)place)[0] != 0 || ((const double *)place)[1] != 0;
    }
}
static __device__ Block taken(Block block, const Byte *place, Word, Extra) {
    return block + (ARE_PARTS ? *(const Word *)place : (Word)is_true(place));
}
static __device__ Total alone(Block block) { return block; }
static __device__ Total joined(Total a, Total b) { return a + b; }
static __device__ void finish(Byte *place, Total total, Word count, Word) {
    if (!FINISH) *(Word *)place = total;
    else if (OPERATION == 0) *(Long *)place = total;
    else *place = OPERATION == 1 ? total != 0 : total == count;
}

#else

#define SMALLEST (OPERATION & 1)
#define INDEX (OPERATION & 2)
#define IS_FLOAT (SOURCE >= 9 && SOURCE <= 12)
#define IS_SIGNED (SOURCE == 1 || SOURCE == 3 || SOURCE == 5 || SOURCE == 7)
#if SOURCE <= 2
typedef Byte Bits;
#elif SOURCE <= 4 || SOURCE == 9 || SOURCE == 10
typedef unsigned short Bits;
#elif SOURCE == 5 || SOURCE == 6 || SOURCE == 11
typedef Word Bits;
#else
typedef Long Bits;
#endif
#ifdef LONG
typedef Long Key;
struct Part { Long key; Word index, unused; };
#else
typedef Word Key;
struct Part { Word key, index; };
#endif
#define TOP ((Bits)((Long)1 << (8 * sizeof(Bits) - 1)))
#define EVERY ((Bits)~(Long)0)
#define INFINITE                                                                       \
    ((Bits)(SOURCE == 9    ? 0x7C00ull                                                 \
            : SOURCE == 10 ? 0x7F80ull                                                 \
            : SOURCE == 11 ? 0x7F800000ull : 0x7FF0000000000000ull))
#define QUIET                                                                          \
    ((Bits)(SOURCE == 9    ? 0x7E00ull                                                 \
            : SOURCE == 10 ? 0x7FC0ull                                                 \
            : SOURCE == 11 ? 0x7FC00000ull : 0x7FF8000000000000ull))

struct Best { Key key; Word index; };
typedef Best Block;
typedef Best Total;
typedef Word Extra;
static __device__ Extra extra_of(const Byte *, Word) { return 0; }
static __device__ Best nothing() { return Best{0, ~0u}; }
static __device__ Key key_of(Bits bits) {
    Bits key = bits;
    if (IS_FLOAT) {
        if (INDEX && (Bits)(bits & (Bits)~TOP) == 0) key = 0;
        key = (key & TOP) ? (Bits)(key ^ EVERY) : (Bits)(key | TOP);
    } else if (IS_SIGNED) {
        key ^= TOP;
    } else if (SOURCE == 0) {
        key = bits != 0;
    }
    if (SMALLEST) key = (Bits)(key ^ EVERY);
    return IS_FLOAT && (Bits)(bits & (Bits)~TOP) > INFINITE ? EVERY : key;
}
static __device__ Bits bits_of(Key of) {
    Bits key = (Bits)of;
    if (IS_FLOAT && key == EVERY) return QUIET;
    if (SMALLEST) key = (Bits)(key ^ EVERY);
    if (IS_FLOAT) return (key & TOP) ? (Bits)(key ^ TOP) : (Bits)(key ^ EVERY);
    return IS_SIGNED ? (Bits)(key ^ TOP) : key;
}
static __device__ Best joined(Best a, Best b) {
    bool later = b.key > a.key || (INDEX && b.key == a.key && b.index < a.index);
    return later ? b : a;
}
static __device__ Best taken(Best best, const Byte *place, Word index, Extra) {
    if (ARE_PARTS) {
        const Part *part = (const Part *)place;
        return joined(best, Best{part->key, part->index});
    }
    return joined(best, Best{key_of(*(const Bits *)place), index});
}
static __device__ Total alone(Best block) { return block; }
static __device__ void finish(Byte *place, Best best, Word, Word) {
    if (!FINISH) {
        Part *part = (Part *)place;
        part->key = best.key, part->index = best.index;
    } else if (INDEX) {
        *(Long *)place = best.index;
    } else {
        *(Bits *)place = bits_of(best.key);
    }
}
#endif

#ifdef LONG
#define PART_SIZE 16
#elif FOLD == COUNT
#define PART_SIZE 4
#elif FOLD == NUMBERS
#define PART_SIZE sizeof(Number)
#else
#define PART_SIZE 8
#endif

extern "C" __global__ void axes(
    const Byte *x, const Byte *m, Byte *y, Word at, Word last, Word first, Word jobs, Word span,
    Word units, Word outputs, Word step_splits, Word rows_each, Word steps_each, Word rows,
    Word kept_0, Word kept_1, Word kept_2, Word step_0, Word step_1, Word step_2, Word step_3,
    Word to_0, Word to_1, Word to_2, Word to_3, Word reduced_0, Word reduced_1, Word reduced_2,
    Word pace_0, Word pace_1, Word pace_2, Word pace_3, Word argument_0, Word argument_1) {
    Word jobs_end = (blockIdx.x + 1) * span < jobs ? (blockIdx.x + 1) * span : jobs;
    for (Word job = blockIdx.x * span + threadIdx.x; job < jobs_end; job += blockDim.x) {
        Word unit = job, part = blockIdx.y, row_split = blockIdx.z;
        if (SIDEWAYS) unit = job / step_splits, part = job - unit * step_splits;
        Word rest = unit / kept_0, along = unit - rest * kept_0;
        Word more = rest / kept_1, most = more / kept_2;
        // Steps back are large unsigned numbers: the sum wraps to the right place.
        Word begin = at + along * step_0 + (rest - more * kept_1) * step_1 +
                     (more - most * kept_2) * step_2 + most * step_3;
        Word output = along * to_0 + (rest - more * kept_1) * to_1 +
                      (more - most * kept_2) * to_2 + most * to_3;
        Extra extra = extra_of(m, output);
        Total total = alone(nothing());
        Word row = row_split * rows_each;
        Word rows_end = row + rows_each < rows ? row + rows_each : rows;
        for (; row < rows_end; ++row) {
            Word across = row / reduced_1, deep = across / reduced_2;
            Word byte = begin + (row - across * reduced_1) * pace_1 +
                        (across - deep * reduced_2) * pace_2 + deep * pace_3;
            Word index = row * reduced_0;
            if (FOLD > COUNT) index += argument_0;
            Word i = SIDEWAYS ? part : part * steps_each;
            Word end = reduced_0, stride = SIDEWAYS ? step_splits : 1;
            if (!SIDEWAYS && i + steps_each < end) end = i + steps_each;
            while (i < end) {
                Block block = nothing();
                for (Word k = 0; k < BLOCK && i < end; ++k, i += stride)
                    block = taken(block, x + (Word)(byte + i * pace_0), index + i, extra);
                total = joined(total, alone(block));
            }
        }
        output += (row_split * step_splits + part) * outputs;
        finish(y + 4 * (Long)first + (Long)output * OUT_SIZE, total, argument_0, argument_1);
    }
}
