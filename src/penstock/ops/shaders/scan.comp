// Running sums or products along one axis of an array.
//
// A line is all elements along the axis. A job is one chunk of one line, or of four lines that lie
// side by side; the groups of a row of the grid have the same chunk. If lines have several chunks, a
// launch computes the totals of chunks (TOTALS), another the running totals of these, and a third
// starts each chunk from them.

layout(local_size_x_id = 0) in;

#include "axes_elements.glsl"
#include "axes_numbers.glsl"

layout(constant_id = 5) const int OUT_SIZE = 4;     // bytes of what is stored: 4, 8 or 16
layout(constant_id = 6) const bool PRODUCT = false;
layout(constant_id = 7) const bool TOTALS = false;  // store the total of each chunk only
layout(constant_id = 8) const bool ALONG = false;   // four elements at once, of one line
layout(constant_id = 9) const bool ACROSS = false;  // four elements at once, of four lines
layout(constant_id = 10) const bool STARTED = false;       // chunks start from those of `p`
layout(constant_id = 11) const bool SEVERAL_KEPT = false;  // axes of lines: up to four, or one
layout(constant_id = 12) const bool FOURS = false;  // four stored numbers may be side by side

struct Word { uint bits; };
struct Words { uvec4 bits; };
layout(binding = 1) readonly buffer P { Word p[]; };
layout(binding = 2) writeonly buffer Y { Word y[]; };
layout(binding = 2) writeonly buffer Z { Words y_fours[]; };

layout(push_constant) uniform Arguments {
    uint at;          // the byte of the first element
    uint last;        // the last unit of x
    uint first;       // the word of the first output
    uint jobs, span;  // of a chunk, and for a group
    uint lines, count, chunk;  // lines, elements of a line, and of a chunk
    uint pace, to;    // along the axis: bytes in x, and elements in y
    uint initial;     // 1: each line of y starts with the sum or product of nothing
    uint kept_0, kept_1, kept_2;
    uint step_0, step_1, step_2, step_3;  // bytes in x from line to line
    uint to_0, to_1, to_2, to_3;          // elements in y
};

Number joined(Number a, Number b) { return PRODUCT ? times(a, b) : plus(a, b); }

Number started(uint line) {
    if (!STARTED) return PRODUCT ? ONE : NOTHING;
#if NUMBER == FLOAT
    return uintBitsToFloat(p[line].bits);
#elif NUMBER == DOUBLE
    return packDouble2x32(uvec2(p[2u * line].bits, p[2u * line + 1u].bits));
#elif NUMBER == COMPLEX
    return uintBitsToFloat(uvec2(p[2u * line].bits, p[2u * line + 1u].bits));
#elif NUMBER == DCOMPLEX
    return dvec2(packDouble2x32(uvec2(p[4u * line].bits, p[4u * line + 1u].bits)),
                 packDouble2x32(uvec2(p[4u * line + 2u].bits, p[4u * line + 3u].bits)));
#else
    return uvec2(p[2u * line].bits, p[2u * line + 1u].bits);
#endif
}

void store(uint output_, Number number) {
    uvec4 bits = stored(number);
    uint word = first + output_ * uint(OUT_SIZE / 4);
    y[word].bits = bits.x;
    if (OUT_SIZE >= 8) y[word + 1u].bits = bits.y;
    if (OUT_SIZE == 16) {
        y[word + 2u].bits = bits.z;
        y[word + 3u].bits = bits.w;
    }
}

void store_four(uint output_, uint step_, uint wide, Number a, Number b, Number c, Number d) {
    uint word = first + output_ * uint(OUT_SIZE / 4);
    if (FOURS && wide == 4u && (word & 3u) == 0u) {
        if (OUT_SIZE == 4) {
            y_fours[word >> 2].bits = uvec4(stored(a).x, stored(b).x, stored(c).x, stored(d).x);
        } else {
            y_fours[word >> 2].bits = uvec4(stored(a).xy, stored(b).xy);
            y_fours[(word >> 2) + 1u].bits = uvec4(stored(c).xy, stored(d).xy);
        }
        return;
    }
    store(output_, a);
    if (wide > 1u) store(output_ + step_, b);
    if (wide > 2u) store(output_ + 2u * step_, c);
    if (wide > 3u) store(output_ + 3u * step_, d);
}

void main() {
    uint job = gl_WorkGroupID.x * span + gl_LocalInvocationID.x;
    uint jobs_end = min((gl_WorkGroupID.x + 1u) * span, jobs);
    uint number_of_chunk = gl_WorkGroupID.y, begin = number_of_chunk * chunk;
    uint here = min(chunk, count - begin);
    for (; job < jobs_end; job += gl_WorkGroupSize.x) {
        uint byte = at + begin * pace, output_ = (begin + initial) * to, along = job, rest = 0u;
        if (SEVERAL_KEPT) {
            uint width = ACROSS ? (kept_0 + 3u) / 4u : kept_0;
            rest = job / width;
            along = job - rest * width;
            uint more = rest / kept_1, most = more / kept_2;
            byte += (rest - more * kept_1) * step_1 + (more - most * kept_2) * step_2;
            byte += most * step_3;
            output_ += (rest - more * kept_1) * to_1 + (more - most * kept_2) * to_2;
            output_ += most * to_3;
        }
        if (ACROSS) along *= 4u;
        byte += along * step_0;
        output_ += along * to_0;
        uint wide = ACROSS ? min(kept_0 - along, 4u) : 1u;
        uint line = number_of_chunk * lines + rest * kept_0 + along;
        Number a = started(line), b = a, c = a, d = a;
        if (ACROSS && STARTED) {
            b = started(line + min(1u, wide - 1u));
            c = started(line + min(2u, wide - 1u));
            d = started(line + min(3u, wide - 1u));
        }
        if (!TOTALS && initial == 1u && number_of_chunk == 0u) {
            store_four(output_ - to, to_0, wide, a, b, c, d);
        }
        uint steps = here, left = 0u;
        if (ALONG) {
            // Single elements, up to where four start at a multiple of their size.
            uint head = min(((0u - byte) & uint(4 * SIZE - 1)) / uint(SIZE), here);
            for (uint k = 0u; k < head; ++k) {
                a = joined(a, number_of(raw_at(byte)));
                if (!TOTALS) store(output_, a);
                byte += uint(SIZE);
                output_ += 1u;
            }
            steps = (here - head) / 4u;
            left = here - head - 4u * steps;
        }
        uint next = ALONG ? uint(4 * SIZE) : pace, next_output = ALONG ? 4u : to;
        for (uint i = 0u; i < steps; ++i) {
            if (ACROSS || ALONG) {
                Four four = four_at(byte, last);
                Number na = number_of(four.a), nb = number_of(four.b);
                Number nc = number_of(four.c), nd = number_of(four.d);
                if (ACROSS) {
                    a = joined(a, na), b = joined(b, nb), c = joined(c, nc), d = joined(d, nd);
                    if (!TOTALS) store_four(output_, to_0, wide, a, b, c, d);
                } else {
                    Number ab = joined(na, nb), cd = joined(nc, nd);
                    Number second = joined(a, ab);
                    if (!TOTALS) {
                        store_four(output_, 1u, 4u, joined(a, na), second, joined(second, nc),
                                   joined(second, cd));
                    }
                    a = joined(second, cd);
                }
            } else {
                a = joined(a, number_of(raw_at(byte)));
                if (!TOTALS) store(output_, a);
            }
            byte += next;
            output_ += next_output;
        }
        for (uint k = 0u; k < left; ++k) {
            a = joined(a, number_of(raw_at(byte)));
            if (!TOTALS) store(output_, a);
            byte += uint(SIZE);
            output_ += 1u;
        }
        if (TOTALS) store_four(line, 1u, wide, a, b, c, d);
    }
}
