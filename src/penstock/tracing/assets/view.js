// The visible time range, the selection, and which kinds are hidden.

let GUTTER = 178; // pixels for the names of rows; less on a narrow screen
const SHORTEST = 50; // nanoseconds on the whole width

const view = { from: 0, to: total, width: 1000 };
const hidden = new Set(); // kinds
const hiddenCauses = new Set(); // indices
let selected = null; // {event}, {flight} or {gap}
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

function spanOf({ event, gap: g, flight }) {
  if (event !== undefined) return [column.start[event], endOf(event)];
  return g !== undefined ? [gap.start[g], gap.end[g]] : [flights[flight].start, flights[flight].end];
}

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

function rowOf({ event, gap: g, flight }) {
  if (event !== undefined) return threadRows[column.thread[event]];
  return g !== undefined ? deviceRows[gap.device[g]] : streamRows[flights[flight].stream];
}

const isSame = (a, b) => a?.event === b?.event && a?.gap === b?.gap && a?.flight === b?.flight;

// Events and gaps in one list, as search results are: gaps have the numbers from `size` on.
const thingOf = (number) => number < size ? { event: number } : { gap: number - size };
const startOf = (number) => number < size ? column.start[number] : gap.start[number - size];

function select(thing) {
  selected = thing;
  showDetails(thing);
  markChosenRow();
  redraw();
}
