// A vector of weights in its file layout. VECTOR(slot, Block, words, fetch) declares its words, and a
// function that returns element `at` of the vector that begins at byte `first`, which is even.
//
// VECTOR_OF does the same for one of several kinds in a shader.
//
//   KIND   KIND_F32, KIND_F16 or KIND_BF16

#define KIND_F32 ELEMENT_F32
#define KIND_F16 ELEMENT_F16
#define KIND_BF16 ELEMENT_BF16

// A file guarantees only 2-byte alignment, so an element may straddle two words.
#define ELEMENT_F32(words, first, at)                                                 \
    uint word = first / 4u + at;                                                      \
    uint bits = words[word];                                                          \
    if (first % 4u != 0u) bits = bits >> 16 | words[word + 1u] << 16;                 \
    return uintBitsToFloat(bits);
#define ELEMENT_F16(words, first, at)                                                 \
    uint half_word = first / 2u + at;                                                 \
    vec2 pair = unpackHalf2x16(words[half_word / 2u]);                                \
    return half_word % 2u == 0u ? pair.x : pair.y;
#define ELEMENT_BF16(words, first, at)                                                \
    uint half_word = first / 2u + at;                                                 \
    uint bits = words[half_word / 2u];                                                \
    return uintBitsToFloat(half_word % 2u == 0u ? bits << 16 : bits & 0xFFFF0000u);

#define VECTOR_OF(element, slot, Block, words, fetch)                                 \
    layout(binding = slot) readonly buffer Block { uint words[]; };                   \
    float fetch(uint first, uint at) { element(words, first, at) }
#define VECTOR(slot, Block, words, fetch) VECTOR_OF(KIND, slot, Block, words, fetch)
