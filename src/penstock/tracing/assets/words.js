// Formatting: kinds of events, durations, byte counts, and elements made from text.

// Kind, plural for the counts, and whether it is one of the receipt's counts.
// In drawing order: the most prominent kinds come last, on top.
const KINDS = [
  ["barrier", "barriers"], ["submission", "submissions"], ["launch", "launches"],
  ["replay", "replays"], ["adopt", "adoptions"], ["fallback", "fallbacks"], ["clock", "clock"],
  ["fill", "fills"], ["rename", "renames"], ["allocation", "allocations"], ["copy", "copies"], ["wait", "waits"],
];
// The order of the counts at the top: what costs most comes first.
const COUNTED = [
  "waits", "copies", "allocations", "renames", "fills", "barriers", "submissions", "launches",
  "replays",
];

function duration(ns) {
  if (ns >= 1e9) return `${(ns / 1e9).toFixed(3)} s`;
  if (ns >= 1e6) return `${(ns / 1e6).toFixed(ns >= 1e8 ? 1 : 2)} ms`;
  if (ns >= 1e3) return `${(ns / 1e3).toFixed(ns >= 1e5 ? 0 : 1)} µs`;
  return `${Math.round(ns)} ns`;
}

// A point in time, from the start of the trace: finer than a duration of that length.
const moment = (ns) => `${(ns / 1e6).toLocaleString("en", { minimumFractionDigits: 3 })} ms`;

function bytes(count) {
  let size = count, unit = "B";
  for (const next of ["KiB", "MiB", "GiB"]) {
    if (size < 1024) break;
    size /= 1024;
    unit = next;
  }
  return unit === "B" ? `${size} B` : `${size.toFixed(1)} ${unit}`;
}

const number = (count) => count.toLocaleString("en");

// An element with text in it. Text only: nothing from the traced program becomes markup.
function element(name, text = "", className = "") {
  const made = document.createElement(name);
  if (text !== "") made.textContent = text;
  if (className) made.className = className;
  return made;
}

const byId = (id) => document.getElementById(id);

// Announce a text to screen readers.
function announce(text) {
  byId("status").textContent = text;
}
