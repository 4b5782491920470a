// Matrix products: what product_direct.comp, product_shared.comp and product_finish.comp do, with the
// types that HIP always has. PART says which; the others' defines are those of the shaders.
//
//   KIND    what sums are, as in product.glsl; DTYPE, the code of the elements' dtype
//   PART    DIRECT, SHARED or FINISH

#define F32 0
#define U32 1
#define F64 2
#define U64 3
#define C64 4
#define C128 5
#define DIRECT 0
#define SHARED 1
#define FINISH 2

typedef unsigned int Word;
typedef unsigned char Byte;
typedef unsigned short Half;

template <typename R> struct Complex {
    R x, y;
};

#if KIND == F32
typedef float T;
#elif KIND == U32
typedef Word T;
#elif KIND == F64
typedef double T;
#elif KIND == U64
typedef unsigned long long T;
#elif KIND == C64
typedef Complex<float> T;
#else
typedef Complex<double> T;
#endif

#if KIND == C64 || KIND == C128
static __device__ T zero() { return T{0, 0}; }
static __device__ T add(T a, T b) { return T{a.x + b.x, a.y + b.y}; }
static __device__ T add_product(T sum, T a, T b) {
    return T{sum.x + (a.x * b.x - a.y * b.y), sum.y + (a.x * b.y + a.y * b.x)};
}
#else
static __device__ T zero() { return 0; }
static __device__ T add(T a, T b) { return a + b; }
static __device__ T add_product(T sum, T a, T b) { return sum + a * b; }
#endif

// Codes of dtypes, as in ops/elements.py.
#if DTYPE == 0
typedef Byte Element;
static __device__ T decoded(Element e) { return e != 0; }
static __device__ Element encoded(T sum) { return sum != 0; }
#elif DTYPE == 9
typedef _Float16 Element;
static __device__ T decoded(Element e) { return (float)e; }
static __device__ Element encoded(T sum) { return (Element)sum; }
#elif DTYPE == 10
typedef Half Element;
static __device__ T decoded(Element e) {
    Word bits = (Word)e << 16;
    float number;
    __builtin_memcpy(&number, &bits, 4);
    return number;
}
static __device__ Element encoded(T sum) {
    Word bits;
    __builtin_memcpy(&bits, &sum, 4);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return (Element)((bits >> 16) | 0x40u);
    return (Element)((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
}
#else
#if DTYPE == 1
typedef signed char Element;
#elif DTYPE == 2
typedef Byte Element;
#elif DTYPE == 3
typedef short Element;
#elif DTYPE == 4
typedef Half Element;
#else
typedef T Element;
#endif
static __device__ T decoded(Element e) { return (T)e; }
static __device__ Element encoded(T sum) { return (Element)sum; }
#endif

static __device__ T load(const Byte *from, Word at) {
    Element element;
    __builtin_memcpy(&element, from + at, sizeof(Element));
    return decoded(element);
}

#define OPERANDS                                                                              \
    const Byte *left, const Byte *right, T *sums, Word rows, Word columns, Word inner, Word span, \
        Word batches, Word batch_0, Word batch_1, Word left_at, Word left_row, Word left_inner,    \
        Word left_0, Word left_1, Word left_2, Word right_at, Word right_column, Word right_inner, \
        Word right_0, Word right_1, Word right_2

#define BEGIN                                                                               \
    Word segment = blockIdx.z / batches, batch = blockIdx.z % batches;                      \
    Word b0 = batch % batch_0, b1 = batch / batch_0 % batch_1, b2 = batch / batch_0 / batch_1; \
    Word from_left = left_at + b0 * left_0 + b1 * left_1 + b2 * left_2;                     \
    Word from_right = right_at + b0 * right_0 + b1 * right_1 + b2 * right_2;                \
    Word begin = segment * span, end = begin + span < inner ? begin + span : inner;         \
    T *to = (T *)((Word *)sums + sums_at) + (unsigned long long)blockIdx.z * rows * columns;

#if PART == DIRECT

extern "C" __global__ void product_direct(OPERANDS, Word to_row, Word to_column, Word sums_at) {
    BEGIN
    Word own = threadIdx.x, first_row = blockIdx.y * ROWS;
#ifdef ALONG
    __shared__ T parts[GROUP];
    Word first_column = blockIdx.x * COLUMNS, apart = 1, offset = own, step = GROUP;
#else
    Word first_column = blockIdx.x * GROUP * COLUMNS + own, apart = GROUP, offset = 0, step = 1;
#endif
    for (Word i = 0; i < ROWS; ++i)
        for (Word j = 0; j < COLUMNS; ++j) {
            Word row = first_row + i, column = first_column + j * apart;
            bool exists = row < rows && column < columns;
            T sum = zero();
            if (exists) {
#ifdef PAIRED
                Word line = from_left + column * left_row;
#else
                Word line = from_left + row * left_row;
#endif
                for (Word k = begin + offset; k < end; k += step)
                    sum = add_product(sum, load(left, line + k * left_inner),
                                      load(right, from_right + column * right_column + k * right_inner));
            }
#ifdef ALONG
            parts[own] = sum;
            __syncthreads();
            for (Word half_size = GROUP / 2; half_size > 0; half_size /= 2) {
                if (own < half_size) parts[own] = add(parts[own], parts[own + half_size]);
                __syncthreads();
            }
            if (exists && own == 0) to[row * to_row + column * to_column] = parts[0];
            __syncthreads();
#else
            if (exists) to[row * to_row + column * to_column] = sum;
#endif
        }
}

#elif PART == SHARED

extern "C" __global__ void product_shared(OPERANDS, Word sums_at) {
    BEGIN
    __shared__ T of_left[DEPTH][64];
    __shared__ T of_right[DEPTH][64];
    Word own = threadIdx.x, x = own % 16, y = own / 16;
    Word first_row = blockIdx.y * 64, first_column = blockIdx.x * 64;
    T kept[4][4];
#pragma unroll
    for (Word i = 0; i < 4; ++i)
#pragma unroll
        for (Word j = 0; j < 4; ++j) kept[i][j] = zero();
    for (Word k = begin; k < end; k += DEPTH) {
#pragma unroll
        for (Word i = 0; i < DEPTH / 4; ++i) {
            Word number = i * 256 + own;
            Word line = ROWS_FIRST ? number % 64 : number / DEPTH;
            Word deep = ROWS_FIRST ? number / 64 : number % DEPTH;
            bool exists = first_row + line < rows && k + deep < end;
            Word at = from_left + (first_row + line) * left_row + (k + deep) * left_inner;
            of_left[deep][line] = exists ? load(left, at) : zero();
            line = COLUMNS_FIRST ? number % 64 : number / DEPTH;
            deep = COLUMNS_FIRST ? number / 64 : number % DEPTH;
            exists = first_column + line < columns && k + deep < end;
            at = from_right + (first_column + line) * right_column + (k + deep) * right_inner;
            of_right[deep][line] = exists ? load(right, at) : zero();
        }
        __syncthreads();
#pragma unroll
        for (Word deep = 0; deep < DEPTH; ++deep)
#pragma unroll
            for (Word i = 0; i < 4; ++i)
#pragma unroll
                for (Word j = 0; j < 4; ++j)
                    kept[i][j] = add_product(kept[i][j], of_left[deep][y + 16 * i],
                                             of_right[deep][x + 16 * j]);
        __syncthreads();
    }
#pragma unroll
    for (Word i = 0; i < 4; ++i)
#pragma unroll
        for (Word j = 0; j < 4; ++j) {
            Word row = first_row + y + 16 * i, column = first_column + x + 16 * j;
            if (row < rows && column < columns) to[row * columns + column] = kept[i][j];
        }
}

#else

extern "C" __global__ void product_finish(
    const T *sums, Element *made, Word count, Word segments, Word sums_at, Word made_at) {
    Word i = (blockIdx.x + blockIdx.y * gridDim.x) * blockDim.x + threadIdx.x;
    // A thread makes a word, or an element that has more than one.
    Word each = sizeof(Element) < 4 ? 4 / sizeof(Element) : 1;
    const T *from = (const T *)((const Word *)sums + sums_at);
    Element *to = (Element *)((Word *)made + made_at);
    for (Word n = i * each; n < (i + 1) * each && n < count; ++n) {
        T sum = zero();
        for (Word s = 0; s < segments; ++s) sum = add(sum, from[(unsigned long long)s * count + n]);
        to[n] = encoded(sum);
    }
}

#endif
