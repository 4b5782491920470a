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
//   ALIGNED   1 if rows and blocks begin at multiples of 4 bytes, 0 if at multiples of 2, or with MXFP4
//             at any byte
//   STEPS     for F32, F16 and BF16 (default: 8)
//   uint fetch(uint source, uint at)      word `at` of memory `source`
//   WIDE      for F32, F16, BF16, Q4_K and Q5_K: rows and blocks begin at multiples of 16 bytes, and
//             four words are read at a time. The calls of read_step must be unrolled: the compiler
//             must know which word of the four it takes.
//   uvec4 fetch_four(uint source, uint at)      with WIDE: the four words from 4 * `at` on
// and calls:
//   Head read_head(uint source, uint row, uint unit)      `row` is the byte where the row begins
//   void read_step(uint source, inout Head head, uint step, out vec4 weights[QUADS])
//
// With FACTORED, read_step yields weights without scale and offset, and the sum over a unit of its
// weights times x, from `dots`, those of the weights as yielded, and `sums`, those of x, is
//   float factored(Head head, float dots[DOTS_EACH], float sums[DOTS_EACH])
// where element i is that of quad i of all steps; with GROUPS 2, element i is that of quad i of the
// first half of the steps, and element QUADS + i that of the second half. For all kinds but F32, F16
// and BF16.
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
#define Q2_K 11
#define Q3_K 12
#define IQ4_NL 13
#define IQ4_XS 14
#define MXFP4 15

// Consecutive words from any even byte on, or with MXFP4 from any byte. If they straddle words of
// memory, each word of memory is still read only once. With WIDE they begin at a multiple of 16 bytes,
// and four are read at a time.
#ifdef WIDE

struct Run { uint next; uint taken; uvec4 held; };

Run run_from(uint source, uint at) { return Run(at >> 4, 0u, uvec4(0u)); }

uint next_word(uint source, inout Run run) {
    if ((run.taken & 3u) == 0u) run.held = fetch_four(source, run.next++);
    return run.held[run.taken++ & 3u];
}

#elif KIND == MXFP4

struct Run { uint next; uint held; uint shift; };

Run run_from(uint source, uint at) {
    return Run((at >> 2) + 1, fetch(source, at >> 2), 8 * (at & 3u));
}

uint next_word(uint source, inout Run run) {
    uint fresh = fetch(source, run.next++);
    uint word = (run.held >> run.shift) | (fresh << 1 << (31 - run.shift));
    run.held = fresh;
    return word;
}

#else

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

#endif

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

// A step of Q4_0, Q4_1, Q5_0 or Q5_1, without scale and offset: four or five bits each.
void read_bits(uint source, inout Run run, uint fifth, uint step, out vec4 bits[2]) {
    uint word = next_word(source, run);
    uint low = LOW(word), high = HIGH(word);
#if KIND == Q5_0 || KIND == Q5_1
    low |= fifth_bits(fifth >> (4 * step));
    high |= fifth_bits(fifth >> (4 * step + 16));
#endif
    bits[0] = unsigned_bytes(low);
    bits[1] = unsigned_bytes(high);
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
float factored(Head head, float dots[DOTS_EACH], float sums[DOTS_EACH]) { return head.scale * dots[0]; }
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
    read_bits(source, head.run, head.fifth, step, weights);
#ifndef FACTORED
    weights[0] = (weights[0] - MIDDLE) * head.scale;
    weights[1] = (weights[1] - MIDDLE) * head.scale;
#endif
}

#ifdef FACTORED
float factored(Head head, float dots[DOTS_EACH], float sums[DOTS_EACH]) {
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
    read_bits(source, head.run, head.fifth, step, weights);
#ifndef FACTORED
    precise vec4 first = weights[0] * head.scale_and_minimum.x;
    precise vec4 second = weights[1] * head.scale_and_minimum.x;
    first += head.scale_and_minimum.y;
    second += head.scale_and_minimum.y;
    weights[0] = first;
    weights[1] = second;
#endif
}

#ifdef FACTORED
float factored(Head head, float dots[DOTS_EACH], float sums[DOTS_EACH]) {
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
float factored(Head head, float dots[DOTS_EACH], float sums[DOTS_EACH]) {
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
#define GROUPS 2

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

// The scales of the four quads, for the first 16 of each 32 columns (group 0) or the others.
vec4 scales_of(Head head, uint group) {
    int shift = 8 - 8 * int(group);
    int low = int(head.scales[0]) << shift, high = int(head.scales[1]) << shift;
    return head.scale * vec4(ivec4(low << 16, low, high << 16, high) >> 24);
}

void read_step(uint source, inout Head head, uint step, out vec4 weights[QUADS]) {
    uint early = next_word(source, head.early);
    uint late = next_word(source, head.late);
    uint further = next_word(source, head.further);
    uvec4 nibbles = uvec4(LOW(early), LOW(late), HIGH(early), HIGH(late));
    uvec4 others = uvec4(further << 4, further << 2, further, further >> 2) & 0x30303030u;
    uvec4 bytes = nibbles | others;
#ifdef FACTORED
    weights[0] = unsigned_bytes(bytes.x);
    weights[1] = unsigned_bytes(bytes.y);
    weights[2] = unsigned_bytes(bytes.z);
    weights[3] = unsigned_bytes(bytes.w);
#else
    vec4 scales = scales_of(head, step >= 4u ? 1u : 0u);
    weights[0] = (unsigned_bytes(bytes.x) - 32.0) * scales.x;
    weights[1] = (unsigned_bytes(bytes.y) - 32.0) * scales.y;
    weights[2] = (unsigned_bytes(bytes.z) - 32.0) * scales.z;
    weights[3] = (unsigned_bytes(bytes.w) - 32.0) * scales.w;
#endif
}

#ifdef FACTORED
float factored(Head head, float dots[DOTS_EACH], float sums[DOTS_EACH]) {
    vec4 first = vec4(dots[0], dots[1], dots[2], dots[3]);
    vec4 second = vec4(dots[4], dots[5], dots[6], dots[7]);
    first -= 32.0 * vec4(sums[0], sums[1], sums[2], sums[3]);
    second -= 32.0 * vec4(sums[4], sums[5], sums[6], sums[7]);
    return dot(scales_of(head, 0u), first) + dot(scales_of(head, 1u), second);
}
#endif

// Blocks of 256: a byte for each 16 columns, whose nibbles are a scale (low) and a minimum (high), to be
// multiplied by the last two numbers; 64 bytes of two bits each; scale and minimum. A unit is half a
// block: of each of 32 bytes the lowest two bits are one of its first 32 columns, and so on.
#elif KIND == Q2_K

#define UNIT 128
#define STEPS 8
#define QUADS 4
#define APART 32
#define GROUPS 2

struct Head { Run run; uint scales[2]; vec2 scale_and_minimum; };

Head read_head(uint source, uint row, uint unit) {
    uint at = row + (unit >> 1) * 84, number = unit & 1u;
    Run run = run_from(source, at + 8 * number);
    Head head;
    head.scales[0] = next_word(source, run);
    head.scales[1] = next_word(source, run);
    head.scale_and_minimum = unpackHalf2x16(word_at(source, at + 80));
    head.run = run_from(source, at + 16 + 32 * number);
    return head;
}

// The nibbles of the four quads from bit `shift` of their bytes on, for the first 16 of each 32
// columns (group 0) or the others.
vec4 nibbles_of(Head head, uint group, uint shift) {
    shift += 8 * group;
    uint low = head.scales[0] >> shift, high = head.scales[1] >> shift;
    return vec4(ivec4(uvec4(low, low >> 16, high, high >> 16) & 15u));
}

vec4 scales_of(Head head, uint group) { return head.scale_and_minimum.x * nibbles_of(head, group, 0u); }
vec4 minima_of(Head head, uint group) { return head.scale_and_minimum.y * nibbles_of(head, group, 4u); }

uvec4 read_bits_of(uint source, inout Head head) {
    uint word = next_word(source, head.run);
    return uvec4(word, word >> 2, word >> 4, word >> 6) & 0x03030303u;
}

void read_step(uint source, inout Head head, uint step, out vec4 weights[QUADS]) {
    uvec4 bytes = read_bits_of(source, head);
#ifdef FACTORED
    weights[0] = unsigned_bytes(bytes.x);
    weights[1] = unsigned_bytes(bytes.y);
    weights[2] = unsigned_bytes(bytes.z);
    weights[3] = unsigned_bytes(bytes.w);
#else
    uint group = step >= 4u ? 1u : 0u;
    precise vec4 scales = scales_of(head, group), minima = minima_of(head, group);
    precise vec4 first = unsigned_bytes(bytes.x) * scales.x;
    precise vec4 second = unsigned_bytes(bytes.y) * scales.y;
    precise vec4 third = unsigned_bytes(bytes.z) * scales.z;
    precise vec4 fourth = unsigned_bytes(bytes.w) * scales.w;
    first -= minima.x;
    second -= minima.y;
    third -= minima.z;
    fourth -= minima.w;
    weights[0] = first;
    weights[1] = second;
    weights[2] = third;
    weights[3] = fourth;
#endif
}

#ifdef FACTORED
float factored(Head head, float dots[DOTS_EACH], float sums[DOTS_EACH]) {
    float scaled = dot(nibbles_of(head, 0u, 0u), vec4(dots[0], dots[1], dots[2], dots[3]))
        + dot(nibbles_of(head, 1u, 0u), vec4(dots[4], dots[5], dots[6], dots[7]));
    float below = dot(nibbles_of(head, 0u, 4u), vec4(sums[0], sums[1], sums[2], sums[3]))
        + dot(nibbles_of(head, 1u, 4u), vec4(sums[4], sums[5], sums[6], sums[7]));
    return head.scale_and_minimum.x * scaled - head.scale_and_minimum.y * below;
}
#endif

// Blocks of 256: 32 bytes of third bits, bit i of each for 32 columns; 64 bytes of two bits each; a
// 6-bit scale less 32 for each 16 columns, packed in three words (the nibbles of the first two: bits
// 0–3 of scales 0–7 and above them of 8–15; two bits each of the third: bits 4–5 of scales 0–3, 4–7,
// 8–11, 12–15); the scale that they are multiplied by. Weights are three bits less 4. A unit is half a
// block, as with Q2_K.
#elif KIND == Q3_K

#define UNIT 128
#define STEPS 8
#define QUADS 4
#define APART 32
#define GROUPS 2

struct Head { Run run, third; uint scales[2]; float scale; uint shift; };

Head read_head(uint source, uint row, uint unit) {
    uint at = row + (unit >> 1) * 110, number = unit & 1u;
    Run run = run_from(source, at + 96);
    uint first = next_word(source, run), second = next_word(source, run);
    uint further = next_word(source, run) >> (4 * number);
    Head head;
    head.shift = 4 * number;
    head.scales[0] = LOW(first >> head.shift) | ((further << 4) & 0x30303030u);
    head.scales[1] = LOW(second >> head.shift) | ((further << 2) & 0x30303030u);
    head.scale = half_at(source, at + 108);
    head.run = run_from(source, at + 32 + 32 * number);
    head.third = run_from(source, at);
    return head;
}

// The scales of the four quads, without that of the block, for the first 16 of each 32 columns
// (group 0) or the others.
vec4 whole_scales_of(Head head, uint group) {
    uint low = head.scales[0] >> (8 * group), high = head.scales[1] >> (8 * group);
    return vec4(ivec4(uvec4(low, low >> 16, high, high >> 16) & 63u) - 32);
}

uvec4 read_bits_of(uint source, inout Head head) {
    uint word = next_word(source, head.run);
    uint third = next_word(source, head.third) >> head.shift;
    return (uvec4(word, word >> 2, word >> 4, word >> 6) & 0x03030303u)
        | (uvec4(third << 2, third << 1, third, third >> 1) & 0x04040404u);
}

void read_step(uint source, inout Head head, uint step, out vec4 weights[QUADS]) {
    uvec4 bytes = read_bits_of(source, head);
#ifdef FACTORED
    weights[0] = unsigned_bytes(bytes.x);
    weights[1] = unsigned_bytes(bytes.y);
    weights[2] = unsigned_bytes(bytes.z);
    weights[3] = unsigned_bytes(bytes.w);
#else
    vec4 scales = head.scale * whole_scales_of(head, step >= 4u ? 1u : 0u);
    weights[0] = (unsigned_bytes(bytes.x) - 4.0) * scales.x;
    weights[1] = (unsigned_bytes(bytes.y) - 4.0) * scales.y;
    weights[2] = (unsigned_bytes(bytes.z) - 4.0) * scales.z;
    weights[3] = (unsigned_bytes(bytes.w) - 4.0) * scales.w;
#endif
}

#ifdef FACTORED
float factored(Head head, float dots[DOTS_EACH], float sums[DOTS_EACH]) {
    vec4 first = vec4(dots[0], dots[1], dots[2], dots[3]);
    vec4 second = vec4(dots[4], dots[5], dots[6], dots[7]);
    first -= 4.0 * vec4(sums[0], sums[1], sums[2], sums[3]);
    second -= 4.0 * vec4(sums[4], sums[5], sums[6], sums[7]);
    return head.scale * (dot(whole_scales_of(head, 0u), first) + dot(whole_scales_of(head, 1u), second));
}
#endif

// Four bits each that number one of 16 levels, in the order of Q4_0. IQ4_NL: scale; nibbles. IQ4_XS,
// blocks of 256: scale; bits 4–5 of eight 6-bit scales less 32, to be multiplied by it, one for each
// 32 columns; their bits 0–3; nibbles. MXFP4: exponent, a byte; nibbles.
#elif KIND == IQ4_NL || KIND == IQ4_XS || KIND == MXFP4

#define UNIT 32
#define STEPS 4
#define QUADS 2
#define APART 16

struct Head { Run run; float scale; };

Head read_head(uint source, uint row, uint unit) {
#if KIND == IQ4_NL
    uint at = row + unit * 18;
    return Head(run_from(source, at + 2), half_at(source, at));
#elif KIND == IQ4_XS
    uint at = row + (unit >> 3) * 136, number = unit & 7u;
    Run run = run_from(source, at);
    uint word = next_word(source, run);
    uint scale = (next_word(source, run) >> (4 * number)) & 15u;
    scale |= ((word >> (16 + 2 * number)) & 3u) << 4;
    return Head(
        run_from(source, at + 8 + 16 * number), unpackHalf2x16(word).x * float(int(scale) - 32));
#else
    // The levels are doubled, so this is half of 2 to the power of the byte less 127.
    uint at = row + unit * 17;
    uint exponent = (fetch(source, at >> 2) >> (8 * (at & 3u))) & 0xFFu;
    uint bits = exponent < 2u ? 0x00200000u << exponent : (exponent - 1) << 23;
    return Head(run_from(source, at + 1), uintBitsToFloat(bits));
#endif
}

#if KIND == MXFP4

// Levels 0, 1, 2, 3, 4, 6, 8, 12 by three bits, negative with the fourth: for four bytes at a time,
// each plus 12, from the bits of the magnitude.
uint levels_above(uint nibbles) {
    const uint ONES = 0x01010101u;
    uint a = nibbles & ONES, b = (nibbles >> 1) & ONES, c = (nibbles >> 2) & ONES;
    uint sign = ((nibbles >> 3) & ONES) * 31u;
    uint size = (a & ~c) | (((b & ~c) | (a & ~b & c)) << 1) | ((c & (a | ~b)) << 2) | ((b & c) << 3);
    return (size ^ sign) + 12u * ONES - sign;
}

vec4 levels(uint nibbles) { return unsigned_bytes(levels_above(nibbles)) - 12.0; }

#else

// Levels -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113: this polynomial is
// never further than 0.434 from them. An array would be looked up in memory.
vec4 levels(uint nibbles) {
    vec4 n = unsigned_bytes(nibbles);
    return roundEven((((1.58604e-3 * n + 3.10864e-2) * n - 1.37193) * n + 24.1738) * n - 126.567);
}

#endif

void read_step(uint source, inout Head head, uint step, out vec4 weights[QUADS]) {
    uint word = next_word(source, head.run);
    weights[0] = levels(LOW(word));
    weights[1] = levels(HIGH(word));
#ifndef FACTORED
    weights[0] *= head.scale;
    weights[1] *= head.scale;
#endif
}

#ifdef FACTORED
float factored(Head head, float dots[DOTS_EACH], float sums[DOTS_EACH]) {
    return head.scale * (dots[0] + dots[1]);
}
#endif

#endif

#ifndef GROUPS
#define GROUPS 1
#endif
