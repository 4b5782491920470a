// Arrays of float32 that are read four at a time: QUADS(slot, Block, name, load) declares one, and a
// function that returns quad `at`. QUADS_STORED declares also a function that stores one. FLOATS
// and FLOATS_STORED have single numbers, and FLOATS_WRITTEN numbers that are only stored.
//
//   TEXELS   through texel buffers, which CPU drivers read several times as fast; else storage buffers

#ifdef TEXELS
#define QUADS(slot, Block, name, load)                                                \
    layout(binding = slot, rgba32f) uniform readonly imageBuffer name;                \
    vec4 load(uint at) { return imageLoad(name, int(at)); }
#define QUADS_STORED(slot, Block, name, load, store)                                  \
    layout(binding = slot, rgba32f) uniform imageBuffer name;                         \
    vec4 load(uint at) { return imageLoad(name, int(at)); }                           \
    void store(uint at, vec4 four) { imageStore(name, int(at), four); }
#define FLOATS(slot, Block, name, load)                                               \
    layout(binding = slot, r32f) uniform readonly imageBuffer name;                   \
    float load(uint at) { return imageLoad(name, int(at)).x; }
#define FLOATS_STORED(slot, Block, name, load, store)                                 \
    layout(binding = slot, r32f) uniform imageBuffer name;                            \
    float load(uint at) { return imageLoad(name, int(at)).x; }                        \
    void store(uint at, float one) { imageStore(name, int(at), vec4(one)); }
#define FLOATS_WRITTEN(slot, Block, name, store)                                      \
    layout(binding = slot, r32f) uniform writeonly imageBuffer name;                  \
    void store(uint at, float one) { imageStore(name, int(at), vec4(one)); }
#else
#define QUADS(slot, Block, name, load)                                                \
    layout(binding = slot) readonly buffer Block { vec4 name[]; };                    \
    vec4 load(uint at) { return name[at]; }
#define QUADS_STORED(slot, Block, name, load, store)                                  \
    layout(binding = slot) buffer Block { vec4 name[]; };                             \
    vec4 load(uint at) { return name[at]; }                                           \
    void store(uint at, vec4 four) { name[at] = four; }
#define FLOATS(slot, Block, name, load)                                               \
    layout(binding = slot) readonly buffer Block { float name[]; };                   \
    float load(uint at) { return name[at]; }
#define FLOATS_STORED(slot, Block, name, load, store)                                 \
    layout(binding = slot) buffer Block { float name[]; };                            \
    float load(uint at) { return name[at]; }                                          \
    void store(uint at, float one) { name[at] = one; }
#define FLOATS_WRITTEN(slot, Block, name, store)                                      \
    layout(binding = slot) writeonly buffer Block { float name[]; };                  \
    void store(uint at, float one) { name[at] = one; }
#endif
