// Elements of every dtype, and what sums and products compute in: for axes.hip and scan.hip, which
// do what axes.comp and scan.comp do, one element at a time, with the types that HIP always has.
//
//   SOURCE   the code of the elements' dtype, in the order of elements.py
//   OUT      that of what is stored
//   NUMBER   FLOAT, DOUBLE, COMPLEX, DCOMPLEX or WHOLE; not defined by kernels without numbers

#define FLOAT 0
#define DOUBLE 1
#define COMPLEX 2
#define DCOMPLEX 3
#define WHOLE 4

typedef unsigned int Word;
typedef unsigned long long Long;
typedef long long Signed;
typedef unsigned char Byte;

static __device__ float float_of_bits(Word bits) {
    union { Word word; float number; } both;
    both.word = bits;
    return both.number;
}
static __device__ Word bits_of_float(float number) {
    union { Word word; float number; } both;
    both.number = number;
    return both.word;
}
static __device__ double double_of_words(Word low, Word high) {
    union { Long words; double number; } both;
    both.words = (Long)high << 32 | low;
    return both.number;
}

// To the nearest float16, ties to even.
static __device__ unsigned short half_of(float number) {
    Word bits = bits_of_float(number), sign = bits >> 16 & 0x8000u, size = bits & 0x7FFFFFFFu;
    if (size > 0x7F800000u) return (unsigned short)(sign | 0x7E00u);
    if (size >= 0x47800000u) return (unsigned short)(sign | 0x7C00u);
    if (size < 0x38800000u) {  // subnormal: a multiple of 2^-24
        Word shift = 126u - (size >> 23), whole = (size & 0x7FFFFFu) | 0x800000u;
        if (shift > 25u) return (unsigned short)sign;
        Word kept = whole >> shift, lost = whole & ((1u << shift) - 1u), tie = 1u << (shift - 1u);
        return (unsigned short)(sign | (kept + (lost > tie || (lost == tie && (kept & 1u)))));
    }
    Word rounded = size + 0xFFFu + (size >> 13 & 1u);
    return (unsigned short)(sign | ((rounded - 0x38000000u) >> 13));
}

#ifdef NUMBER
#if NUMBER == FLOAT || NUMBER == COMPLEX
typedef float Real;
#else
typedef double Real;
#endif

static __device__ Real real_at(const Byte *place) {
    switch (SOURCE) {
        case 0: return *place != 0;
        case 1: return (Real) * (const signed char *)place;
        case 2: return (Real)*place;
        case 3: return (Real) * (const short *)place;
        case 4: return (Real) * (const unsigned short *)place;
        case 5: return (Real) * (const int *)place;
        case 6: return (Real) * (const Word *)place;
        case 7: return (Real) * (const Signed *)place;
        case 8: return (Real) * (const Long *)place;
        case 9: return (Real)(float)*(const _Float16 *)place;
        case 10: return (Real)float_of_bits((Word) * (const unsigned short *)place << 16);
        case 12: return (Real) * (const double *)place;
        default: return (Real) * (const float *)place;
    }
}

#if NUMBER == WHOLE
typedef Long Number;
static __device__ Number number_at(const Byte *place) {
    switch (SOURCE) {
        case 0: return *place != 0;
        case 1: return (Number)(Signed) * (const signed char *)place;
        case 2: return *place;
        case 3: return (Number)(Signed) * (const short *)place;
        case 4: return *(const unsigned short *)place;
        case 5: return (Number)(Signed) * (const int *)place;
        case 6: return *(const Word *)place;
        default: return *(const Long *)place;
    }
}
static __device__ Number plus(Number a, Number b) { return a + b; }
static __device__ Number times(Number a, Number b) { return a * b; }
static __device__ Number nothing_at_all() { return 0; }
static __device__ Number one() { return 1; }
static __device__ void store(Byte *place, Number a) {
    switch (OUT) {
        case 0: *place = a != 0; break;
        case 1: case 2: *place = (Byte)a; break;
        case 3: case 4: *(unsigned short *)place = (unsigned short)a; break;
        case 5: case 6: *(Word *)place = (Word)a; break;
        default: *(Long *)place = a;
    }
}

#else

static __device__ void store_real(Byte *place, Real a) {
    if (OUT == 9) {
        *(unsigned short *)place = half_of((float)a);
    } else if (OUT == 10) {
        Word bits = bits_of_float((float)a);
        bool nan = (bits & 0x7FFFFFFFu) > 0x7F800000u;
        *(unsigned short *)place =
            (unsigned short)(nan ? bits >> 16 | 0x40u : (bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
    } else if (OUT == 12) {
        *(double *)place = (double)a;
    } else {
        *(float *)place = (float)a;
    }
}

#if NUMBER == FLOAT || NUMBER == DOUBLE
typedef Real Number;
static __device__ Number number_at(const Byte *place) { return real_at(place); }
static __device__ Number plus(Number a, Number b) { return a + b; }
static __device__ Number minus(Number a, Number b) { return a - b; }
static __device__ Number times(Number a, Number b) { return a * b; }
static __device__ Number over(Number a, Real b) { return a / b; }
static __device__ Number root(Number a) { return sizeof(Real) == 4 ? sqrtf(a) : sqrt(a); }
static __device__ Number square(Number a) { return a * a; }
static __device__ Number nothing_at_all() { return 0; }
static __device__ Number one() { return 1; }
static __device__ Number with_rest(Number sum, Number rest) {
    return rest - rest == 0 ? sum + rest : sum;  // the error of an infinite sum is no number
}
static __device__ void store(Byte *place, Number a) { store_real(place, a); }
#else
struct Number { Real re, im; };
static __device__ Number number_at(const Byte *place) {
    if (SOURCE == 13) return Number{(Real)((const float *)place)[0], (Real)((const float *)place)[1]};
    if (SOURCE == 14)
        return Number{(Real)((const double *)place)[0], (Real)((const double *)place)[1]};
    return Number{real_at(place), 0};
}
static __device__ Number plus(Number a, Number b) { return Number{a.re + b.re, a.im + b.im}; }
static __device__ Number minus(Number a, Number b) { return Number{a.re - b.re, a.im - b.im}; }
static __device__ Number times(Number a, Number b) {
    return Number{a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}
static __device__ Number over(Number a, Real b) { return Number{a.re / b, a.im / b}; }
static __device__ Number root(Number a) {
    return Number{sizeof(Real) == 4 ? sqrtf(a.re) : sqrt(a.re), 0};
}
static __device__ Number square(Number a) { return Number{a.re * a.re + a.im * a.im, 0}; }
static __device__ Number nothing_at_all() { return Number{0, 0}; }
static __device__ Number one() { return Number{1, 0}; }
static __device__ Number with_rest(Number sum, Number rest) {
    return Number{rest.re - rest.re == 0 ? sum.re + rest.re : sum.re,
                  rest.im - rest.im == 0 ? sum.im + rest.im : sum.im};
}
static __device__ void store(Byte *place, Number a) {
    if (OUT == 13) {
        ((float *)place)[0] = (float)a.re, ((float *)place)[1] = (float)a.im;
    } else if (OUT == 14) {
        ((double *)place)[0] = (double)a.re, ((double *)place)[1] = (double)a.im;
    } else {
        store_real(place, a.re);
    }
}
#endif
#endif
#endif
