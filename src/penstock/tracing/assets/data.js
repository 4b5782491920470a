// The trace: events as columns, the rows they are drawn on, and the flights of submissions.

const trace = JSON.parse(byId("data").textContent);
const texts = trace.texts;
// The device may have continued to work after the trace ended.
const traced = Math.max(1, trace.seconds * 1e9);
const total = Object.values(trace.device).reduce(
  (latest, [start, seconds]) => Math.max(latest, (start + seconds) * 1e9), traced);

const column = {};
for (const [name, values] of Object.entries(trace.columns)) {
  column[name] = (name === "start" || name === "seconds" || name === "nbytes" || name === "lo" ||
    name === "hi" ? Float64Array : Int32Array).from(values);
}
delete trace.columns;
const size = column.kind.length;
const text = (name, i) => texts[column[name][i]];
const kindOf = (i) => text("kind", i);
const endOf = (i) => column.start[i] + column.seconds[i];

const flights = trace.flights.map((flight) => ({
  ...flight,
  submitted: flight.submitted * 1e9,
  start: flight.start * 1e9,
  end: flight.end * 1e9,
}));

// Rows: the host's threads, then the streams, each with what is drawn on it.
const threadRows = trace.threads.map((thread) => newRow("thread", thread.name, `thread ${thread.id}`));
const streamRows = trace.streams.map((stream) => newRow("stream", stream.name, stream.device));
const rows = [...threadRows, ...streamRows];

function newRow(type, name, note) {
  return { type, name, note, bars: {}, ticks: {}, flights: [], device: [], y: 0, height: 0 };
}

// Marks of one kind on one row, by start; `reach` is the running maximum of ends, for searching.
function newMarks(numbers) {
  numbers.sort((a, b) => column.start[a] - column.start[b]);
  const reach = new Float64Array(numbers.length);
  let latest = -Infinity;
  numbers.forEach((i, n) => { reach[n] = latest = Math.max(latest, endOf(i)); });
  return { events: Int32Array.from(numbers), reach };
}

(function placeEvents() {
  const collected = new Map();
  const put = (row, layer, kind, i) => {
    const lists = collected.get(row) ?? collected.set(row, { bars: {}, ticks: {} }).get(row);
    (lists[layer][kind] ??= []).push(i);
  };
  for (let i = 0; i < size; i++) {
    const kind = kindOf(i);
    if (kind === "done") continue;
    put(threadRows[column.thread[i]], column.seconds[i] > 0 ? "bars" : "ticks", kind, i);
    if (column.stream[i] >= 0 && kind !== "submission") {
      put(streamRows[column.stream[i]], "ticks", kind, i);
    }
  }
  for (const [row, lists] of collected) {
    for (const layer of ["bars", "ticks"]) {
      for (const [kind, numbers] of Object.entries(lists[layer])) {
        row[layer][kind] = newMarks(numbers);
      }
    }
  }
  flights.forEach((flight, n) => streamRows[flight.stream].flights.push(n));
  for (const [i, [start, seconds]] of Object.entries(trace.device)) {
    const row = streamRows[column.stream[i]];
    row?.device.push({ event: Number(i), start: start * 1e9, end: (start + seconds) * 1e9 });
  }
  for (const row of streamRows) row.device.sort((a, b) => a.start - b.start);
})();

const shownRows = rows.filter((row) =>
  row.flights.length || row.device.length ||
  Object.keys(row.bars).length || Object.keys(row.ticks).length);

// The flight that a submission was part of, if the trace saw it being submitted.
function flightOf(stream, submission) {
  const list = streamRows[stream]?.flights ?? [];
  let low = 0, high = list.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (flights[list[middle]].last < submission) low = middle + 1;
    else high = middle;
  }
  const found = list[low];
  return found !== undefined && flights[found].first <= submission ? found : -1;
}

const awaitedBy = (i) => trace.awaited[i] ?? [];

// The receipt's counts, from the events themselves.
function counted() {
  const plural = Object.fromEntries(KINDS);
  const counts = { bytes_copied: 0 };
  for (const name of COUNTED) counts[name] = 0;
  for (let i = 0; i < size; i++) {
    const kind = kindOf(i);
    if (plural[kind] in counts) counts[plural[kind]] += 1;
    if (kind === "copy") counts.bytes_copied += column.nbytes[i];
  }
  return counts;
}

// The first of ascending numbers that is at least `value`.
function firstAtLeast(ascending, value) {
  let low = 0, high = ascending.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (ascending[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low;
}
