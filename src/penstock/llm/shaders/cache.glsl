// The KV cache of a layer: the planes `keys` and `values`. A plane has a row for each position, of
// KV_HEADS * HEAD_SIZE elements.
//
//   HALVES  elements are float16, two in a word, the first in the low half; else they are float32
//   WIDE    the device has 64-bit integers, and a load takes 8 bytes: on CPU drivers the cost of a
//           load does not depend on its size
//
// UNIT is the number of elements of a load. PLANE(slot, Block, name, load) declares a plane and a
// function that loads unit `at` of it.

#ifdef WIDE
#extension GL_ARB_gpu_shader_int64 : require
#define WORD uint64_t
#else
#define WORD uint
#endif

#if defined(HALVES) && defined(WIDE)
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

#define PLANE(slot, Block, name, load)                                                \
    layout(binding = slot) readonly buffer Block { Word name[]; };                    \
    void load(uint at, out float elements[UNIT]) {                                    \
        WORD bits = name[at].bits;                                                    \
        UNPACKED(bits, elements)                                                      \
    }

#define UNITS (HEAD_SIZE / UNIT)
#define ROW_UNITS (KV_HEADS * UNITS)
