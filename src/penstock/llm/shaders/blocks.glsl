// The memory layout of weights in GGUF files, and their decoding to float32: a section for each KIND.
//
// A row is a sequence of units: columns that are decoded together, 32 to 128 depending on the layout
// (for F32, F16 and BF16 4 * STEPS, where the includer chooses STEPS). A unit is decoded in STEPS
// steps, in order; each yields QUADS times four consecutive weights, those of the columns from
//     unit * UNIT + 4 * step + quad * APART
// on. The Head of a unit is what its steps share: scales, minima, and how far they have read.
//
// The includer includes repeat.glsl and defines, before the #include:
//   KIND      one of the numbers below
//   ALIGNED   1 if rows and blocks begin at multiples of 4 bytes, 0 if at multiples of 2, or with MXFP4
//             at any byte
//   STEPS     for F32, F16 and BF16 (default: 8)
//   uint fetch(uint source, uint at)      word `at` of memory `source`
//   WIDE      four words are read at a time: 16 if rows begin at multiples of 16 bytes, and blocks do (or
//             for F32, F16 and BF16 units), else 1. The calls of read_step must be unrolled: the
//             compiler must know how many words were taken before. With 16 they may be in turns of a
//             loop, which take multiples of four words, with resume(head) at the beginning of each.
//   uvec4 fetch_four(uint source, uint at)      with WIDE: the four words from 4 * `at` on; any where
//             memory ends before
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
// Otherwise each weight has exactly the value that the reference decoder (gguf, in Python) gives it: no
// fused multiply-add, no other order.
//
// The sections of all kinds but F32, F16 and BF16 define how bits become bytes, and what those mean:
//   void read_packed(uint source, inout Head head, uint step, out uint bytes[QUADS])
//       as read_step: four weights in each word, a byte each
//   NUMBERS(bytes)      the four numbers in a word as vec4 (default: unsigned bytes)
//   vec2 factor_of(Head head, uint step, const uint quad)
//       a weight is (number - MIDDLE) * factor.x, or with MINIMA number * factor.x + factor.y. It is
//       the same for all steps of a half of a unit
//   MIDDLE    a whole number (default: none)
//   MINIMA    1, or 2 if there is a minimum for each 16 columns (default: 0)

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

// Consecutive words of memory, each read once; with WIDE four at a time.
#ifndef WIDE

struct Reader { uint next; };

Reader reader_at(uint source, uint at) { return Reader(at >> 2); }

uint read_word(uint source, inout Reader reader) { return fetch(source, reader.next++); }

#elif WIDE == 16

struct Reader { uint next; uint taken; uvec4 held; };

Reader reader_at(uint source, uint at) { return Reader(at >> 4, 0u, uvec4(0u)); }

uint read_word(uint source, inout Reader reader) {
    if ((reader.taken & 3u) == 0u) reader.held = fetch_four(source, reader.next++);
    return reader.held[reader.taken++ & 3u];
}

// Between turns of a loop, of which each takes a multiple of four: the compiler cannot know.
void resume(inout Reader reader) { reader.taken = 0u; }

#else

// The first word is any of the four of `fetched`: two steps move it, and those after it, to the front.
struct Reader { uint next; uint taken; uvec4 held, fetched; bvec4 by_two, by_one; };

Reader reader_at(uint source, uint at) {
    uint first = at >> 4;
    bvec4 by_two = bvec4((at & 8u) != 0u), by_one = bvec4((at & 4u) != 0u);
    return Reader(first + 1, 0u, uvec4(0u), fetch_four(source, first), by_two, by_one);
}

uint read_word(uint source, inout Reader reader) {
    if ((reader.taken & 3u) == 0u) {
        uvec4 early = reader.fetched, late = fetch_four(source, reader.next++);
        uvec4 moved = mix(early, uvec4(early.zw, late.xy), reader.by_two);
        uint after = reader.by_two.x ? late.z : late.x;
        reader.held = mix(moved, uvec4(moved.yzw, after), reader.by_one);
        reader.fetched = late;
    }
    return reader.held[reader.taken++ & 3u];
}

#endif

// Consecutive words from any byte that ALIGNED allows on.
//   Run run_from(uint source, uint at)
//   uint next_word(uint source, inout Run run)
// and, before the first word, what blocks may begin with, in the lowest bits:
//   uint next_half(inout Run run)      unless ALIGNED or MXFP4
//   uint next_byte(inout Run run)      for MXFP4, whose words follow one
#if ALIGNED

struct Run { Reader reader; };

Run run_from(uint source, uint at) { return Run(reader_at(source, at)); }

uint next_word(uint source, inout Run run) { return read_word(source, run.reader); }

#elif KIND == MXFP4

struct Run { Reader reader; uint held; uint shift; };

Run run_from(uint source, uint at) {
    Reader reader = reader_at(source, at);
    uint first = read_word(source, reader);
    return Run(reader, first, 8 * (at & 3u));
}

uint next_byte(inout Run run) {
    uint found = (run.held >> run.shift) & 0xFFu;
    run.shift += 8;
    return found;
}

uint next_word(uint source, inout Run run) {
    uint fresh = read_word(source, run.reader);
    uint word = (run.held >> 1 >> (run.shift - 1)) | (fresh << (32 - run.shift));
    run.held = fresh;
    return word;
}

#else

struct Run { Reader reader; uint held; bool straddles, after_half; };

Run run_from(uint source, uint at) {
    Reader reader = reader_at(source, at);
    uint first = read_word(source, reader);
    return Run(reader, first, (at & 2u) != 0u, false);
}

uint next_half(inout Run run) {
    run.after_half = true;
    return run.straddles ? run.held >> 16 : run.held;
}

uint next_word(uint source, inout Run run) {
    uint fresh = read_word(source, run.reader), held = run.held;
    uint both = (held >> 16) | (fresh << 16);
    run.held = fresh;
    if (run.after_half) return run.straddles ? fresh : both;
    return run.straddles ? both : held;
}

#endif

uint word_at(uint source, uint at) {
    Run run = run_from(source, at);
    return next_word(source, run);
}

float half_at(uint source, uint at) {
    Reader reader = reader_at(source, at);
    uint word = read_word(source, reader);
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

// Subtracts a number from each of four bytes below 64; the highest bit takes the borrow.
uint below(uint bytes, uint middle) {
    return ((bytes | 0x80808080u) - middle * 0x01010101u) ^ 0x80808080u;
}

// The low and the high nibbles of four bytes.
#define LOW(word) ((word) & 0x0F0F0F0Fu)
#define HIGH(word) (((word) >> 4) & 0x0F0F0F0Fu)

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

#if WIDE == 16
void resume(inout Head head) { resume(head.run.reader); }
#endif

// A single column, for the last columns that do not fill a unit.
float read_one(uint source, uint row, uint column) {
#if KIND == F32
    return uintBitsToFloat(word_at(source, row + 4 * column));
#elif KIND == F16
    return half_at(source, row + 2 * column);
#else
    uint at = row + 2 * column;
    Reader reader = reader_at(source, at);
    uint word = read_word(source, reader);
    return uintBitsToFloat((at & 2u) == 0u ? word << 16 : word & 0xFFFF0000u);
#endif
}

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
#define MINIMA 1

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

void read_packed(uint source, inout Head head, uint step, out uint bytes[QUADS]) {
    uint word = next_word(source, head.run);
    bytes[0] = LOW(word);
    bytes[1] = HIGH(word);
#if KIND == Q5_K
    uint fifth = next_word(source, head.fifth) >> head.group;
    bytes[0] |= (fifth & 0x01010101u) << 4;
    bytes[1] |= (fifth & 0x02020202u) << 3;
#endif
}

#if WIDE == 16
void resume(inout Head head) {
    resume(head.run.reader);
#if KIND == Q5_K
    resume(head.fifth.reader);
#endif
}
#endif

vec2 factor_of(Head head, uint step, const uint quad) {
    return vec2(head.scales[quad], -head.minima[quad]);
}

#ifdef FACTORED
float factored(Head head, float dots[DOTS_EACH], float sums[DOTS_EACH]) {
    return dot(head.scales, vec2(dots[0], dots[1])) - dot(head.minima, vec2(sums[0], sums[1]));
}
#endif

// Blocks of 256, of which a unit is half: four quads of columns, 32 apart. There is a scale for the first
// 16 of each 32 columns (group 0), and one for the others.
//   Q6_K    128 bytes of nibbles; 64 bytes with two more bits for each weight; a signed byte for each
//           16 columns to be multiplied by the scale; the scale. Weights are six bits less 32. In a unit
//           the low nibbles of 32 bytes are the first 32 columns, those of the next 32 bytes the second,
//           then the high nibbles of both; of the two further bits the lowest are those of the first
//           32 columns.
//   Q2_K    a byte for each 16 columns, whose nibbles are a scale (low) and a minimum (high), to be
//           multiplied by the last two numbers; 64 bytes of two bits each; scale and minimum. In a unit
//           the lowest two bits of each of 32 bytes are one of the first 32 columns, and so on.
//   Q3_K    32 bytes of third bits, bit i of each for 32 columns; 64 bytes of two bits each, as Q2_K; a
//           6-bit scale less 32 for each 16 columns, packed in three words (the nibbles of the first two:
//           bits 0–3 of scales 0–7 and above them of 8–15; two bits each of the third: bits 4–5 of
//           scales 0–3, 4–7, 8–11, 12–15); the scale that they are multiplied by. Weights are three bits
//           less 4.
#elif KIND == Q6_K || KIND == Q2_K || KIND == Q3_K

#define UNIT 128
#define STEPS 8
#define QUADS 4
#define APART 32
#define GROUPS 2

// Byte 2 * quad + group of `scales` is that of a quad and a group. `factor` is the block's scale, and
// with Q2_K its minimum, negative.
#if KIND == Q6_K

#define MIDDLE 32

struct Head { Run early, late, further; uvec2 scales; vec2 factor; };

Head read_head(uint source, uint row, uint unit) {
    uint at = row + (unit >> 1) * 210, number = unit & 1u;
    Run run = run_from(source, at + 192 + 8 * number);
    Head head;
    head.scales.x = next_word(source, run);
    head.scales.y = next_word(source, run);
    head.factor = vec2(half_at(source, at + 208), 0.0);
    head.early = run_from(source, at + 64 * number);
    head.late = run_from(source, at + 64 * number + 32);
    head.further = run_from(source, at + 128 + 32 * number);
    return head;
}

void read_packed(uint source, inout Head head, uint step, out uint bytes[QUADS]) {
    uint early = next_word(source, head.early);
    uint late = next_word(source, head.late);
    uint further = next_word(source, head.further);
    bytes[0] = LOW(early) | ((further << 4) & 0x30303030u);
    bytes[1] = LOW(late) | ((further << 2) & 0x30303030u);
    bytes[2] = HIGH(early) | (further & 0x30303030u);
    bytes[3] = HIGH(late) | ((further >> 2) & 0x30303030u);
}

#else

#if KIND == Q2_K

#define MINIMA 2

struct Head { Run run; uvec2 scales; vec2 factor; };

Head read_head(uint source, uint row, uint unit) {
    uint at = row + (unit >> 1) * 84, number = unit & 1u;
    Run run = run_from(source, at + 8 * number);
    Head head;
    head.scales.x = next_word(source, run);
    head.scales.y = next_word(source, run);
    head.factor = unpackHalf2x16(word_at(source, at + 80));
    head.factor.y = -head.factor.y;
    head.run = run_from(source, at + 16 + 32 * number);
    return head;
}

#else

#define MIDDLE 4

struct Head { Run run, third; uvec2 scales; vec2 factor; uint shift; };

Head read_head(uint source, uint row, uint unit) {
    uint at = row + (unit >> 1) * 110, number = unit & 1u;
    Run run = run_from(source, at + 96);
    uint first = next_word(source, run), second = next_word(source, run);
    uint further = next_word(source, run) >> (4 * number);
    Head head;
    head.shift = 4 * number;
    head.scales.x = below(LOW(first >> head.shift) | ((further << 4) & 0x30303030u), 32);
    head.scales.y = below(LOW(second >> head.shift) | ((further << 2) & 0x30303030u), 32);
    head.factor = vec2(half_at(source, at + 108), 0.0);
    head.run = run_from(source, at + 32 + 32 * number);
    head.third = run_from(source, at);
    return head;
}

#endif

void read_packed(uint source, inout Head head, uint step, out uint bytes[QUADS]) {
    uint word = next_word(source, head.run);
    bytes[0] = word & 0x03030303u;
    bytes[1] = (word >> 2) & 0x03030303u;
    bytes[2] = (word >> 4) & 0x03030303u;
    bytes[3] = (word >> 6) & 0x03030303u;
#if KIND == Q3_K
    uint third = next_word(source, head.third) >> head.shift;
    bytes[0] |= (third << 2) & 0x04040404u;
    bytes[1] |= (third << 1) & 0x04040404u;
    bytes[2] |= third & 0x04040404u;
    bytes[3] |= (third >> 1) & 0x04040404u;
#endif
}

#endif

// The bytes of `scales` for the four quads, each in the lowest byte of a word.
uvec4 bytes_of(Head head, uint group) {
    uvec2 bytes = head.scales >> (8 * group);
    return uvec4(bytes.x, bytes.x >> 16, bytes.y, bytes.y >> 16);
}

// Scales and minima of the four quads, without those of the block.
#if KIND == Q2_K
vec4 scales_of(Head head, uint group) { return vec4(ivec4(bytes_of(head, group) & 15u)); }
vec4 minima_of(Head head, uint group) { return vec4(ivec4((bytes_of(head, group) >> 4) & 15u)); }
#else
vec4 scales_of(Head head, uint group) { return vec4(ivec4(bytes_of(head, group) << 24) >> 24); }
#endif

vec2 factor_of(Head head, uint step, const uint quad) {
    uint group = step >= 4u ? 1u : 0u;
#if KIND == Q2_K
    return head.factor * vec2(scales_of(head, group)[quad], minima_of(head, group)[quad]);
#else
    return vec2(head.factor.x * scales_of(head, group)[quad], 0.0);
#endif
}

#ifdef FACTORED
float factored(Head head, float dots[DOTS_EACH], float sums[DOTS_EACH]) {
    vec4 first = vec4(dots[0], dots[1], dots[2], dots[3]);
    vec4 second = vec4(dots[4], dots[5], dots[6], dots[7]);
    vec4 first_sums = vec4(sums[0], sums[1], sums[2], sums[3]);
    vec4 second_sums = vec4(sums[4], sums[5], sums[6], sums[7]);
#if KIND == Q2_K
    float minima = dot(minima_of(head, 0), first_sums) + dot(minima_of(head, 1), second_sums);
#else
    first -= float(MIDDLE) * first_sums;
    second -= float(MIDDLE) * second_sums;
#endif
    float scaled = dot(scales_of(head, 0), first) + dot(scales_of(head, 1), second);
#if KIND == Q2_K
    return head.factor.x * scaled + head.factor.y * minima;
#else
    return head.factor.x * scaled;
#endif
}
#endif

// Units of 32 columns with one scale.
//   Q8_0          scale; 32 signed bytes
//   Q4_0, Q5_0    scale; [fifth bits]; nibbles: from -8, or -16, on
//   Q4_1, Q5_1    scale; minimum; [fifth bits]; nibbles
//   IQ4_NL        scale; nibbles that number one of 16 levels
//   IQ4_XS        blocks of 256: scale; bits 4–5 of eight 6-bit scales less 32, to be multiplied by
//                 it, one for each unit; their bits 0–3; nibbles as IQ4_NL
//   MXFP4         exponent, a byte; nibbles that number one of 16 levels
// The low nibbles of 16 bytes are the first 16 columns, the high ones the others. Bit i of the fifth
// bits, which are a word, is that of column i.
#else

#define UNIT 32
#if KIND == Q8_0
#define STEPS 8
#define QUADS 1
#define APART 0
#else
#define STEPS 4
#define QUADS 2
#define APART 16
#endif

#if KIND == Q8_0
#define UNIT_BYTES 34
#define NUMBERS signed_bytes
#elif KIND == Q4_0
#define UNIT_BYTES 18
#define MIDDLE 8
#elif KIND == Q5_0
#define UNIT_BYTES 22
#define MIDDLE 16
#elif KIND == Q4_1
#define UNIT_BYTES 20
#define MINIMA 1
#elif KIND == Q5_1
#define UNIT_BYTES 24
#define MINIMA 1
#elif KIND == MXFP4
#define UNIT_BYTES 17
#define MIDDLE 12
#else
#define UNIT_BYTES 18  // not of IQ4_XS
#define NUMBERS levels
#endif

struct Head { Run run; vec2 factor; uint fifth; };

Head read_head(uint source, uint row, uint unit) {
    Head head;
#if KIND == IQ4_XS
    uint at = row + (unit >> 3) * 136, number = unit & 7u;
    Run run = run_from(source, at);
    uint word = next_word(source, run);
    uint scale = (next_word(source, run) >> (4 * number)) & 15u;
    scale |= ((word >> (16 + 2 * number)) & 3u) << 4;
    head.run = run_from(source, at + 8 + 16 * number);
    head.factor = vec2(unpackHalf2x16(word).x * float(int(scale) - 32), 0.0);
#elif KIND == MXFP4
    // The levels are doubled, so this is half of 2 to the power of the byte less 127.
    head.run = run_from(source, row + unit * UNIT_BYTES);
    uint exponent = next_byte(head.run);
    uint bits = exponent < 2u ? 0x00200000u << exponent : (exponent - 1) << 23;
    head.factor = vec2(uintBitsToFloat(bits), 0.0);
#elif KIND == Q4_1 || KIND == Q5_1
    head.run = run_from(source, row + unit * UNIT_BYTES);
    head.factor = unpackHalf2x16(next_word(source, head.run));
#else
    head.run = run_from(source, row + unit * UNIT_BYTES);
    head.factor = vec2(unpackHalf2x16(next_half(head.run)).x, 0.0);
#endif
#if KIND == Q5_0 || KIND == Q5_1
    head.fifth = next_word(source, head.run);
#endif
    return head;
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

#elif KIND == IQ4_NL || KIND == IQ4_XS

// Levels -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113: this polynomial is
// never further than 0.434 from them. An array would be looked up in memory.
vec4 levels(uint nibbles) {
    vec4 n = unsigned_bytes(nibbles);
    return roundEven((((1.58604e-3 * n + 3.10864e-2) * n - 1.37193) * n + 24.1738) * n - 126.567);
}

#elif KIND == Q5_0 || KIND == Q5_1

// Spreads four consecutive bits, one to bit 4 of each byte.
uint fifth_bits(uint bits) {
    return ((bits & 1u) << 4) | ((bits & 2u) << 11) | ((bits & 4u) << 18) | ((bits & 8u) << 25);
}

#endif

void read_packed(uint source, inout Head head, uint step, out uint bytes[QUADS]) {
    uint word = next_word(source, head.run);
#if KIND == Q8_0
    bytes[0] = word;
#elif KIND == MXFP4
    bytes[0] = levels_above(LOW(word));
    bytes[1] = levels_above(HIGH(word));
#else
    bytes[0] = LOW(word);
    bytes[1] = HIGH(word);
#endif
#if KIND == Q5_0 || KIND == Q5_1
    bytes[0] |= fifth_bits(head.fifth >> (4 * step));
    bytes[1] |= fifth_bits(head.fifth >> (4 * step + 16));
#endif
}

vec2 factor_of(Head head, uint step, const uint quad) { return head.factor; }

#ifdef FACTORED
float factored(Head head, float dots[DOTS_EACH], float sums[DOTS_EACH]) {
#if QUADS == 1
    float dots_all = dots[0], sums_all = sums[0];
#else
    float dots_all = dots[0] + dots[1], sums_all = sums[0] + sums[1];
#endif
#ifdef MINIMA
    return dot(head.factor, vec2(dots_all, sums_all));
#elif defined(MIDDLE)
    return head.factor.x * (dots_all - float(MIDDLE) * sums_all);
#else
    return head.factor.x * dots_all;
#endif
}
#endif

#endif

#ifndef GROUPS
#define GROUPS 1
#endif
#ifndef MINIMA
#define MINIMA 0
#endif
#ifndef NUMBERS
#define NUMBERS unsigned_bytes
#endif

#if KIND != F32 && KIND != F16 && KIND != BF16

vec4 weights_of(Head head, uint step, const uint quad, uint bytes) {
    vec4 numbers = NUMBERS(bytes);
#ifdef FACTORED
    return numbers;
#elif MINIMA
    vec2 factor = factor_of(head, step, quad);
    precise vec4 weights = numbers * factor.x;
    weights += factor.y;
    return weights;
#else
#ifdef MIDDLE
    numbers -= float(MIDDLE);
#endif
    return numbers * factor_of(head, step, quad).x;
#endif
}

void read_step(uint source, inout Head head, uint step, out vec4 weights[QUADS]) {
    uint bytes[QUADS];
    read_packed(source, head, step, bytes);
#define WEIGHTS_OF(quad) weights[quad] = weights_of(head, step, quad, bytes[quad]);
    REPEAT(QUADS, WEIGHTS_OF)
}

#endif
