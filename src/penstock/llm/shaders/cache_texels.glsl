// The planes of the KV cache as texel buffers, at bindings 1 and 2: see cache.glsl for HALVES and BYTES.
//
//   QUADS       quads of elements in a texel: with HALVES or BYTES 2, else 1
//   TEXELS      texels of a head
//   ROW_TEXELS  texels of a row

#if defined(BYTES)
layout(binding = 1, rg32ui) uniform readonly uimageBuffer keys;
layout(binding = 2, rg32ui) uniform readonly uimageBuffer values;
#elif defined(HALVES)
layout(binding = 1, rgba32ui) uniform readonly uimageBuffer keys;
layout(binding = 2, rgba32ui) uniform readonly uimageBuffer values;
#else
layout(binding = 1, rgba32f) uniform readonly imageBuffer keys;
layout(binding = 2, rgba32f) uniform readonly imageBuffer values;
#endif

#define TEXELS (HEAD_SIZE / (4 * QUADS))
#ifdef BYTES
#define ROW_TEXELS (ROW_WORDS / 2)

vec4 signed_bytes(uint word) {
    int bits = int(word);
    return vec4(ivec4(bits << 24, bits << 16, bits << 8, bits) >> 24);
}

// Where the factors of key head `key_head` begin in a row, in words.
uint factors_of(uint key_head) { return uint(KV_HEADS * HEAD_SIZE / 4) + key_head * uint(SCALE_WORDS); }

// The factor of block `block`, whose word is in the texel that was loaded.
float factor_of(uvec2 texel, uint word, uint block) {
    vec2 both = unpackHalf2x16(word % 2u == 0u ? texel.x : texel.y);
    return block % 2u == 0u ? both.x : both.y;
}
#else
#define ROW_TEXELS (KV_HEADS * TEXELS)
#endif
