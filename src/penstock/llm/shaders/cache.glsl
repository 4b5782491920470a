// The KV cache of a layer: the planes `keys` and `values`. A plane has a row for each position, of
// KV_HEADS * HEAD_SIZE elements.
//
//   HALVES  elements are float16, two in a word, the first in the low half
//   BYTES   elements are signed bytes, four in a word, times a float16 factor for each 32 of a head. A
//           row is the bytes of all heads, then SCALE_WORDS words of factors for each head, two in a
//           word, then padding: ROW_WORDS words, a multiple of four
//           neither: elements are float32
//   WIDE    the device has 64-bit integers, and a load takes 8 bytes: on CPU drivers the cost of a
//           load does not depend on its size
//
// UNIT is the number of elements of a load. PLANE(slot, Block, name, load) declares a plane and a
// function that loads unit `unit` of a head in a row.

#ifdef WIDE
#extension GL_ARB_gpu_shader_int64 : require
#define WORD uint64_t
#else
#define WORD uint
#endif

#if defined(BYTES) && defined(WIDE)
#define UNIT 8
#define UNPACKED(bits, out)                                                           \
    ivec2 both = ivec2(unpackUint2x32(bits));                                         \
    vec4 low = factor * vec4(ivec4(both.x << 24, both.x << 16, both.x << 8, both.x) >> 24); \
    vec4 high = factor * vec4(ivec4(both.y << 24, both.y << 16, both.y << 8, both.y) >> 24); \
    out[0] = low.x; out[1] = low.y; out[2] = low.z; out[3] = low.w;                   \
    out[4] = high.x; out[5] = high.y; out[6] = high.z; out[7] = high.w;
#elif defined(BYTES)
#define UNIT 4
#define UNPACKED(bits, out)                                                           \
    int four = int(bits);                                                             \
    vec4 found = factor * vec4(ivec4(four << 24, four << 16, four << 8, four) >> 24); \
    out[0] = found.x; out[1] = found.y; out[2] = found.z; out[3] = found.w;
#elif defined(HALVES) && defined(WIDE)
#define UNIT 4
#define UNPACKED(bits, out)                                                           \
    uvec2 both = unpackUint2x32(bits);                                                \
    vec2 low = unpackHalf2x16(both.x), high = unpackHalf2x16(both.y);                 \
    out[0] = low.x; out[1] = low.y; out[2] = high.x; out[3] = high.y;
#elif defined(HALVES)
#define UNIT 2
#define UNPACKED(bits, out)                                                           \
    vec2 both = unpackHalf2x16(bits);                                                 \
    out[0] = both.x; out[1] = both.y;
#elif defined(WIDE)
#define UNIT 2
#define UNPACKED(bits, out)                                                           \
    vec2 both = uintBitsToFloat(unpackUint2x32(bits));                                \
    out[0] = both.x; out[1] = both.y;
#else
#define UNIT 1
#define UNPACKED(bits, out) out[0] = uintBitsToFloat(bits);
#endif

// A struct leaves the dtype open, so that planes of either element type can be bound.
struct Word { WORD bits; };

#define UNITS (HEAD_SIZE / UNIT)

#ifdef BYTES

#ifdef WIDE
#define ROW_UNITS (ROW_WORDS / 2)
#define WORD_OF(name, at) unpackUint2x32(name[(at) / 2u].bits)[(at) % 2u]
#else
#define ROW_UNITS ROW_WORDS
#define WORD_OF(name, at) name[at].bits
#endif

#define PLANE(slot, Block, name, load)                                                \
    layout(binding = slot) readonly buffer Block { Word name[]; };                    \
    void load(uint row, uint head, uint unit, out float elements[UNIT]) {             \
        WORD bits = name[row * uint(ROW_UNITS) + head * uint(UNITS) + unit].bits;     \
        uint at = row * uint(ROW_WORDS) + uint(KV_HEADS * HEAD_SIZE / 4);             \
        at += head * uint(SCALE_WORDS) + unit * uint(UNIT) / 64u;                     \
        vec2 factors = unpackHalf2x16(WORD_OF(name, at));                             \
        float factor = unit * uint(UNIT) / 32u % 2u == 0u ? factors.x : factors.y;    \
        UNPACKED(bits, elements)                                                      \
    }

#else

#define ROW_UNITS (KV_HEADS * UNITS)

#define PLANE(slot, Block, name, load)                                                \
    layout(binding = slot) readonly buffer Block { Word name[]; };                    \
    void load(uint row, uint head, uint unit, out float elements[UNIT]) {             \
        WORD bits = name[row * uint(ROW_UNITS) + head * uint(UNITS) + unit].bits;     \
        UNPACKED(bits, elements)                                                      \
    }

#endif
