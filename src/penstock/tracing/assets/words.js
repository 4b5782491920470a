// Formatting: kinds of events, durations, byte counts, and elements made from text.

// Kind, plural for the counts, and whether it is one of the receipt's counts.
// In drawing order: the most prominent kinds come last, on top.
const KINDS = [
  ["barrier", "barriers"], ["submission", "submissions"], ["launch", "launches"],
  ["replay", "replays"], ["replayed", "replayed commands"], ["adopt", "adoptions"],
  ["fallback", "fallbacks"], ["clock", "clock"], ["view", "views"], ["order", "orders"],
  ["compile", "compilations"],
  ["fill", "fills"], ["rename", "renames"], ["allocation", "allocations"], ["copy", "copies"], ["wait", "waits"],
];
// The order of the counts at the top: what costs most comes first.
const COUNTED = [
  "waits", "copies", "allocations", "renames", "fills", "barriers", "submissions", "launches",
  "replays",
];

// Causes of idle time, with short names. Those of the second group are drawn hatched: colours only
// have to differ within a group, also for people who cannot tell some colours apart.
const CAUSES = {
  caller: "your code", issuing: "issuing", waited: "host waited", copy: "host copy",
  compile: "compiling", view: "view held",
};
const HATCHED = {
  other: "other stream", unsubmitted: "not submitted", latency: "latency", bound: "run-ahead bound",
  trace: "tracing",
};
const causeLabel = (name) => CAUSES[name] ?? HATCHED[name] ?? name;
const causeColour = (name) => `var(--cause-${name in CAUSES || name in HATCHED ? name : "trace"})`;

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

// Text with code between backticks.
function withCode(words) {
  return words.split("`").map((piece, n) => n % 2 ? element("code", piece) : document.createTextNode(piece));
}

// A mark in the colour of a cause.
function swatch(name) {
  const made = element("i", "", name in HATCHED ? "swatch hatched" : "swatch");
  made.style.setProperty("--kind", name === "busy" ? "var(--busy)" : causeColour(name));
  return made;
}

const share = (part, whole) => `${(100 * part / (whole || 1)).toFixed(part > 0.995 * whole && part < whole ? 1 : 0)} %`;
const byId = (id) => document.getElementById(id);

// Announce a text to screen readers.
function announce(text) {
  byId("status").textContent = text;
}
