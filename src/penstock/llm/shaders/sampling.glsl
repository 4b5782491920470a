// Shared by the sampling kernels: the order of logits, their weights, and the working memory.
//
// Tokens are ordered by key, an unsigned integer in the order of the logits, and tokens of the same
// key by id, the lower first. Top-k, top-p and min-p each keep a prefix of that order, and so do all
// three together. 0 and -0 count as equal. NaN, and nothing else, has the key 0; if there is one, the
// highest key of all is taken to be NOT_A_NUMBER, which no logit has, and the step samples NO_TOKEN.
//
// Weights are integers, UNITY for the highest logit, so that sums do not depend on the order of
// additions, and exponentials use exact operations only: the same logits, settings and seed give the
// same token on every device. Sums have 64 bits, in two words, the low one first.
//
//   logits      float32, VOCABULARY of them; loaded EACH at a time, two with WIDE
//   settings    uint32 or float32 bits by the names of `SETTINGS` in sampling_settings.py
//   control     uint32 by the names of `CONTROL`: PEAK, the key of the highest logit, FLOOR, a key
//               below which nothing is kept, and two cursors. A cursor is a search for the last token
//               that is kept: by number of tokens for top-k, by weight for top-p. Its words are
//                 DEPTH      0: not wanted; else 1 + the number of digits of the key found so far
//                 KEY        those digits, and 0 for the others
//                 LEFT       (2 words) how much of the tokens with these digits is kept
//                 ABOVE      (2 words) the weight of all tokens above these
//                 TIES       when all digits are found: how many tokens of that key are kept
//   histograms  REGIONS × COPIES × BINS × 3: number and weight of tokens, by digit. Workgroups count
//               in different copies to avoid contention; the copies are added up
//
// Ids are split into BLOCKS blocks of SPAN consecutive ids; an invocation takes a block.

#extension GL_EXT_control_flow_attributes : require
#ifdef WIDE
#extension GL_ARB_gpu_shader_int64 : require
#endif

#define BINS 2048u
#define DIGITS 3u
#define UNITY 0x40000000u

// Digits of a key, from the highest: 11, 11 and 10 bits.
uint shift_of(uint digit) { return digit == 0u ? 21u : digit == 1u ? 10u : 0u; }
uint bins_of(uint digit) { return digit == 2u ? 1024u : BINS; }
uint digit_of(uint key, uint digit) { return key >> shift_of(digit) & (bins_of(digit) - 1u); }
bool begins_with(uint key, uint digits, uint depth) {
    return depth == 0u || (key ^ digits) >> shift_of(depth - 1u) == 0u;
}

uint key_of(float logit) {
    uint bits = floatBitsToUint(logit);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return 0u;
    if ((bits & 0x7FFFFFFFu) == 0u) return 0x80000000u;
    return (bits & 0x80000000u) != 0u ? ~bits : bits | 0x80000000u;
}

float logit_of(uint key) {
    return uintBitsToFloat((key & 0x80000000u) != 0u ? key & 0x7FFFFFFFu : ~key);
}

// The distance of a token from the highest, in logits divided by the temperature: 0 or less.
float depth_of(uint key, uint peak, float inverse_temperature) {
    if (key == peak) return 0.0;
    if (key == 0u) return -1e30;
    precise float below = logit_of(key) - logit_of(peak);
    precise float scaled = below * inverse_temperature;
    return max(scaled, -1e30);
}

// UNITY * exp(depth), by additions and multiplications that round alike on every device.
uint weight_of(float depth) {
    precise float power = max(depth, -40.0) * 1.44269504;
    float whole = floor(power);
    precise float x = power - whole;
    precise float y = 2.1612938e-4 * x;
    y = (y + 1.2467839e-3) * x;
    y = (y + 9.6754525e-3) * x;
    y = (y + 5.548528e-2) * x;
    y = (y + 2.4022931e-1) * x;
    y = (y + 6.9314706e-1) * x;
    y = y + 1.0;
    uint scaled = uint(y * 1073741824.0);
    uint places = uint(-whole);
    return places > 30u ? 0u : scaled >> places;
}

uvec2 plus(uvec2 a, uvec2 b) {
    uint carry;
    uint low = uaddCarry(a.x, b.x, carry);
    return uvec2(low, a.y + b.y + carry);
}

uvec2 minus(uvec2 a, uvec2 b) { return uvec2(a.x - b.x, a.y - b.y - uint(a.x < b.x)); }
bool less(uvec2 a, uvec2 b) { return a.y < b.y || (a.y == b.y && a.x < b.x); }

uvec2 times(uint a, uint b) {
    uint high, low;
    umulExtended(a, b, high, low);
    return uvec2(low, high);
}

#ifdef WIDE
#define EACH 2u
struct Logits { uint64_t bits; };
#define LOGITS(slot)                                                                  \
    layout(binding = slot) readonly buffer Scores { Logits logits[]; };               \
    void load(uint at, out float found[2]) {                                          \
        vec2 both = uintBitsToFloat(unpackUint2x32(logits[at].bits));                 \
        found[0] = both.x;                                                            \
        found[1] = both.y;                                                            \
    }
#else
#define EACH 1u
#define LOGITS(slot)                                                                  \
    layout(binding = slot) readonly buffer Scores { float logits[]; };                \
    void load(uint at, out float found[1]) { found[0] = logits[at]; }
#endif

// for (EVERY_LOAD(at)) goes through the block of this invocation.
#define EVERY_LOAD(at)                                                                \
    uint at = gl_GlobalInvocationID.x * (SPAN / EACH),                                \
         at##_end = min(at + SPAN / EACH, VOCABULARY / EACH);                         \
    at < at##_end; ++at
