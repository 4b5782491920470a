// The canvases. However many events there are, a pixel is painted about once per row and kind:
// neighbours that would touch on the screen are painted as one.

const BAR = 20, LANE = 26, TICK = 9, DEVICE = 14, PAD = 7;
const colours = {};
let dirty = false;
const frames = []; // milliseconds of the last ones, for tests and the curious

function readColours() {
  const style = getComputedStyle(document.documentElement);
  const names = ["other", "panel", "ink", "soft", "line", "stripe", "accent", "flight",
    "flight-edge", "dim", "on-bar", "busy", ...KINDS.map(([kind]) => kind)];
  for (const name of names) {
    colours[name] = style.getPropertyValue(`--${name}`).trim() || colours.other;
  }
  readCauseColours(style);
}

const colourOf = (kind) => colours[kind] ?? colours.other;

function layOut() {
  let y = 0;
  for (const row of shownRows) {
    row.y = y;
    row.barY = y + PAD;
    row.deviceY = row.barY + BAR + 2;
    row.tickY = row.deviceY + (row.device.length ? DEVICE + 2 : 0);
    row.height = row.type === "device" ? LANE + 2 * PAD : row.tickY + TICK + PAD - y;
    y += row.height;
  }
  view.width = byId("rows").clientWidth;
  GUTTER = view.width < 700 ? 104 : 178;
  fitCanvas(byId("chart"), y);
  fitCanvas(byId("axis"), 24);
  fitCanvas(byId("overview"), 40);
  overviewPicture = null;
}

function fitCanvas(canvas, height) {
  const scale = window.devicePixelRatio || 1;
  canvas.style.height = `${height}px`;
  canvas.width = Math.round(view.width * scale);
  canvas.height = Math.round(height * scale);
}

function context(id) {
  const canvas = byId(id);
  const scale = window.devicePixelRatio || 1;
  const ctx = canvas.getContext("2d");
  ctx.setTransform(scale, 0, 0, scale, 0, 0);
  ctx.clearRect(0, 0, view.width, canvas.height / scale);
  return ctx;
}

function redraw() {
  if (dirty) return;
  dirty = true;
  requestAnimationFrame(drawNow);
}

function drawNow() {
  dirty = false;
  const begun = performance.now();
  drawChart();
  drawAxis();
  drawOverview();
  frames.push(performance.now() - begun);
  if (frames.length > 200) frames.shift();
}

function drawChart() {
  const ctx = context("chart");
  const box = byId("rows");
  const steps = axisSteps();
  shownRows.forEach((row, n) => {
    if (row.y + row.height < box.scrollTop || row.y > box.scrollTop + box.clientHeight) return;
    if (n % 2) {
      ctx.fillStyle = colours.stripe;
      ctx.fillRect(0, row.y, view.width, row.height);
    }
    ctx.fillStyle = colours.line;
    for (const time of steps.times) ctx.fillRect(Math.round(pixel(time)), row.y, 1, row.height);
    ctx.save();
    ctx.beginPath();
    ctx.rect(GUTTER, row.y, view.width - GUTTER, row.height);
    ctx.clip();
    drawLane(ctx, row);
    drawFlights(ctx, row);
    drawDeviceWork(ctx, row);
    const stack = newShares();
    for (const [kind] of KINDS) {
      if (hidden.has(kind)) continue;
      if (row.ticks[kind]) drawMarks(ctx, row.ticks[kind], kind, row.tickY, TICK, false, null);
    }
    for (const [kind] of [...KINDS].reverse()) {
      if (hidden.has(kind)) continue;
      if (row.bars[kind]) drawMarks(ctx, row.bars[kind], kind, row.barY, BAR, true, stack);
    }
    ctx.restore();
    drawName(ctx, row);
  });
  drawEnd(ctx);
  drawArrows(ctx);
  drawIssued(ctx);
  drawSelection(ctx);
}

function drawName(ctx, row) {
  ctx.textBaseline = "middle";
  ctx.fillStyle = colours.ink;
  ctx.font = `600 12px ${fontFamily()}`;
  ctx.fillText(shortened(ctx, row.name), nameX(), row.barY + 6);
  ctx.fillStyle = colours.soft;
  ctx.font = `11px ${fontFamily()}`;
  ctx.fillText(shortened(ctx, row.note), nameX(), row.barY + 22);
  ctx.fillStyle = colours.line;
  ctx.fillRect(GUTTER - 1, row.y, 1, row.height);
  ctx.fillRect(0, row.y + row.height - 1, view.width, 1);
}

const nameX = () => GUTTER < 178 ? 8 : 18;

function shortened(ctx, words) {
  let shown = words;
  while (shown && ctx.measureText(shown).width > GUTTER - nameX() - 10) {
    shown = `${shown.replace(/.…?$/u, "")}…`;
  }
  return shown;
}

let family = "";
const fontFamily = () => (family ||= getComputedStyle(document.body).fontFamily);

// Marks of one kind. Those that do not match the search are drawn first, and pale.
function drawMarks(ctx, marks, kind, y, height, labelled, stack) {
  if (search.active) {
    paint(ctx, marks, colours.dim, y, height, stack, (i) => !search.matches[i]);
    paint(ctx, marks, colourOf(kind), y, height, stack, (i) => search.matches[i]);
  } else {
    paint(ctx, marks, colourOf(kind), y, height, stack, null);
  }
  if (labelled) drawLabels(ctx, marks, kind, y, height);
}

// Ticks that touch become one. Bars narrower than a pixel become a share of it, stacked on the
// shares of other kinds: red up to a third means that a third of that time was waiting.
function paint(ctx, marks, colour, y, height, stack, wanted) {
  const { events, reach } = marks;
  const scale = (view.width - GUTTER) / (view.to - view.from);
  const shares = stack && newShares();
  ctx.fillStyle = colour;
  let left = -1, right = -2;
  for (let n = firstAtLeast(reach, view.from); n < events.length; n++) {
    const i = events[n];
    const start = column.start[i];
    if (start > view.to) break;
    if (wanted && !wanted(i)) continue;
    const x = Math.max(GUTTER - 2, GUTTER + (start - view.from) * scale);
    let end = GUTTER + (start + column.seconds[i] - view.from) * scale;
    if (stack) {
      if (end - x >= 2) {
        ctx.fillRect(x, y, end - x - (end - x > 5 ? 1 : 0), height); // wide neighbours stay apart
      } else {
        const place = Math.floor(x);
        shares[place] += Math.max(end - x, 0.04);
      }
      continue;
    }
    end = Math.max(x + 1.5, end);
    if (x <= right + 0.5) {
      if (end > right) right = end;
      continue;
    }
    if (right > left) ctx.fillRect(left, y, right - left, height);
    left = x;
    right = end;
  }
  if (right > left) ctx.fillRect(left, y, right - left, height);
  if (stack) paintShares(ctx, shares, y, height, stack);
}

// For each pixel of the width, and two to the right.
const newShares = () => new Float64Array(Math.ceil(view.width) + 3);

function paintShares(ctx, shares, y, height, stack, least = 2.5) {
  for (let place = 0; place < shares.length; place++) {
    if (!shares[place]) continue;
    const below = stack[place];
    const tall = Math.min(height - below, Math.max(least, shares[place] * height));
    if (tall > 0) ctx.fillRect(place, y + height - below - tall, 1, tall);
    stack[place] = below + tall;
  }
}

function drawLabels(ctx, marks, kind, y, height) {
  const { events, reach } = marks;
  const narrowest = (44 / (view.width - GUTTER)) * (view.to - view.from);
  ctx.font = `500 11px ${fontFamily()}`;
  ctx.textBaseline = "middle";
  let drawn = 0;
  for (let n = firstAtLeast(reach, view.from); n < events.length && drawn < 300; n++) {
    const i = events[n];
    if (column.start[i] > view.to) break;
    if (column.seconds[i] < narrowest || (search.active && !search.matches[i])) continue;
    drawn += 1;
    const what = text("buffer", i);
    inBar(ctx, `${kind}${what ? ` ${what}` : ""}  ${duration(column.seconds[i])}`,
      column.start[i], endOf(i), y, height, colours["on-bar"]);
  }
}

function inBar(ctx, words, start, end, y, height, colour) {
  const x = Math.max(GUTTER, pixel(start)), right = Math.min(view.width, pixel(end));
  if (right - x < 40) return;
  ctx.save();
  ctx.beginPath();
  ctx.rect(x, y, right - x - 3, height);
  ctx.clip();
  ctx.fillStyle = colour;
  ctx.fillText(words, x + 6, y + height / 2 + 0.5);
  ctx.restore();
}

function drawFlights(ctx, row) {
  ctx.font = `11px ${fontFamily()}`;
  ctx.textBaseline = "middle";
  let right = -Infinity, queued = -Infinity;
  for (const n of row.flights) {
    const flight = flights[n];
    if (flight.end < view.from || flight.submitted > view.to) continue;
    const x = Math.max(GUTTER - 2, pixel(flight.start));
    const end = Math.min(view.width + 2, Math.max(pixel(flight.end), x + 1));
    if (end <= right + 0.5) continue;
    // Submitted, but queued behind other work: a thin line that leads to the bar.
    const lead = Math.max(GUTTER - 2, pixel(flight.submitted), queued);
    if (x - lead > 1) {
      ctx.fillStyle = colours["flight-edge"];
      ctx.fillRect(lead, row.barY + BAR / 2, x - lead, 1);
    }
    ctx.fillStyle = colours.flight;
    ctx.fillRect(Math.max(x, right), row.barY, end - Math.max(x, right), BAR);
    if (end - x > 4) {
      ctx.fillStyle = colours["flight-edge"];
      ctx.fillRect(x, row.barY, 1.5, BAR);
      if (flight.seen) ctx.fillRect(end - 1.5, row.barY, 1.5, BAR);
      inBar(ctx, flightName(flight), flight.start, flight.end, row.barY, BAR, colours.ink);
    }
    right = queued = end;
  }
}

function flightName(flight) {
  const which = flight.last > flight.first ? `#${flight.first}–${flight.last}` : `#${flight.first}`;
  return `${which}  ${duration(flight.end - flight.start)}${flight.seen ? "" : ", not seen done"}`;
}

function drawDeviceWork(ctx, row) {
  if (!row.device.length) return;
  const shares = []; // by text of the kind, 0 for pale: how much of each pixel's time, as in `paint`
  const scale = (view.width - GUTTER) / (view.to - view.from);
  let right = -Infinity, labels = 0;
  ctx.font = `10px ${fontFamily()}`;
  ctx.textBaseline = "middle";
  row.deviceReach ??= reachOf(row.device);
  for (let n = firstAtLeast(row.deviceReach, view.from); n < row.device.length; n++) {
    const { event, start, end } = row.device[n];
    if (end < view.from) continue;
    if (start > view.to) break;
    const kind = kindOf(event);
    if (hidden.has(kind)) continue;
    const pale = search.active && !search.matches[event];
    // Commands without a barrier in between may overlap: the later is drawn where the earlier ends.
    const x = Math.max(GUTTER - 2, GUTTER + (start - view.from) * scale, right);
    const wide = GUTTER + (end - view.from) * scale - x;
    if (wide <= 0) continue;
    right = x + wide;
    if (wide < 2) {
      (shares[pale ? 0 : column.kind[event]] ??= newShares())[Math.floor(x)] += wide;
      continue;
    }
    const colour = pale ? colours.dim : colourOf(kind);
    ctx.fillStyle = colour;
    ctx.fillRect(x, row.deviceY, wide - (wide > 5 ? 1 : 0), DEVICE); // wide neighbours stay apart
    if (wide >= 40 && !pale && labels++ < 300) {
      inBar(ctx, deviceLabel(event, end - start), Math.max(start, timeAt(x)), end, row.deviceY,
        DEVICE, colours["on-bar"]);
    }
  }
  const stack = newShares();
  shares.forEach((places, which) => {
    ctx.fillStyle = which ? colourOf(texts[which]) : colours.dim;
    paintShares(ctx, places, row.deviceY, DEVICE, stack);
  });
}

// The running maximum of the ends of spans that are ordered by start, for searching.
function reachOf(spans) {
  let latest = -Infinity;
  return Float64Array.from(spans, ({ end }) => (latest = Math.max(latest, end)));
}

function deviceLabel(i, ns) {
  const what = kindOf(i) === "launch" ? text("reason", i) : `${kindOf(i)} ${text("buffer", i)}`;
  return `${duration(ns)}  ${what}`;
}

// The end of the trace. To the right of it only the device was still working.
function drawEnd(ctx) {
  if (total > traced && traced < view.to) {
    const x = Math.max(GUTTER, pixel(traced));
    ctx.fillStyle = colours.soft;
    ctx.globalAlpha = 0.1;
    ctx.fillRect(x, 0, view.width - x, ctx.canvas.height);
    ctx.globalAlpha = 1;
    ctx.fillRect(x, 0, 1, ctx.canvas.height);
    ctx.font = `10px ${fontFamily()}`;
    ctx.textBaseline = "middle";
    const words = "after the trace";
    if (x + 8 + ctx.measureText(words).width < view.width) ctx.fillText(words, x + 5, PAD);
  }
}

function drawSelection(ctx) {
  if (!selected) return;
  outline(ctx, selected);
  if (selected.gap !== undefined) {
    for (const i of [gap.before[selected.gap], gap.after[selected.gap]]) outlineDeviceWork(ctx, i);
  }
  if (selected.event === undefined) return;
  const i = selected.event;
  for (const point of awaitedBy(i)) {
    const found = flightOf(point.stream, point.submission);
    if (found >= 0) outline(ctx, { flight: found });
  }
  const own = column.stream[i] >= 0 ? flightOf(column.stream[i], column.submission[i]) : -1;
  if (own >= 0) outline(ctx, { flight: own });
  if (trace.device[i]) outlineDeviceWork(ctx, i);
}

function outline(ctx, thing) {
  const [start, end] = spanOf(thing);
  const row = rowOf(thing);
  const tick = thing.event !== undefined && end === start;
  const x = Math.max(GUTTER, pixel(start)), right = Math.min(view.width - 1, pixel(end));
  if (right < GUTTER || x > view.width) return;
  ctx.strokeStyle = colours.ink;
  ctx.lineWidth = 2;
  const y = tick ? row.tickY : row.barY;
  const height = tick ? TICK : row.type === "device" ? LANE : BAR;
  ctx.strokeRect(x - 2, y - 2, Math.max(2, right - x) + 4, height + 4);
}

function outlineDeviceWork(ctx, i) {
  if (!trace.device[i] || !streamRows[column.stream[i]]) return;
  const [begun, ns] = trace.device[i];
  const x = pixel(begun), right = pixel(begun + ns);
  if (right < GUTTER || x > view.width) return;
  const shown = Math.max(GUTTER, x);
  ctx.strokeRect(shown - 1, streamRows[column.stream[i]].deviceY - 1, Math.max(2, right - shown) + 2,
    DEVICE + 2);
}
