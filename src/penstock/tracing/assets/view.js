// The visible time range, the selection, and which kinds are hidden.

const GUTTER = 178; // pixels for the names of rows
const SHORTEST = 50; // nanoseconds on the whole width

const view = { from: 0, to: total, width: 1000 };
const hidden = new Set(); // kinds
let selected = null; // {event} or {flight}
let hovered = null;

const pixel = (time) => GUTTER + ((time - view.from) / (view.to - view.from)) * (view.width - GUTTER);
const timeAt = (x) => view.from + ((x - GUTTER) / (view.width - GUTTER)) * (view.to - view.from);

function show(from, to) {
  let span = Math.min(Math.max(to - from, SHORTEST), total);
  const start = Math.min(Math.max((from + to - span) / 2, 0), total - span);
  view.from = start;
  view.to = start + span;
  redraw();
}

function zoom(factor, around = (view.from + view.to) / 2) {
  const span = Math.min(Math.max((view.to - view.from) * factor, SHORTEST), total);
  const share = (around - view.from) / (view.to - view.from);
  show(around - share * span, around - share * span + span);
}

function pan(share) {
  const step = (view.to - view.from) * share;
  const from = Math.min(Math.max(view.from + step, 0), total - (view.to - view.from));
  show(from, from + view.to - view.from);
}

const spanOf = (thing) => thing.event !== undefined
  ? [column.start[thing.event], endOf(thing.event)]
  : [flights[thing.flight].start, flights[thing.flight].end];

// Scroll and zoom to make something visible.
function reveal(thing) {
  const [start, end] = spanOf(thing);
  const middle = (start + end) / 2;
  let span = view.to - view.from;
  if (end > start && ((end - start) / span) * view.width < 6) span = (end - start) * 12;
  if (end - start > span) span = (end - start) * 1.3;
  const margin = Math.min(0.08 * span, middle, total - middle);
  if (span !== view.to - view.from || middle < view.from + margin || middle > view.to - margin) {
    show(middle - span / 2, middle + span / 2);
  }
  const row = rowOf(thing);
  const box = byId("rows");
  if (row.y < box.scrollTop) box.scrollTop = row.y;
  const bottom = row.y + row.height - box.clientHeight;
  if (bottom > box.scrollTop) box.scrollTop = bottom;
}

const rowOf = (thing) => thing.event !== undefined
  ? threadRows[column.thread[thing.event]]
  : streamRows[flights[thing.flight].stream];

function select(thing) {
  selected = thing;
  showDetails(thing);
  markChosenRow();
  redraw();
}
