// A vector of weights in its file layout. VECTOR(slot, Block, words, fetch) declares its words, and a
// function that returns element `at` of the vector that begins at byte `first`, which is even.
//
//   KIND   KIND_F32, KIND_F16 or KIND_BF16

#define KIND_F32 0
#define KIND_F16 1
#define KIND_BF16 2

#if KIND == KIND_F32
// A file guarantees only 2-byte alignment, so an element may straddle two words.
#define ELEMENT(words, first, at)                                                     \
    uint word = first / 4u + at;                                                      \
    uint bits = words[word];                                                          \
    if (first % 4u != 0u) bits = bits >> 16 | words[word + 1u] << 16;                 \
    return uintBitsToFloat(bits);
#elif KIND == KIND_F16
#define ELEMENT(words, first, at)                                                     \
    uint half_word = first / 2u + at;                                                 \
    vec2 pair = unpackHalf2x16(words[half_word / 2u]);                                \
    return half_word % 2u == 0u ? pair.x : pair.y;
#else
#define ELEMENT(words, first, at)                                                     \
    uint half_word = first / 2u + at;                                                 \
    uint bits = words[half_word / 2u];                                                \
    return uintBitsToFloat(half_word % 2u == 0u ? bits << 16 : bits & 0xFFFF0000u);
#endif

#define VECTOR(slot, Block, words, fetch)                                             \
    layout(binding = slot) readonly buffer Block { uint words[]; };                   \
    float fetch(uint first, uint at) { ELEMENT(words, first, at) }
