// The decoding of blocks.glsl from any step of a unit on, so that invocations share a unit.
//
//   Head read_head_at(uint source, uint row, uint unit, uint step)
//
// is the Head of which read_step yields step `step` next. Invocations that take neighbouring steps
// load neighbouring words, which a GPU combines; the scales that they share are loaded from one
// address. Without WIDE.

#include "blocks.glsl"

void skip(uint source, inout Run run, uint words) {
    run.reader.next += words;
#if !ALIGNED
    run.held = fetch(source, run.reader.next - 1);
#endif
}

Head read_head_at(uint source, uint row, uint unit, uint step) {
    Head head = read_head(source, row, unit);
#if KIND == F32
    skip(source, head.run, 4 * step);
#elif KIND == F16 || KIND == BF16
    skip(source, head.run, 2 * step);
#elif KIND == Q6_K
    skip(source, head.early, step);
    skip(source, head.late, step);
    skip(source, head.further, step);
#else
    skip(source, head.run, step);
#if KIND == Q5_K
    skip(source, head.fifth, step);
#elif KIND == Q3_K
    skip(source, head.third, step);
#endif
#endif
    return head;
}
