// The trace: events as columns, the rows they are drawn on, and the flights of submissions.

const trace = JSON.parse(byId("data").textContent);
const texts = trace.texts;
// The device may have continued to work after the trace ended.
const traced = Math.max(1, trace.seconds * 1e9);
const total = Object.values(trace.device).reduce(
  (latest, [start, ns]) => Math.max(latest, start + ns), traced);

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

// Gaps of all devices as columns, in order of time, and the parts of all gaps.
const typed = (columns) => Object.fromEntries(Object.entries(columns).map(
  ([name, values]) => [name, (name === "start" || name === "seconds" ? Float64Array : Int32Array).from(values)]));
const gap = typed(trace.gaps), part = typed(trace.parts);
delete trace.gaps;
delete trace.parts;
const gapCount = gap.start.length;
gap.end = gap.start.map((start, g) => start + gap.seconds[g]);
gap.firstPart = new Int32Array(gapCount);
for (let g = 1; g < gapCount; g++) gap.firstPart[g] = gap.firstPart[g - 1] + gap.parts[g - 1];
part.start = new Float64Array(part.cause.length);
for (let g = 0; g < gapCount; g++) {
  let start = gap.start[g];
  for (let p = gap.firstPart[g]; p < gap.firstPart[g] + gap.parts[g]; p++) {
    part.start[p] = start;
    start += part.seconds[p];
  }
}
const causes = trace.causes;
const causeOf = (g) => causes[gap.cause[g]].cause;
const gapEndedBy = new Map();
gap.after.forEach((event, g) => gapEndedBy.set(event, g));

// Rows: the devices, the host's threads, the streams, each with what is drawn on it.
const deviceRows = trace.devices.map((device) => {
  const row = newRow("device", device.name, `${share(device.busy ?? 0, device.span ?? 1)} busy`);
  const start = (device.start ?? 0) * 1e9;
  return { ...row, start, end: start + (device.span ?? 0) * 1e9, known: device.span !== undefined };
});
gap.device.forEach((device, g) => deviceRows[device].gaps.push(g));
const threadRows = trace.threads.map((thread) => newRow("thread", thread.name, `thread ${thread.id}`));
const streamRows = trace.streams.map((stream) => newRow("stream", stream.name, stream.device));
const rows = [...deviceRows.filter((row) => row.known), ...threadRows, ...streamRows];

function newRow(type, name, note) {
  return { type, name, note, bars: {}, ticks: {}, flights: [], device: [], gaps: [], y: 0, height: 0 };
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
  // The commands inside a replayed graph, where they have times, are drawn instead of the replay.
  const place = (i) => `${column.stream[i]} ${column.submission[i]} ${column.command[i]}`;
  const opened = new Set();
  for (let i = 0; i < size; i++) {
    if (kindOf(i) === "replayed" && trace.device[i]) opened.add(place(i));
  }
  for (const [i, [start, ns]] of Object.entries(trace.device)) {
    if (kindOf(i) === "submission" || (kindOf(i) === "replay" && opened.has(place(i)))) continue;
    const row = streamRows[column.stream[i]];
    row?.device.push({ event: Number(i), start, end: start + ns });
  }
  for (const row of streamRows) row.device.sort((a, b) => a.start - b.start);
})();

const shownRows = rows.filter((row) =>
  row.type === "device" || row.flights.length || row.device.length ||
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

// The events of a stream's submissions that the device executed, with its times.
function commandsOf(stream, first, last = first) {
  const row = streamRows[stream];
  if (!row) return [];
  if (!row.commands) {
    row.commands = new Map();
    for (const { event } of row.device) {
      const number = column.submission[event];
      (row.commands.get(number) ?? row.commands.set(number, []).get(number)).push(event);
    }
  }
  const found = [];
  for (let number = first; number <= last; number++) found.push(...(row.commands.get(number) ?? []));
  return found;
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
