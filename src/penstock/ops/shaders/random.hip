// Random numbers from counters: what random.comp does, with the types that HIP always has. Its header
// says what the arguments are. No multiplication is fused with an addition, so that the numbers are
// the same.
//
//   MODE, SIZE, SIGNED   the constants of random.comp; WIDE, elements are float64

#pragma clang fp contract(off)

#define BITS 0
#define UNIFORM 1
#define INTEGER 2
#define QUANTILE 3
#define PERMUTATION 4

typedef unsigned int Word;
typedef unsigned long long Long;

#ifdef WIDE
typedef double Real;
typedef Long Drawn;
#define WIDTH 64
#define DIGITS 52
#define DEGREE 8
#define UNIT 2.220446049250313e-16
#else
typedef float Real;
typedef Word Drawn;
#define WIDTH 32
#define DIGITS 24
#define DEGREE 3
#define UNIT 5.9604644775390625e-8f
#endif

struct Four {
    Word words[4];
};

static __device__ Four drawn(Long block, Word retry, Word k0, Word k1) {
    Word c0 = (Word)block, c1 = (Word)(block >> 32), c2 = retry, c3 = 0;
    for (Word n = 0; n < 10; ++n) {
        Long one = (Long)0xD2511F53u * c0, other = (Long)0xCD9E8D57u * c2;
        c0 = (Word)(other >> 32) ^ c1 ^ k0;
        c1 = (Word)other;
        c2 = (Word)(one >> 32) ^ c3 ^ k1;
        c3 = (Word)one;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return Four{{c0, c1, c2, c3}};
}

static __device__ Real real_of(Drawn bits) {
    Real made;
    __builtin_memcpy(&made, &bits, sizeof(Real));
    return made;
}

static __device__ Real uniform_of(Drawn bits) {
#ifdef WIDE
    Word low = (Word)bits, high = (Word)(bits >> 32);
    return ((double)(high >> 5) * 67108864.0 + (double)(low >> 6)) * 1.1102230246251565e-16;
#else
    return (float)(bits >> 8) * UNIT;
#endif
}

static __device__ Real quantile_of(Drawn bits, const Real *table) {
    Drawn top = (Drawn)1 << (WIDTH - 1);
    Drawn m = (SIGNED ? bits & ~top : bits) | 1;
    Word octave = WIDTH - 1;
    while (!(m >> octave)) --octave;
    Drawn n = m << (WIDTH - 1 - octave);
    Word part = octave * 8 + (Word)(n >> (WIDTH - 4) & 7);
    Real x = (Real)(n >> (WIDTH - 4 - DIGITS) & (((Drawn)1 << DIGITS) - 1)) * UNIT;
    const Real *own = table + part * (DEGREE + 1);
    Real value = own[DEGREE];
    for (int i = DEGREE - 1; i >= 0; --i) {
        Real product = value * x;
        value = product + own[i];
    }
    if (!SIGNED) return value < 0 ? 0 : value;
    return (bits & top) ? -value : value;
}

static __device__ Long mask_of(Long largest) {
    Long mask = 0;
    while (mask < largest) mask = mask << 1 | 1;
    return mask;
}

static __device__ Word mixed(Word x) {
    x = (x ^ x >> 16) * 0x85EBCA6Bu;
    x = (x ^ x >> 13) * 0xC2B2AE35u;
    return x ^ x >> 16;
}

static __device__ Word permuted(Word i, Word count, const Word *keys) {
    Word bits = 1;
    while (count >> (bits - 1)) ++bits;  // one more than those of the count
    Word half_size = bits / 2, rest = bits - half_size;
    Word masks[2] = {((Word)1 << half_size) - 1, ((Word)1 << rest) - 1};
    Word walked = 0;
    do {
        Word left = i >> rest, right = i & masks[1];
        for (Word n = 0; n < 12; ++n) {
            Word next = left ^ (mixed(right ^ keys[n]) & masks[n % 2]);
            left = right;
            right = next;
        }
        i = left << rest | right;
    } while (i >= count && ++walked < 1024);
    return i;
}

extern "C" __global__ void random_numbers(
    Word *made, const Real *table, Word made_at, Word count, Word span, Word block_low,
    Word block_high, Word key_0, Word key_1, Word a_low, Word a_high, Word b_low, Word b_high,
    Word keys_0, Word keys_1, Word keys_2, Word keys_3, Word keys_4, Word keys_5, Word keys_6,
    Word keys_7, Word keys_8, Word keys_9, Word keys_10, Word keys_11) {
    Word keys[12] = {keys_0, keys_1, keys_2, keys_3, keys_4,  keys_5,
                     keys_6, keys_7, keys_8, keys_9, keys_10, keys_11};
    Word elements = SIZE == 8 ? 2 : 4, group = blockIdx.x + blockIdx.y * gridDim.x;
    Word blocks = MODE == PERMUTATION ? count : (count + elements - 1) / elements;
    Word end = (group + 1) * span < blocks ? (group + 1) * span : blocks;
    Long first = (Long)block_high << 32 | block_low;
    Long a = (Long)a_high << 32 | a_low, b = (Long)b_high << 32 | b_low;
    unsigned char *to = (unsigned char *)(made + made_at);
    for (Word n = group * span + threadIdx.x; n < end; n += blockDim.x) {
        if (MODE == PERMUTATION) {
            ((Long *)to)[n] = permuted(b_low + n, a_low, keys);
            continue;
        }
        Four bits = drawn(first + n, 0, key_0, key_1);
        for (Word e = 0; e < elements && n * elements + e < count; ++e) {
            Long found = SIZE == 8 ? (Long)bits.words[2 * e + 1] << 32 | bits.words[2 * e] : bits.words[e];
            if (MODE == INTEGER) {
                Long mask = mask_of(b);
                found &= mask;
                for (Word retry = 1; retry < 64 && found > b; ++retry) {
                    Four again = drawn(first + n, retry, key_0, key_1);
                    found = SIZE == 8 ? (Long)again.words[2 * e + 1] << 32 | again.words[2 * e]
                                      : again.words[e];
                    found &= mask;
                }
                found += a;
            } else if (MODE != BITS) {
                Real x = MODE == UNIFORM ? uniform_of((Drawn)found) : quantile_of((Drawn)found, table);
                Real scaled = x * real_of((Drawn)b);
                scaled = scaled + real_of((Drawn)a);
                Drawn kept;
                __builtin_memcpy(&kept, &scaled, sizeof(Real));
                found = kept;
            }
            __builtin_memcpy(to + (n * elements + e) * SIZE, &found, SIZE);
        }
    }
}
