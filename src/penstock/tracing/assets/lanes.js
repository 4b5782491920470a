// The lane of a device: grey where it was busy, and each gap in the colour of its cause.

const causeFill = {}; // by cause: a colour or a hatched pattern
const causePlain = {}; // the colour alone
const causeInk = {}; // for text on it

function readCauseColours(style) {
  for (const name of [...Object.keys(CAUSES), ...Object.keys(HATCHED)]) {
    const colour = style.getPropertyValue(`--cause-${name}`).trim();
    causePlain[name] = colour;
    causeFill[name] = name in HATCHED ? hatched(colour) : colour;
    causeInk[name] = isDark(colour) ? "#ffffff" : "#14171a";
  }
}

function isDark(colour) {
  const [red, green, blue] = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
  return 0.299 * red + 0.587 * green + 0.114 * blue < 140;
}

function hatched(colour) {
  const tile = element("canvas");
  tile.width = tile.height = 8;
  const ctx = tile.getContext("2d");
  ctx.fillStyle = colour;
  ctx.fillRect(0, 0, 8, 8);
  ctx.strokeStyle = colours.panel;
  ctx.lineWidth = 2;
  for (const from of [-8, 0, 8]) {
    ctx.moveTo(from, 8);
    ctx.lineTo(from + 8, 0);
  }
  ctx.stroke();
  return ctx.createPattern(tile, "repeat");
}

const causeAt = (index) => causes[index].cause;
const isPale = (g) => search.active && !search.gaps[g];

function drawLane(ctx, row) {
  if (row.type !== "device" || row.end < view.from || row.start > view.to) return;
  const left = Math.max(GUTTER - 2, pixel(row.start)), right = Math.min(view.width + 2, pixel(row.end));
  ctx.fillStyle = colours.busy;
  ctx.fillRect(left, row.barY, Math.max(1, right - left), LANE);
  row.reach ??= Float64Array.from(row.gaps, (g) => gap.end[g]);
  const scale = (view.width - GUTTER) / (view.to - view.from);
  const shares = []; // by cause: how much of each pixel's time, as for other narrow bars
  let labels = 0;
  for (let n = firstAtLeast(row.reach, view.from); n < row.gaps.length; n++) {
    const g = row.gaps[n];
    if (gap.start[g] > view.to) break;
    const x = Math.max(GUTTER - 2, GUTTER + (gap.start[g] - view.from) * scale);
    const wide = GUTTER + (gap.end[g] - view.from) * scale - x;
    if (wide >= 3) {
      drawGap(ctx, row, g, x, Math.min(wide, view.width + 2 - x), labels++ < 300);
      continue;
    }
    const which = hiddenCauses.has(gap.cause[g]) ? causes.length : isPale(g) ? causes.length + 1 : gap.cause[g];
    (shares[which] ??= newShares())[Math.floor(x)] += wide;
  }
  const stack = newShares();
  shares.forEach((places, which) => {
    ctx.fillStyle = [...causes.map(({ cause }) => causePlain[cause]), colours.panel, colours.dim][which];
    paintShares(ctx, places, row.barY, LANE, stack, 0.5);
  });
}

function drawGap(ctx, row, g, x, wide, labelled) {
  const name = causeOf(g), y = row.barY;
  ctx.fillStyle = colours.panel;
  ctx.fillRect(x, y, wide, LANE);
  if (hiddenCauses.has(gap.cause[g])) return;
  ctx.fillStyle = isPale(g) ? colours.dim : causeFill[name];
  const inner = wide > 8 ? 1 : 0; // wide neighbours stay apart
  ctx.fillRect(x + inner, y, wide - 2 * inner, LANE);
  if (isPale(g)) return;
  if (wide >= 14 && gap.parts[g] > 1) drawParts(ctx, g, y + LANE - 5);
  const words = `${causeLabel(name)}  ${duration(gap.seconds[g])}`;
  if (wide < 44 || !labelled) return;
  ctx.font = `500 11px ${fontFamily()}`;
  ctx.textBaseline = "middle";
  const right = x + wide, shown = Math.max(x, GUTTER);
  if (name in HATCHED) {
    ctx.fillStyle = causePlain[name];
    ctx.fillRect(shown + 3, y + 2, Math.min(ctx.measureText(words).width + 6, right - shown - 6), LANE - 9);
  }
  inBar(ctx, words, timeAt(shown), timeAt(right), y, LANE - 4, causeInk[name]);
}

// A strip at the foot of a gap: its parts, each in the colour of its own cause.
function drawParts(ctx, g, y) {
  ctx.fillStyle = colours.panel;
  const left = Math.max(GUTTER - 2, pixel(gap.start[g])), right = Math.min(view.width + 2, pixel(gap.end[g]));
  ctx.fillRect(left, y - 1, right - left, 6);
  for (let p = gap.firstPart[g]; p < gap.firstPart[g] + gap.parts[g]; p++) {
    const x = Math.max(left, pixel(part.start[p])), end = Math.min(right, pixel(part.start[p] + part.seconds[p]));
    if (end <= x || hiddenCauses.has(part.cause[p])) continue;
    ctx.fillStyle = causeFill[causeAt(part.cause[p])];
    ctx.fillRect(x, y, Math.max(0.5, end - x), 5);
  }
}

// What is on a device's lane at a time: a gap, or else the command that it was busy with.
function onLane(row, time, slack) {
  let best = null, distance = slack;
  row.reach ??= Float64Array.from(row.gaps, (g) => gap.end[g]);
  for (let n = firstAtLeast(row.reach, time - slack); n < row.gaps.length; n++) {
    const g = row.gaps[n];
    if (gap.start[g] > time + slack) break;
    const away = Math.max(0, gap.start[g] - time, time - gap.end[g]);
    if (away < distance && !hiddenCauses.has(gap.cause[g])) {
      best = { gap: g };
      distance = away;
    }
  }
  if (best) return best;
  for (const stream of streamRows) {
    if (stream.note !== row.name) continue;
    const work = nearest(stream.device, time, slack);
    if (work) return { event: work.event };
  }
  return null;
}
