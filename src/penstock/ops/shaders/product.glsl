// The numbers of matrix products: how elements are read, multiplied and added, by KIND.
//
//   KIND       what sums are: F32, F64, C64 and C128 as they are called; U32 and U64, integers that
//              wrap, whatever their sign
//   INT64      the device has 64-bit integers; otherwise those are two words
//
// T is a sum. SIZE is its bytes, and SAME the elements in 16 bytes.

#extension GL_EXT_control_flow_attributes : require
#if KIND == 3 && defined(INT64)
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
#endif

#define F32 0
#define U32 1
#define F64 2
#define U64 3
#define C64 4
#define C128 5

struct Word { uint bits; };

#if KIND == F32
#define T float
#define SIZE 4
#elif KIND == U32
#define T uint
#define SIZE 4
#elif KIND == F64
#define T double
#define SIZE 8
#elif KIND == U64 && defined(INT64)
#define T uint64_t
#define SIZE 8
#elif KIND == U64
#define T uvec2
#define SIZE 8
#elif KIND == C64
#define T vec2
#define SIZE 8
#else
#define T dvec2
#define SIZE 16
#endif
#define SAME (16 / SIZE)

// Codes of dtypes, as in ops/elements.py.
#define BOOL 0
#define INT8 1
#define UINT8 2
#define INT16 3
#define UINT16 4
#define FLOAT16 9
#define BFLOAT16 10

layout(constant_id = 1) const int dtype = 11;  // of the elements in memory

uint element_size() {
    if (KIND == F32) return dtype == FLOAT16 || dtype == BFLOAT16 ? 2u : 4u;
    if (KIND == U32) return dtype <= UINT8 ? 1u : dtype <= UINT16 ? 2u : 4u;
    return SIZE;
}

// The number whose bits are in the first words of `raw`.
T number_of(uvec4 raw) {
#if KIND == F32
    return uintBitsToFloat(raw.x);
#elif KIND == U32
    return raw.x;
#elif KIND == F64
    return packDouble2x32(raw.xy);
#elif KIND == U64 && defined(INT64)
    return packUint2x32(raw.xy);
#elif KIND == U64
    return raw.xy;
#elif KIND == C64
    return uintBitsToFloat(raw.xy);
#else
    return dvec2(packDouble2x32(raw.xy), packDouble2x32(raw.zw));
#endif
}

uvec4 bits_of(T number) {
#if KIND == F32
    return uvec4(floatBitsToUint(number), 0u, 0u, 0u);
#elif KIND == U32
    return uvec4(number, 0u, 0u, 0u);
#elif KIND == F64
    return uvec4(unpackDouble2x32(number), 0u, 0u);
#elif KIND == U64 && defined(INT64)
    return uvec4(unpackUint2x32(number), 0u, 0u);
#elif KIND == U64
    return uvec4(number, 0u, 0u);
#elif KIND == C64
    return uvec4(floatBitsToUint(number), 0u, 0u);
#else
    return uvec4(unpackDouble2x32(number.x), unpackDouble2x32(number.y));
#endif
}

T add(T x, T y) {
#if KIND == U64 && !defined(INT64)
    uint carry;
    uint low = uaddCarry(x.x, y.x, carry);
    return uvec2(low, x.y + y.y + carry);
#else
    return x + y;
#endif
}

// sum + x * y
T add_product(T sum, T x, T y) {
#if KIND == U64 && !defined(INT64)
    uint high, low;
    umulExtended(x.x, y.x, high, low);
    return add(sum, uvec2(low, high + x.x * y.y + x.y * y.x));
#elif KIND == C64 || KIND == C128
    return sum + T(x.x * y.x - x.y * y.y, x.x * y.y + x.y * y.x);
#else
    return sum + x * y;
#endif
}

#if KIND == F32
// Exact for every number of 16 bits, on devices that flush subnormal numbers as well.
float float_of_half(uint bits) {
    uint sign = (bits & 0x8000u) << 16, rest = bits & 0x7FFFu;
    float small = float(rest) * uintBitsToFloat(0x33800000u);  // 2^-24
    uint magnitude = rest < 0x400u ? floatBitsToUint(small)
        : rest < 0x7C00u ? (rest << 13) + 0x38000000u : (rest << 13) + 0x70000000u;
    return uintBitsToFloat(sign | magnitude);
}

// The nearest number of 16 bits; of two, the even one.
uint half_of_float(float number) {
    uint bits = floatBitsToUint(number), sign = bits >> 16 & 0x8000u, rest = bits & 0x7FFFFFFFu;
    if (rest > 0x7F800000u) return sign | 0x7E00u;
    if (rest >= 0x47800000u) return sign | 0x7C00u;
    if (rest < 0x38800000u) {  // subnormal: in units of 2^-24
        float units = uintBitsToFloat(rest) * 16777216.0;
        return sign | uint(roundEven(units));
    }
    uint half_bits = (rest - 0x38000000u) >> 13, lost = rest & 0x1FFFu;
    return sign | (half_bits + (lost > 0x1000u || (lost == 0x1000u && (half_bits & 1u) != 0u) ? 1u : 0u));
}

uint bfloat_of_float(float number) {
    uint bits = floatBitsToUint(number);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return (bits >> 16) | 0x40u;
    return (bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16;
}
#endif

// The number of an element of `dtype`, whose bits are the low ones of `raw`.
T decoded(uvec4 raw) {
#if KIND == F32
    if (dtype == FLOAT16) return float_of_half(raw.x & 0xFFFFu);
    if (dtype == BFLOAT16) return uintBitsToFloat(raw.x << 16);
#elif KIND == U32
    if (dtype == BOOL) return (raw.x & 0xFFu) != 0u ? 1u : 0u;
    if (dtype == INT8) return uint(bitfieldExtract(int(raw.x), 0, 8));
    if (dtype == UINT8) return raw.x & 0xFFu;
    if (dtype == INT16) return uint(bitfieldExtract(int(raw.x), 0, 16));
    if (dtype == UINT16) return raw.x & 0xFFFFu;
#endif
    return number_of(raw);
}

// The element of `dtype` for a sum of at most 32 bits, in the low bits of a word.
#if SIZE == 4
uint encoded(T sum) {
#if KIND == F32
    if (dtype == FLOAT16) return half_of_float(sum);
    if (dtype == BFLOAT16) return bfloat_of_float(sum);
    return floatBitsToUint(sum);
#else
    if (dtype == BOOL) return sum != 0u ? 1u : 0u;
    if (dtype <= UINT8) return sum & 0xFFu;
    if (dtype <= UINT16) return sum & 0xFFFFu;
    return sum;
#endif
}
#endif

// Where elements are read from: words, through texels (TEXELS) or a storage buffer.
#ifdef TEXELS
#define SOURCE(number, name) layout(binding = number) uniform usamplerBuffer name
#define WORD(name, index) texelFetch(name, int(index)).x
#else
#define SOURCE(number, name) layout(binding = number) readonly buffer Source##number { Word name[]; }
#define WORD(name, index) name[index].bits
#endif

// The bits of the element at byte `at`.
#if SIZE == 4
#define RAW(name, at) uvec4(WORD(name, (at) >> 2) >> (((at) & (4u - element_size())) * 8u), 0u, 0u, 0u)
#elif SIZE == 8
#define RAW(name, at) uvec4(WORD(name, (at) >> 2), WORD(name, ((at) >> 2) + 1u), 0u, 0u)
#else
#define RAW(name, at) uvec4(WORD(name, (at) >> 2), WORD(name, ((at) >> 2) + 1u), \
                            WORD(name, ((at) >> 2) + 2u), WORD(name, ((at) >> 2) + 3u))
#endif

// Store a sum as sum `index` from word `first` on.
#if SIZE == 4
#define PUT(name, first, index, sum) { name[first + (index)].bits = bits_of(sum).x; }
#elif SIZE == 8
#define PUT(name, first, index, sum) { \
        uint to_word = first + 2u * (index); \
        uvec4 bits = bits_of(sum); \
        name[to_word].bits = bits.x; \
        name[to_word + 1u].bits = bits.y; }
#else
#define PUT(name, first, index, sum) { \
        uint to_word = first + 4u * (index); \
        uvec4 bits = bits_of(sum); \
        name[to_word].bits = bits.x; \
        name[to_word + 1u].bits = bits.y; \
        name[to_word + 2u].bits = bits.z; \
        name[to_word + 3u].bits = bits.w; }
#endif
