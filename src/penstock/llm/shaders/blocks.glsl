// The memory layout of weights in GGUF files, and their decoding to float32: a section for each KIND.
//
// A row is a sequence of units: columns that are decoded together, 32 to 128 depending on the layout
// (for F32, F16 and BF16 4 * STEPS, where the includer chooses STEPS). A unit is decoded in STEPS
// steps, in order; each yields QUADS times four consecutive weights, those of the columns from
//     unit * UNIT + 4 * step + quad * APART
// on. The Head of a unit is what its steps share: scales, minima, and how far they have read.
//
// The includer defines, before the #include:
//   KIND      one of the numbers below
//   ALIGNED   1 if rows and blocks begin at multiples of 4 bytes, 0 if at multiples of 2
//   STEPS     for F32, F16 and BF16 (default: 8)
//   uint fetch(uint source, uint at)      word `at` of memory `source`
// and calls:
//   Head read_head(uint source, uint row, uint unit)      `row` is the byte where the row begins
//   void read_step(uint source, inout Head head, uint step, out vec4 weights[QUADS])
//
// With FACTORED, read_step yields weights without scale and offset, and the sum over a unit of its
// weights times x, from `dots`, those of the weights as yielded, and `sums`, those of x, is
//   float factored(Head head, float dots[QUADS], float sums[QUADS])
// where element i is that of quad i of all steps. For all kinds but F32, F16, BF16 and Q6_K.
//
// Otherwise products and sums are `precise`, so that each weight has exactly the value that the reference
// decoder (gguf, in Python) gives it: no fused multiply-add, no other order.

#define F32 0
#define F16 1
#define BF16 2
#define Q8_0 3
#define Q4_0 4
#define Q4_1 5
#define Q5_0 6
#define Q5_1 7
#define Q4_K 8
#define Q5_K 9
#define Q6_K 10

// Consecutive words from any even byte on. If they straddle words of memory, each word of memory is
// still read only once.
struct Run { uint next; uint held; bool straddles; };

Run run_from(uint source, uint at) {
#if ALIGNED
    return Run(at >> 2, 0u, false);
#else
    return Run((at >> 2) + 1, fetch(source, at >> 2), (at & 2u) != 0u);
#endif
}

uint next_word(uint source, inout Run run) {
    uint fresh = fetch(source, run.next++);
#if ALIGNED
    return fresh;
#else
    uint word = run.straddles ? (run.held >> 16) | (fresh << 16) : run.held;
    run.held = fresh;
    return word;
#endif
}

uint word_at(uint source, uint at) {
    Run run = run_from(source, at);
    return next_word(source, run);
}

float half_at(uint source, uint at) {
    uint word = fetch(source, at >> 2);
    return unpackHalf2x16((at & 2u) == 0u ? word : word >> 16).x;
}

// Converts to float through int: one instruction on all devices, which from uint is not.

vec4 unsigned_bytes(uint word) {
    return vec4(ivec4(word & 0xFFu, (word >> 8) & 0xFFu, (word >> 16) & 0xFFu, word >> 24));
}

vec4 signed_bytes(uint word) {
    int bits = int(word);
    return vec4(ivec4(bits << 24 >> 24, bits << 16 >> 24, bits << 8 >> 24, bits >> 24));
}

// The low and the high nibbles of four bytes.
#define LOW(word) ((word) & 0x0F0F0F0Fu)
#define HIGH(word) (((word) >> 4) & 0x0F0F0F0Fu)

// Spreads four consecutive bits, one to bit 4 of each byte.
uint fifth_bits(uint bits) {
    return ((bits & 1u) << 4) | ((bits & 2u) << 11) | ((bits & 4u) << 18) | ((bits & 8u) << 25);
}

#if KIND == F32 || KIND == F16 || KIND == BF16  // plain numbers

#ifndef STEPS
#define STEPS 8
#endif
#define UNIT (4 * STEPS)
#define QUADS 1
#define APART 0
#if KIND == F32
#define UNIT_BYTES (4 * UNIT)
#else
#define UNIT_BYTES (2 * UNIT)
#endif

struct Head { Run run; };

Head read_head(uint source, uint row, uint unit) {
    return Head(run_from(source, row + unit * UNIT_BYTES));
}

void read_step(uint source, inout Head head, uint step, out vec4 weights[QUADS]) {
    uint a = next_word(source, head.run);
    uint b = next_word(source, head.run);
#if KIND == F32
    uint c = next_word(source, head.run);
    uint d = next_word(source, head.run);
    weights[0] = uintBitsToFloat(uvec4(a, b, c, d));
#elif KIND == F16
    weights[0] = vec4(unpackHalf2x16(a), unpackHalf2x16(b));
#else
    weights[0] = uintBitsToFloat(uvec4(a << 16, a & 0xFFFF0000u, b << 16, b & 0xFFFF0000u));
#endif
}

// A single column, for the last columns that do not fill a unit.
float read_one(uint source, uint row, uint column) {
#if KIND == F32
    return uintBitsToFloat(word_at(source, row + 4 * column));
#elif KIND == F16
    return half_at(source, row + 2 * column);
#else
    uint at = row + 2 * column;
    uint word = fetch(source, at >> 2);
    return uintBitsToFloat((at & 2u) == 0u ? word << 16 : word & 0xFFFF0000u);
#endif
}

#elif KIND == Q8_0  // scale; 32 signed bytes

#define UNIT 32
#define STEPS 8
#define QUADS 1
#define APART 0

struct Head { Run run; float scale; };

Head read_head(uint source, uint row, uint unit) {
    uint at = row + unit * 34;
    return Head(run_from(source, at + 2), half_at(source, at));
}

void read_step(uint source, inout Head head, uint step, out vec4 weights[QUADS]) {
#ifdef FACTORED
    weights[0] = signed_bytes(next_word(source, head.run));
#else
    weights[0] = signed_bytes(next_word(source, head.run)) * head.scale;
#endif
}

#ifdef FACTORED
float factored(Head head, float dots[QUADS], float sums[QUADS]) { return head.scale * dots[0]; }
#endif

// Four bits each, or five: the low nibbles of 16 bytes, then the high ones; bit i of a word is the
// fifth of column i.

#elif KIND == Q4_0 || KIND == Q5_0  // scale; [fifth bits]; nibbles: from -8, or -16, on

#define UNIT 32
#define STEPS 4
#define QUADS 2
#define APART 16
#if KIND == Q4_0
#define MIDDLE 8.0
#else
#define MIDDLE 16.0
#endif

struct Head { Run run; float scale; uint fifth; };

Head read_head(uint source, uint row, uint unit) {
#if KIND == Q4_0
    uint at = row + unit * 18;
    return Head(run_from(source, at + 2), half_at(source, at), 0u);
#else
    uint at = row + unit * 22;
    Run run = run_from(source, at + 2);
    uint fifth = next_word(source, run);
    return Head(run, half_at(source, at), fifth);
#endif
}

void read_step(uint source, inout Head head, uint step, out vec4 weights[QUADS]) {
    uint word = next_word(source, head.run);
    uint low = LOW(word), high = HIGH(word);
#if KIND == Q5_0
    uint fifth = head.fifth >> (4 * step);
    low |= fifth_bits(fifth);
    high |= fifth_bits(fifth >> 16);
#endif
#ifdef FACTORED
    weights[0] = unsigned_bytes(low);
    weights[1] = unsigned_bytes(high);
#else
    weights[0] = (unsigned_bytes(low) - MIDDLE) * head.scale;
    weights[1] = (unsigned_bytes(high) - MIDDLE) * head.scale;
#endif
}

#ifdef FACTORED
float factored(Head head, float dots[QUADS], float sums[QUADS]) {
    return head.scale * (dots[0] + dots[1] - MIDDLE * (sums[0] + sums[1]));
}
#endif

#elif KIND == Q4_1 || KIND == Q5_1  // scale; minimum; [fifth bits]; nibbles

#define UNIT 32
#define STEPS 4
#define QUADS 2
#define APART 16

struct Head { Run run; vec2 scale_and_minimum; uint fifth; };

Head read_head(uint source, uint row, uint unit) {
#if KIND == Q4_1
    Run run = run_from(source, row + unit * 20);
    vec2 both = unpackHalf2x16(next_word(source, run));
    return Head(run, both, 0u);
#else
    Run run = run_from(source, row + unit * 24);
    vec2 both = unpackHalf2x16(next_word(source, run));
    uint fifth = next_word(source, run);
    return Head(run, both, fifth);
#endif
}

void read_step(uint source, inout Head head, uint step, out vec4 weights[QUADS]) {
    uint word = next_word(source, head.run);
    uint low = LOW(word), high = HIGH(word);
#if KIND == Q5_1
    uint fifth = head.fifth >> (4 * step);
    low |= fifth_bits(fifth);
    high |= fifth_bits(fifth >> 16);
#endif
#ifdef FACTORED
    weights[0] = unsigned_bytes(low);
    weights[1] = unsigned_bytes(high);
#else
    precise vec4 first = unsigned_bytes(low) * head.scale_and_minimum.x;
    precise vec4 second = unsigned_bytes(high) * head.scale_and_minimum.x;
    first += head.scale_and_minimum.y;
    second += head.scale_and_minimum.y;
    weights[0] = first;
    weights[1] = second;
#endif
}

#ifdef FACTORED
float factored(Head head, float dots[QUADS], float sums[QUADS]) {
    return dot(head.scale_and_minimum, vec2(dots[0] + dots[1], sums[0] + sums[1]));
}
#endif

// Blocks of 256: scale and minimum; eight groups of 32 columns, each with a 6-bit scale and a
// 6-bit minimum to be multiplied by them, packed in three words (the bytes of the first: scales
// 0–3, and above them bits 4–5 of scales 4–7; of the second the same of the minima; of the third
// bits 0–3 of scales 4–7, and above them those of the minima); for Q5_K 32 bytes of fifth bits,
// bit i of each for group i; nibbles, the low ones of 32 bytes for one group, the high ones for the
// next. A unit is two groups.
#elif KIND == Q4_K || KIND == Q5_K

#define UNIT 64
#define STEPS 8
#define QUADS 2
#define APART 32

struct Head {
    Run run;
    vec2 scales, minima;
#if KIND == Q5_K
    Run fifth;
    uint group;
#endif
};

Head read_head(uint source, uint row, uint unit) {
    uint number = unit & 3u;
#if KIND == Q4_K
    uint at = row + (unit >> 2) * 144, nibbles = at + 16 + 32 * number;
#else
    uint at = row + (unit >> 2) * 176, nibbles = at + 48 + 32 * number;
#endif
    Run run = run_from(source, at);
    vec2 both = unpackHalf2x16(next_word(source, run));
    uint scales = next_word(source, run);
    uint minima = next_word(source, run);
    uint rest = next_word(source, run);
    bool later = number >= 2u;
    scales = later ? LOW(rest) | ((scales >> 2) & 0x30303030u) : scales & 0x3F3F3F3Fu;
    minima = later ? HIGH(rest) | ((minima >> 2) & 0x30303030u) : minima & 0x3F3F3F3Fu;
    uint shift = (number & 1u) << 4;
    scales >>= shift;
    minima >>= shift;
    Head head;
    head.run = run_from(source, nibbles);
    head.scales = both.x * vec2(ivec2(scales & 0xFFu, (scales >> 8) & 0xFFu));
    head.minima = both.y * vec2(ivec2(minima & 0xFFu, (minima >> 8) & 0xFFu));
#if KIND == Q5_K
    head.fifth = run_from(source, at + 16);
    head.group = 2 * number;
#endif
    return head;
}

void read_step(uint source, inout Head head, uint step, out vec4 weights[QUADS]) {
    uint word = next_word(source, head.run);
    uint low = LOW(word), high = HIGH(word);
#if KIND == Q5_K
    uint fifth = next_word(source, head.fifth) >> head.group;
    low |= (fifth & 0x01010101u) << 4;
    high |= (fifth & 0x02020202u) << 3;
#endif
#ifdef FACTORED
    weights[0] = unsigned_bytes(low);
    weights[1] = unsigned_bytes(high);
#else
    precise vec4 first = unsigned_bytes(low) * head.scales.x;
    precise vec4 second = unsigned_bytes(high) * head.scales.y;
    first -= head.minima.x;
    second -= head.minima.y;
    weights[0] = first;
    weights[1] = second;
#endif
}

#ifdef FACTORED
float factored(Head head, float dots[QUADS], float sums[QUADS]) {
    return dot(head.scales, vec2(dots[0], dots[1])) - dot(head.minima, vec2(sums[0], sums[1]));
}
#endif

// Blocks of 256: 128 bytes of nibbles; 64 bytes with two more bits for each weight; a signed byte
// for each 16 columns to be multiplied by the scale; the scale. A unit is half a block: the low
// nibbles of 32 bytes are its first 32 columns, those of the next 32 bytes the second, then the
// high nibbles of both; of the two further bits the lowest are those of the first 32 columns.
#elif KIND == Q6_K

#define UNIT 128
#define STEPS 8
#define QUADS 4
#define APART 32

struct Head { Run early, late, further; uint scales[2]; float scale; };

Head read_head(uint source, uint row, uint unit) {
    uint at = row + (unit >> 1) * 210, number = unit & 1u;
    Run run = run_from(source, at + 192 + 8 * number);
    Head head;
    head.scales[0] = next_word(source, run);
    head.scales[1] = next_word(source, run);
    head.scale = half_at(source, at + 208);
    head.early = run_from(source, at + 64 * number);
    head.late = run_from(source, at + 64 * number + 32);
    head.further = run_from(source, at + 128 + 32 * number);
    return head;
}

void read_step(uint source, inout Head head, uint step, out vec4 weights[QUADS]) {
    uint early = next_word(source, head.early);
    uint late = next_word(source, head.late);
    uint further = next_word(source, head.further);
    int shift = step < 4u ? 24 : 16;  // the first 16 of each 32 columns, or the others
    int low = int(head.scales[0]) << (shift - 16), high = int(head.scales[1]) << (shift - 16);
    vec4 scales = head.scale * vec4(ivec4(low << 16, low, high << 16, high) >> 24);
    weights[0] = (unsigned_bytes(LOW(early) | ((further << 4) & 0x30303030u)) - 32.0) * scales.x;
    weights[1] = (unsigned_bytes(LOW(late) | ((further << 2) & 0x30303030u)) - 32.0) * scales.y;
    weights[2] = (unsigned_bytes(HIGH(early) | (further & 0x30303030u)) - 32.0) * scales.z;
    weights[3] = (unsigned_bytes(HIGH(late) | ((further >> 2) & 0x30303030u)) - 32.0) * scales.w;
}

#endif
