// The axis, and the overview of the whole trace: how much happened when, and waiting in red.

// Round times for the axis, about one every hundred pixels.
function axisSteps() {
  const span = view.to - view.from;
  const rough = span / Math.max(2, (view.width - GUTTER) / 110);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((digit) => digit * power >= rough) * power;
  const times = [];
  for (let time = Math.ceil(view.from / step) * step; time <= view.to; time += step) times.push(time);
  return { step, times };
}

function axisLabel(time, step) {
  const [unit, name] = step >= 1e8 ? [1e9, "s"] : step >= 1e5 ? [1e6, "ms"] : step >= 100
    ? [1e3, "µs"] : [1, "ns"];
  const digits = Math.max(0, Math.ceil(-Math.log10(step / unit) - 1e-9));
  return `${(time / unit).toFixed(digits)} ${name}`;
}

function drawAxis() {
  const ctx = context("axis");
  const { step, times } = axisSteps();
  ctx.font = `11px ${fontFamily()}`;
  ctx.textBaseline = "middle";
  ctx.fillStyle = colours.soft;
  const room = GUTTER < 178 ? "" : " shown";
  ctx.fillText(`${duration(view.to - view.from)}${room}`, nameX(), 12);
  for (const time of times) {
    const x = Math.round(pixel(time));
    ctx.fillStyle = colours.line;
    ctx.fillRect(x, 0, 1, 24);
    ctx.fillStyle = colours.soft;
    const label = axisLabel(time, step);
    if (x + 6 + ctx.measureText(label).width < view.width) ctx.fillText(label, x + 5, 12);
  }
}

let overviewPicture = null;

function drawOverview() {
  const ctx = context("overview");
  overviewPicture ??= overviewBars();
  const { waits, others, most } = overviewPicture;
  const wide = view.width - GUTTER;
  ctx.font = `11px ${fontFamily()}`;
  ctx.textBaseline = "middle";
  ctx.fillStyle = colours.soft;
  ctx.fillText(`${duration(total)} in all`, nameX(), 20);
  for (let x = 0; x < wide; x++) {
    if (others[x]) {
      const height = 3 + 29 * Math.sqrt(others[x] / most);
      ctx.fillStyle = colours.barrier;
      ctx.fillRect(GUTTER + x, 36 - height, 1, height);
    }
    if (waits[x]) {
      ctx.fillStyle = colours.wait;
      const height = 2 + 10 * Math.min(1, waits[x]);
      ctx.fillRect(GUTTER + x, 36 - height, 1, height);
    }
  }
  const left = GUTTER + (view.from / total) * wide, right = GUTTER + (view.to / total) * wide;
  ctx.fillStyle = colours.panel;
  ctx.globalAlpha = 0.66;
  ctx.fillRect(GUTTER, 0, left - GUTTER, 40);
  ctx.fillRect(right, 0, view.width - right, 40);
  ctx.globalAlpha = 1;
  ctx.strokeStyle = colours.accent;
  ctx.lineWidth = 1.5;
  ctx.strokeRect(left + 0.75, 1, Math.max(2, right - left - 1.5), 38);
}

function overviewBars() {
  const wide = Math.max(1, Math.ceil(view.width - GUTTER));
  const waits = new Float64Array(wide), others = new Float64Array(wide);
  const place = (time) => Math.min(wide - 1, Math.max(0, Math.floor((time / total) * wide)));
  for (let i = 0; i < size; i++) {
    const kind = kindOf(i);
    if (kind === "done" || hidden.has(kind) || (search.active && !search.matches[i])) continue;
    if (kind !== "wait") {
      others[place(column.start[i])] += 1;
      continue;
    }
    const first = place(column.start[i]), last = place(endOf(i));
    if (first === last) waits[first] += (column.seconds[i] / total) * wide;
    else waits.fill(1, first, last + 1);
  }
  return { waits, others, most: Math.max(1, ...others) };
}
