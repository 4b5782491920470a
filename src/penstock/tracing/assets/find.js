// Search, and finding the mark under the pointer.

const search = { active: false, matches: new Uint8Array(size), found: [], at: -1, gaps: new Uint8Array(gapCount) };

// All words must occur, each anywhere in the text of the event or gap.
function runSearch(query) {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  search.active = words.length > 0;
  search.at = -1;
  search.found = [];
  if (search.active) {
    const lower = texts.map((each) => each.toLowerCase());
    const threads = trace.threads.map((thread) => thread.name.toLowerCase());
    const streams = trace.streams.map((stream) => `${stream.name} ${stream.device}`.toLowerCase());
    const hits = words.map((word) => ({
      texts: Uint8Array.from(lower, (each) => each.includes(word)),
      threads: threads.map((each) => each.includes(word)),
      streams: streams.map((each) => each.includes(word)),
    }));
    const columns = ["kind", "path", "buffer", "reason", "where"].map((name) => column[name]);
    for (let i = 0; i < size; i++) {
      const matches = kindOf(i) !== "done" && hits.every((hit) =>
        columns.some((values) => hit.texts[values[i]]) || hit.threads[column.thread[i]] ||
        (column.stream[i] >= 0 && hit.streams[column.stream[i]]));
      search.matches[i] = matches;
      if (matches) search.found.push(i);
    }
    findGaps(words, lower, streams);
    search.found.sort((a, b) => startOf(a) - startOf(b));
  }
  overviewPicture = null;
  tellFound();
  fillTable();
  redraw();
}

// A gap is found by its cause, its lines, its stream and device, and what was going on.
function findGaps(words, lower, streams) {
  const names = causes.map(({ cause }) => `gap idle ${cause} ${causeLabel(cause)}`);
  for (let g = 0; g < gapCount; g++) {
    const about = [names[gap.cause[g]], lower[gap.lines[g]], lower[gap.detail[g]], streams[gap.stream[g]] ?? ""];
    search.gaps[g] = words.every((word) => about.some((each) => each.includes(word)));
    if (search.gaps[g]) search.found.push(size + g);
  }
}

function tellFound() {
  const count = search.found.length;
  byId("found").textContent = !search.active ? "" : search.at < 0
    ? `${number(count)} found` : `${number(search.at + 1)} of ${number(count)}`;
}

function jump(step) {
  if (!search.active) {
    stepThrough(orderedWaits(), step);
    return;
  }
  const count = search.found.length;
  if (!count) return;
  if (search.at < 0) {
    // The first match on the screen or to the right of it.
    const here = search.found.findIndex((n) => spanOf(thingOf(n))[1] >= view.from);
    search.at = step > 0 ? Math.max(0, here) : (here > 0 ? here - 1 : count - 1);
  } else {
    search.at = (search.at + step + count) % count;
  }
  tellFound();
  goTo(search.found[search.at]);
}

let waitsInOrder = null;
const orderedWaits = () => (waitsInOrder ??= Array.from({ length: size }, (_, i) => i)
  .filter((i) => kindOf(i) === "wait").sort((a, b) => column.start[a] - column.start[b]));

const orderedGaps = () => Array.from(gap.start, (_, g) => size + g)
  .filter((n) => !hiddenCauses.has(gap.cause[n - size]) && !isPale(n - size));

// The next item in a list ordered by start, after the selection or the left edge of the screen.
function stepThrough(list, step) {
  if (!list.length) return;
  const number = selected?.event ?? (selected?.gap === undefined ? -1 : size + selected.gap);
  let at = list.indexOf(number);
  if (at < 0) {
    const from = selected ? spanOf(selected)[0] : view.from;
    const next = list.findIndex((n) => startOf(n) >= from);
    at = step > 0 ? (next < 0 ? -1 : next - 1) : (next < 0 ? list.length : next);
  }
  goTo(list[(at + step + list.length) % list.length]);
}

function nextInRow(step) {
  if (selected?.gap !== undefined) {
    const device = gap.device[selected.gap];
    stepThrough(orderedGaps().filter((n) => gap.device[n - size] === device), step);
  }
  if (selected?.event === undefined) return;
  const thread = column.thread[selected.event];
  const list = Array.from({ length: size }, (_, i) => i)
    .filter((i) => column.thread[i] === thread && kindOf(i) !== "done" && !hidden.has(kindOf(i)))
    .sort((a, b) => column.start[a] - column.start[b] || a - b);
  stepThrough(list, step);
}

function goTo(number) {
  const thing = thingOf(number);
  select(thing);
  reveal(thing);
  announce(inWords(thing));
}

// What is drawn at a point of the chart: the most prominent mark, or the nearest.
function thingAt(x, y) {
  if (x < GUTTER) return null;
  const row = shownRows.find((each) => y >= each.y && y < each.y + each.height);
  if (!row) return null;
  const time = timeAt(x), slack = (4 * (view.to - view.from)) / (view.width - GUTTER);
  if (row.type === "device") return onLane(row, time, slack);
  const onTicks = y >= row.tickY - 1, onDevice = !onTicks && row.device.length && y >= row.deviceY;
  if (onDevice) {
    const shown = row.device.filter((each) => !hidden.has(kindOf(each.event)));
    const work = nearest(shown, time, slack);
    return work ? { event: work.event } : null;
  }
  const layer = onTicks ? row.ticks : row.bars;
  let best = null, distance = slack;
  for (const [kind] of [...KINDS].reverse()) {
    if (!layer[kind] || hidden.has(kind)) continue;
    const { events, reach } = layer[kind];
    for (let n = firstAtLeast(reach, time - slack); n < events.length; n++) {
      const i = events[n];
      if (column.start[i] > time + slack) break;
      const away = Math.max(0, column.start[i] - time, time - endOf(i));
      if (away < distance) {
        best = { event: i };
        distance = away;
      }
    }
  }
  if (best || onTicks) return best;
  const flight = nearest(row.flights.map((n) => flights[n]), time, slack);
  return flight ? { flight: flights.indexOf(flight) } : null;
}

// Of spans with start and end, the one that contains a time, or else the nearest.
function nearest(spans, time, slack) {
  let best = null, distance = slack;
  for (const span of spans) {
    const away = Math.max(0, span.start - time, time - span.end);
    if (away < distance) {
      best = span;
      distance = away;
    }
  }
  return best;
}
