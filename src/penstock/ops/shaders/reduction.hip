// Reduces `count` elements to one part for each block, which the host folds when it reads the
// result: what reduction.comp does, with the 8-, 16- and 64-bit types that HIP always has.
//
// Each block takes a span of consecutive elements, over which its threads stride; they then combine
// their values in shared memory. `first` is the index of the first element, from x.
//
//   BITS   size of an element: 8, 16, 32 or 64
//   KIND   what its bits mean: FLOAT, SIGNED or UNSIGNED
//   FOLD   the value of an element, and how two values are combined:
//            SUM        the number (with PRODUCT: times that of y), added; integers in 64 bits
//            WIDE_SUM   an integer of 64 bits as its two words, each added in 64 bits
//            LARGEST    a key whose order as an unsigned integer is that of the numbers, NaN last;
//                       with SMALLEST, the opposite order, but for NaN
//            WHERE      such a key and the index of the element; the first of equals wins
//            ANY, ALL   1 if the element is true, or false, and the larger of two
//   BLOCK  elements that a thread combines in sequence before it adds them to its total
//   PARTS  the maximum number of blocks; GROUP, the threads of a block: a power of two

#define FLOAT 0
#define SIGNED 1
#define UNSIGNED 2
#define SUM 0
#define WIDE_SUM 1
#define LARGEST 2
#define WHERE 3
#define ANY 4
#define ALL 5

typedef unsigned int Word;
typedef unsigned long long Long;

#if BITS == 8
typedef unsigned char Bits;
typedef signed char Signed;
#elif BITS == 16
typedef unsigned short Bits;
typedef short Signed;
typedef _Float16 Real;
#elif BITS == 32
typedef Word Bits;
typedef int Signed;
typedef float Real;
#else
typedef Long Bits;
typedef long long Signed;
typedef double Real;
#endif

static const Bits SIGN_BIT = (Bits)((Long)1 << (BITS - 1));
static const Bits ALL_BITS = (Bits)~(Long)0;
static const Bits INFINITE =
    (Bits)(BITS == 16 ? 0x7C00ull : BITS == 32 ? 0x7F800000ull : 0x7FF0000000000000ull);

static __device__ bool is_nan(Bits bits) {
    return KIND == FLOAT && (Bits)(bits & (Bits)~SIGN_BIT) > INFINITE;
}
static __device__ bool is_zero(Bits bits) {
    return (KIND == FLOAT ? (Bits)(bits & (Bits)~SIGN_BIT) : bits) == 0;
}

static __device__ Bits key(Bits bits) {
    Bits made = bits;
    if (KIND == FLOAT) {
        // 0.0 and -0.0 compare equal, but have different bits.
        if (FOLD == WHERE && is_zero(made)) made = 0;
        made = (made & SIGN_BIT) ? (Bits)(made ^ ALL_BITS) : (Bits)(made | SIGN_BIT);
    } else if (KIND == SIGNED) {
        made ^= SIGN_BIT;
    }
#ifdef SMALLEST
    made ^= ALL_BITS;
#endif
    return is_nan(bits) ? ALL_BITS : made;
}

// Parts: the value of one element, how two are combined, and the words of a part in the result.

#if FOLD == SUM && KIND == FLOAT
#if BITS == 64
typedef double Part;
#else
typedef float Part;
#endif
typedef Part Out;
#define WORDS 1
static __device__ Part nothing() { return 0; }
static __device__ Part part(const void *x, Word at, Word) { return (Part)((const Real *)x)[at]; }
static __device__ Part times(Part a, Part b) { return a * b; }
static __device__ Part join(Part a, Part b) { return a + b; }
static __device__ void put(Part a, Out *out) { out[0] = a; }

#elif FOLD == SUM
typedef Long Part;
typedef Word Out;
#define WORDS 2
static __device__ Part nothing() { return 0; }
static __device__ Part part(const void *x, Word at, Word) {
    if (KIND == SIGNED) return (Long)(long long)((const Signed *)x)[at];
    return ((const Bits *)x)[at];
}
static __device__ Part times(Part a, Part b) { return a * b; }
static __device__ Part join(Part a, Part b) { return a + b; }
static __device__ void put(Part a, Out *out) { out[0] = (Word)a, out[1] = (Word)(a >> 32); }

#elif FOLD == WIDE_SUM
struct Part { Long low, high; };
typedef Word Out;
#define WORDS 4
static __device__ Part nothing() { return Part{0, 0}; }
static __device__ Part part(const void *x, Word at, Word) {
    Bits bits = ((const Bits *)x)[at];
    Long high = KIND == SIGNED ? (Long)((long long)bits >> 32) : (Long)bits >> 32;
    return Part{(Long)bits & 0xFFFFFFFFull, high};
}
static __device__ Part join(Part a, Part b) { return Part{a.low + b.low, a.high + b.high}; }
static __device__ void put(Part a, Out *out) {
    out[0] = (Word)a.low, out[1] = (Word)(a.low >> 32);
    out[2] = (Word)a.high, out[3] = (Word)(a.high >> 32);
}

#elif FOLD == LARGEST
typedef Bits Part;
typedef Word Out;
#define WORDS (BITS == 64 ? 2 : 1)
static __device__ Part nothing() { return 0; }
static __device__ Part part(const void *x, Word at, Word) { return key(((const Bits *)x)[at]); }
static __device__ Part join(Part a, Part b) { return b > a ? b : a; }
static __device__ void put(Part a, Out *out) {
    out[0] = (Word)a;
    if (BITS == 64) out[WORDS - 1] = (Word)((Long)a >> 32);
}

#elif FOLD == WHERE
struct Part { Bits key; Word index; };
typedef Word Out;
#define WORDS (BITS == 64 ? 4 : 2)
static __device__ Part nothing() { return Part{0, ~0u}; }
static __device__ Part part(const void *x, Word at, Word index) {
    return Part{key(((const Bits *)x)[at]), index};
}
static __device__ Part join(Part a, Part b) {
    bool later = a.key == b.key ? b.index < a.index : b.key > a.key;
    return later ? b : a;
}
static __device__ void put(Part a, Out *out) {
    out[0] = (Word)a.key;
    if (BITS == 64) out[1] = (Word)((Long)a.key >> 32), out[3] = 0;
    out[BITS == 64 ? 2 : 1] = a.index;
}

#else
typedef Word Part;
typedef Word Out;
#define WORDS 1
static __device__ Part nothing() { return 0; }
static __device__ Part part(const void *x, Word at, Word) {
    return is_zero(((const Bits *)x)[at]) == (FOLD == ALL);
}
static __device__ Part join(Part a, Part b) { return a | b; }
static __device__ void put(Part a, Out *out) { out[0] = a; }
#endif

struct Result {
    Word used;  // the number of valid parts
    Word elements;
    Out parts[PARTS][WORDS];
};

extern "C" __global__ void reduction(
    const void *x,
#ifdef PRODUCT
    const void *y,
#endif
    Word count, Word first,
#ifdef PRODUCT
    Word first_y,
#endif
    Result *result) {
    __shared__ Part joined[GROUP];
    Word lane = threadIdx.x;
    Word span = (count - 1) / gridDim.x + 1;
    Long at = (Long)blockIdx.x * span + lane;
    Long end = (Long)(blockIdx.x + 1) * span;
    if (end > count) end = count;
    Part total = nothing();
    while (at < end) {
        // In blocks, so that rounding errors do not grow with the number of elements.
        Part block = nothing();
        for (Word k = 0; k < BLOCK && at < end; ++k, at += GROUP) {
            Word i = (Word)at;
#ifdef PRODUCT
            block = join(block, times(part(x, first + i, i), part(y, first_y + i, i)));
#else
            block = join(block, part(x, first + i, i));
#endif
        }
        total = join(total, block);
    }
    joined[lane] = total;
    __syncthreads();
    for (Word half_size = GROUP / 2; half_size > 0; half_size /= 2) {
        if (lane < half_size) joined[lane] = join(joined[lane], joined[lane + half_size]);
        __syncthreads();
    }
    if (lane == 0) put(joined[0], result->parts[blockIdx.x]);
    if (lane == 0 && blockIdx.x == 0) {
        result->used = gridDim.x;
        result->elements = count;
    }
}
