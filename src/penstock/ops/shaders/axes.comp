// Reduces an array along axes: for each output, the elements along the reduced axes.
//
// A job is one part of the elements of one output, or of four outputs that lie side by side. Each
// group takes a span of consecutive jobs, over which its invocations stride; no two work together.
// Where an output has several parts, a second launch reduces them.
//
//   FOLD     NUMBERS    sums and products, in what axes_numbers.glsl says
//            COUNT      how many elements are true
//            EXTREME    the largest key; keys are unsigned integers in the order of the elements
//   LONG     (with EXTREME) keys have two words

#define NUMBERS 0
#define COUNT 1
#define EXTREME 2

layout(local_size_x_id = 0) in;

#include "axes_elements.glsl"

layout(constant_id = 5) const int OUT_SIZE = 4;       // bytes of what is stored for an output
layout(constant_id = 6) const bool FINISH = true;     // store outputs; otherwise parts of them
layout(constant_id = 7) const int OPERATION = 0;      // see below
layout(constant_id = 8) const bool ALONG = false;     // four elements at once, of one output
layout(constant_id = 9) const bool ACROSS = false;    // four elements at once, of four outputs
layout(constant_id = 10) const bool SIDEWAYS = false; // neighbours take parts of the same output,
                                                      // and these are interleaved
layout(constant_id = 11) const bool SEVERAL_KEPT = false;     // axes: up to four, or one
layout(constant_id = 12) const bool SEVERAL_REDUCED = false;
layout(constant_id = 13) const bool ARE_PARTS = false;  // the elements are parts of a launch before
layout(constant_id = 14) const bool SHORT = false;      // a part has at most BLOCK steps
layout(constant_id = 15) const bool FOURS = false;      // with ACROSS: the four outputs of a job are
                                                        // stored side by side, as aligned uvec4

layout(binding = 1) readonly buffer M { uint m[]; };  // of SQUARES: the means, by output
struct Word { uint bits; };
layout(binding = 2) writeonly buffer Y { Word y[]; };
struct Words { uvec4 bits; };
layout(binding = 2) writeonly buffer Z { Words y_fours[]; };

layout(push_constant) uniform Arguments {
    uint at;             // the byte of the first element
    uint last;           // the last unit of x
    uint first;          // the word of the first output
    uint jobs, span;     // in a row of groups, and for a group
    uint units;          // outputs, counted in fours if ACROSS
    uint outputs;
    uint step_splits;    // parts of an output: gl_NumWorkGroups.y or, if SIDEWAYS, of neighbours
    uint rows_each;      // rows of a part; a row is all elements along the first reduced axis
    uint steps_each;     // steps of a part in a row; with ALONG, a step is four elements
    uint rows;
    uint kept_0, kept_1, kept_2;              // sizes; the last one follows from `units`
    uint step_0, step_1, step_2, step_3;      // bytes in x along the kept axes
    uint to_0, to_1, to_2, to_3;              // elements in y along them
    uint reduced_0, reduced_1, reduced_2;
    uint pace_0, pace_1, pace_2, pace_3;      // bytes in x along the reduced axes
    uint argument_0, argument_1;  // divisor (its bits), number of elements, or index of the first
};

// Steps that are added together plainly. Parts are large: each keeps its rounding error.
const uint BLOCK = ARE_PARTS ? 1u : 16u;

#if FOLD == NUMBERS
#include "axes_numbers.glsl"

// OPERATION: 0 the sum; 1 the product; 2 the sum of the squared distances from the mean.
// Then, of FINISH: 4 divided by `argument`; 8 the root of that.
#define KIND (OPERATION & 3)

#define Block Number
#define Extra Number
Block nothing() { return KIND == 1 ? ONE : NOTHING; }

Block taken(Block block, uvec4 raw, uint index, Extra mean) {
    Number number = number_of(raw);
    if (KIND == 1) return times(block, number);
#if NUMBER == FLOAT || NUMBER == DOUBLE
    if (KIND == 2) {
        precise Real distance = number - mean, square = distance * distance;
        number = square;
    }
#elif NUMBER != WHOLE
    if (KIND == 2) {
        precise Number distance = number - mean;
        precise Real square = distance.x * distance.x + distance.y * distance.y;
        number = Number(square, 0);
    }
#endif
    return plus(block, number);
}

#if NUMBER == WHOLE
#define Total Number
Total joined(Total a, Total b) { return KIND == 1 ? times(a, b) : plus(a, b); }
Total started() { return nothing(); }
uvec4 finished(Total total) { return stored(total); }
#else
// Blocks are added together with the rounding error of each addition kept, so that the error of a
// sum is that of its blocks, whatever their number.
struct Total { Number sum, rest; };
#if NUMBER == FLOAT || NUMBER == COMPLEX
#define LARGEST 3.4e38
#else
#define LARGEST 1.7e308lf
#endif
Total started() { return Total(nothing(), NOTHING); }
Total joined(Total a, Total b) {
    if (KIND == 1) return Total(times(a.sum, b.sum), NOTHING);
    precise Number sum = a.sum + b.sum, other = sum - a.sum;
    precise Number rest = (a.sum - (sum - other)) + (b.sum - other) + (a.rest + b.rest);
    return Total(sum, rest);
}
Real number_with(Real sum, Real rest) {
    // The error of a sum that is infinite is NaN or infinite.
    precise Real whole = sum + rest;
    return abs(rest) <= LARGEST ? whole : sum;
}
uvec4 finished(Total total) {
#if NUMBER == FLOAT || NUMBER == DOUBLE
    precise Number value = number_with(total.sum, total.rest);
#else
    precise Number value =
        Number(number_with(total.sum.x, total.rest.x), number_with(total.sum.y, total.rest.y));
#endif
    if (FINISH && (OPERATION & 4) != 0) {
#if NUMBER == FLOAT || NUMBER == COMPLEX
        value = value / uintBitsToFloat(argument_0);
#else
        value = value / packDouble2x32(uvec2(argument_0, argument_1));
#endif
    }
    if (FINISH && (OPERATION & 8) != 0) value = sqrt(value);
    return stored(value);
}
#endif

Extra extra_of(uint output_) {
    if (KIND != 2) return NOTHING;
#if NUMBER == FLOAT
    return uintBitsToFloat(m[output_]);
#elif NUMBER == DOUBLE
    return packDouble2x32(uvec2(m[2u * output_], m[2u * output_ + 1u]));
#elif NUMBER == COMPLEX
    return uintBitsToFloat(uvec2(m[2u * output_], m[2u * output_ + 1u]));
#elif NUMBER == DCOMPLEX
    return dvec2(packDouble2x32(uvec2(m[4u * output_], m[4u * output_ + 1u])),
                 packDouble2x32(uvec2(m[4u * output_ + 2u], m[4u * output_ + 3u])));
#else
    return NOTHING;
#endif
}
#if NUMBER == WHOLE
Total alone(Block block) { return block; }
#else
Total alone(Block block) { return Total(block, NOTHING); }
#endif
Total merged(Total total, Block block) { return joined(total, alone(block)); }

#elif FOLD == COUNT

// OPERATION: 0 the number of true elements; 1 whether there is one; 2 whether all are.
#define Block uint
#define Total uint
#define Extra uint
Block nothing() { return 0u; }
Total started() { return 0u; }
Extra extra_of(uint output_) { return 0u; }
Block taken(Block block, uvec4 raw, uint index, Extra extra) {
    if (ARE_PARTS) return block + raw.x;
    uvec4 bits = raw;
    if (SIZE < 4) bits.x = unsigned_of(bits.x);
    // -0.0 is false.
    if (SOURCE == 9 || SOURCE == 10) bits.x &= 0x7FFFu;
    if (SOURCE == 11 || SOURCE == 13) bits.x &= 0x7FFFFFFFu;
    if (SOURCE == 12 || SOURCE == 13 || SOURCE == 14) bits.y &= 0x7FFFFFFFu;
    if (SOURCE == 14) bits.w &= 0x7FFFFFFFu;
    return block + uint((bits.x | bits.y | bits.z | bits.w) != 0u);
}
Total joined(Total a, Total b) { return a + b; }
Total merged(Total total, Block block) { return total + block; }
Total alone(Block block) { return block; }
uvec4 finished(Total total) {
    if (FINISH && OPERATION == 1) return uvec4(total != 0u ? 1u : 0u, 0u, 0u, 0u);
    if (FINISH && OPERATION == 2) return uvec4(total == argument_0 ? 1u : 0u, 0u, 0u, 0u);
    return uvec4(total, 0u, 0u, 0u);
}

#else

// OPERATION: 0 the largest; 1 the smallest. Plus 2: its index, the first of equals.
#define SMALLEST ((OPERATION & 1) != 0)
#define INDEX ((OPERATION & 2) != 0)
#ifdef LONG
#define Key uvec2
#define HIGH(bits) bits.y
#define TOP 0x80000000u
#define EVERY uvec2(~0u)
#define INFINITE 0x7FF00000u
bool greater(Key a, Key b) { return a.y > b.y || (a.y == b.y && a.x > b.x); }
bool is_nan(Key bits) {
    uint high = bits.y & ~TOP;
    return high > INFINITE || (high == INFINITE && bits.x != 0u);
}
bool is_zero(Key bits) { return (bits.x | (bits.y & ~TOP)) == 0u; }
Key bits_of(uvec4 raw) { return raw.xy; }
uvec4 raw_of(Key bits) { return uvec4(bits, 0u, 0u); }
#else
#define Key uint
#define HIGH(bits) bits
#define TOP (SOURCE <= 2 ? 0x80u : SOURCE <= 4 || IS_HALF || IS_BFLOAT ? 0x8000u : 0x80000000u)
#define EVERY (TOP | (TOP - 1u))
#define INFINITE (IS_HALF ? 0x7C00u : IS_BFLOAT ? 0x7F80u : 0x7F800000u)
bool greater(Key a, Key b) { return a > b; }
bool is_nan(Key bits) { return (bits & ~TOP) > INFINITE; }
bool is_zero(Key bits) { return (bits & ~TOP) == 0u; }
Key bits_of(uvec4 raw) { return IS_BOOL ? uint((raw.x & 0xFFu) != 0u) : unsigned_of(raw.x); }
uvec4 raw_of(Key bits) { return uvec4(bits, 0u, 0u, 0u); }
#endif

struct Best { Key key; uint index; };
#define Block Best
#define Total Best
#define Extra uint
Best nothing() { return Best(Key(0u), ~0u); }
Best started() { return nothing(); }
Extra extra_of(uint output_) { return 0u; }

Key key_of(Key bits) {
    Key key = bits;
    if (IS_FLOAT) {
        // 0.0 and -0.0 compare equal, but have different bits.
        if (INDEX && is_zero(bits)) key = Key(0u);
        if ((HIGH(key) & TOP) != 0u) key = key ^ EVERY;
        else HIGH(key) |= TOP;
    } else if (IS_SIGNED) {
        HIGH(key) ^= TOP;
    }
    if (SMALLEST) key = key ^ EVERY;
    return IS_FLOAT && is_nan(bits) ? EVERY : key;
}

uvec4 element_of(Key key) {
    if (IS_FLOAT && key == EVERY) {  // NaN
        Key bits = Key(0u);
        HIGH(bits) = IS_HALF ? 0x7E00u : IS_BFLOAT ? 0x7FC0u : INFINITE | INFINITE >> 1;
#ifdef LONG
        HIGH(bits) = 0x7FF80000u;
#endif
        return raw_of(bits);
    }
    Key bits = SMALLEST ? key ^ EVERY : key;
    if (IS_FLOAT) {
        if ((HIGH(bits) & TOP) != 0u) HIGH(bits) ^= TOP;
        else bits = bits ^ EVERY;
    } else if (IS_SIGNED) {
        HIGH(bits) ^= TOP;
    }
    return raw_of(bits);
}

Best joined(Best a, Best b) {
    bool later = greater(b.key, a.key) || (INDEX && b.key == a.key && b.index < a.index);
    return Best(later ? b.key : a.key, later ? b.index : a.index);
}
Best taken(Best best, uvec4 raw, uint index, Extra extra) {
    if (ARE_PARTS) {
#ifdef LONG
        return joined(best, Best(raw.xy, raw.z));
#else
        return joined(best, Best(raw.x, raw.y));
#endif
    }
    return joined(best, Best(key_of(bits_of(raw)), index));
}
Best merged(Best total, Best block) { return joined(total, block); }
Best alone(Best block) { return block; }
uvec4 finished(Best best) {
    if (FINISH && INDEX) return uvec4(best.index, 0u, 0u, 0u);
    if (FINISH) return element_of(best.key);
#ifdef LONG
    return uvec4(best.key, best.index, 0u);
#else
    return uvec4(best.key, best.index, 0u, 0u);
#endif
}
#endif

void store(uint output_, uvec4 bits) {
    uint word = first + output_ * uint(OUT_SIZE / 4);
    y[word].bits = bits.x;
    if (OUT_SIZE >= 8) y[word + 1u].bits = bits.y;
    if (OUT_SIZE == 16) {
        y[word + 2u].bits = bits.z;
        y[word + 3u].bits = bits.w;
    }
}

void main() {
    uint job = gl_WorkGroupID.x * span + gl_LocalInvocationID.x;
    uint jobs_end = min((gl_WorkGroupID.x + 1u) * span, jobs);
    for (; job < jobs_end; job += gl_WorkGroupSize.x) {
        uint unit = job, part = gl_WorkGroupID.y, row_split = gl_WorkGroupID.z;
        if (SIDEWAYS) {
            unit = job / step_splits;
            part = job - unit * step_splits;
        }
        // The place of the first element, and of the output.
        uint begin = at, output_ = 0u, rest = unit, more, along = unit;
        uint width = ACROSS ? (kept_0 + 3u) / 4u : kept_0;
        if (SEVERAL_KEPT) {
            more = rest / width;
            along = rest - more * width;
            rest = more;
            more = rest / kept_1;
            begin += (rest - more * kept_1) * step_1;
            output_ += (rest - more * kept_1) * to_1;
            rest = more;
            more = rest / kept_2;
            begin += (rest - more * kept_2) * step_2 + more * step_3;
            output_ += (rest - more * kept_2) * to_2 + more * to_3;
        }
        if (ACROSS) along *= 4u;
        begin += along * step_0;
        output_ += along * to_0;
        uint wide = ACROSS ? min(kept_0 - along, 4u) : 1u;

        Extra e0 = extra_of(output_), e1 = e0, e2 = e0, e3 = e0;
        if (ACROSS) {
            e1 = extra_of(output_ + min(1u, wide - 1u) * to_0);
            e2 = extra_of(output_ + min(2u, wide - 1u) * to_0);
            e3 = extra_of(output_ + min(3u, wide - 1u) * to_0);
        }
        Total t0 = started(), t1 = t0, t2 = t0, t3 = t0;
        uint first_row = SEVERAL_REDUCED ? row_split * rows_each : 0u;
        uint rows_here = SEVERAL_REDUCED ? min(rows_each, rows - first_row) : 1u;
        for (uint turn = 0u; turn < rows_here; ++turn) {
            uint row = first_row + turn, byte = begin;
            if (SEVERAL_REDUCED) {
                more = row / reduced_1;
                uint most = more / reduced_2;
                byte += (row - more * reduced_1) * pace_1;
                byte += (more - most * reduced_2) * pace_2 + most * pace_3;
            }
            uint index = row * reduced_0, steps = reduced_0, pace = pace_0, head = 0u;
#if FOLD == EXTREME
            index += argument_0;
#endif
            if (ALONG) {
                // Single elements, up to where four start at a multiple of their size.
                head = min(((0u - byte) & uint(4 * SIZE - 1)) / uint(SIZE), reduced_0);
                steps = (reduced_0 - head) / 4u;
                pace = uint(4 * SIZE);
                if (part == 0u) {
                    for (uint k = 0u; k < head; ++k) {
                        uvec4 raw = raw_at(byte + k * uint(SIZE));
                        t0 = merged(t0, taken(nothing(), raw, index + k, e0));
                    }
                }
            }
            uint from = byte + head * uint(SIZE), pace_of_one = pace;
            uint i = SIDEWAYS ? part : part * steps_each;
            uint end = SIDEWAYS ? steps : min(i + steps_each, steps);
            uint stride = SIDEWAYS ? step_splits : 1u;
            pace *= stride;
            from += i * pace_of_one;
            uint of = index + (ALONG ? head + 4u * i : i), of_next = ALONG ? 4u * stride : stride;
            uint left = i < end ? (end - i + stride - 1u) / stride : 0u;
            while (left > 0u) {
                Block b0 = nothing(), b1 = b0, b2 = b0, b3 = b0;
                uint here = SHORT ? left : min(left, BLOCK);
                left -= here;
                for (uint k = 0u; k < here; ++k) {
                    if (ALONG || ACROSS) {
                        Four four = four_at(from, last);
                        b0 = taken(b0, four.a, of, e0);
                        b1 = taken(b1, four.b, ALONG ? of + 1u : of, e1);
                        b2 = taken(b2, four.c, ALONG ? of + 2u : of, e2);
                        b3 = taken(b3, four.d, ALONG ? of + 3u : of, e3);
                    } else {
                        b0 = taken(b0, raw_at(from), of, e0);
                    }
                    from += pace;
                    of += of_next;
                }
                if (SHORT && !ALONG) {
                    t0 = alone(b0), t1 = alone(b1), t2 = alone(b2), t3 = alone(b3);
                    break;
                }
                t0 = merged(t0, b0);
                if (ALONG || ACROSS) {
                    t1 = merged(t1, b1);
                    t2 = merged(t2, b2);
                    t3 = merged(t3, b3);
                }
            }
            if (ALONG && part == step_splits - 1u) {
                for (uint k = head + 4u * steps; k < reduced_0; ++k) {
                    uvec4 raw = raw_at(byte + k * uint(SIZE));
                    t0 = merged(t0, taken(nothing(), raw, index + k, e0));
                }
            }
        }
        if (ALONG) t0 = joined(joined(t0, t1), joined(t2, t3));
        output_ += (row_split * step_splits + part) * outputs;
        uvec4 bits = finished(t0);
        if (!ACROSS) {
            store(output_, bits);
        } else if (OUT_SIZE < 4) {  // the four are whole words
            uvec4 two = finished(t1), three = finished(t2), four = finished(t3);
            if (OUT_SIZE == 1) {
                y[first + output_ / 4u].bits = (bits.x & 0xFFu) | (two.x & 0xFFu) << 8 |
                                               (three.x & 0xFFu) << 16 | four.x << 24;
            } else {
                y[first + output_ / 2u].bits = (bits.x & 0xFFFFu) | two.x << 16;
                if (wide > 2u)
                    y[first + output_ / 2u + 1u].bits = (three.x & 0xFFFFu) | four.x << 16;
            }
        } else if (FOURS && wide == 4u) {
            uvec4 two = finished(t1), three = finished(t2), four = finished(t3);
            uint place = (first + output_ * uint(OUT_SIZE / 4)) / 4u;
            if (OUT_SIZE == 4) {
                y_fours[place].bits = uvec4(bits.x, two.x, three.x, four.x);
            } else {
                y_fours[place].bits = uvec4(bits.xy, two.xy);
                y_fours[place + 1u].bits = uvec4(three.xy, four.xy);
            }
        } else {
            store(output_, bits);
            if (wide > 1u) store(output_ + to_0, finished(t1));
            if (wide > 2u) store(output_ + 2u * to_0, finished(t2));
            if (wide > 3u) store(output_ + 3u * to_0, finished(t3));
        }
    }
}
