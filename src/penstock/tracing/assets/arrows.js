// Arrows: from a wait to what it waited for, and from a call to what the device ran for it.

// From each wait to what it waited for; if many are visible, only from the hovered or selected one.
function drawArrows(ctx) {
  if (hidden.has("wait")) return;
  const waits = [];
  for (const row of threadRows) {
    const marks = row.bars.wait;
    if (!marks) continue;
    for (let n = firstAtLeast(marks.reach, view.from); n < marks.events.length; n++) {
      const i = marks.events[n];
      if (column.start[i] > view.to || waits.length > 400) break;
      if (endOf(i) <= view.to && (!search.active || search.matches[i])) waits.push(i);
    }
  }
  const looked = [hovered?.event, selected?.event];
  const all = waits.length <= 60;
  ctx.save();
  ctx.beginPath();
  ctx.rect(GUTTER, 0, view.width - GUTTER, ctx.canvas.height);
  ctx.clip();
  for (const i of waits) {
    if (all || looked.includes(i)) drawArrow(ctx, i, looked.includes(i));
  }
  for (const i of looked) {
    if (i !== undefined && kindOf(i) === "submission") drawArrow(ctx, i, true);
  }
  ctx.restore();
}

function drawArrow(ctx, i, strong) {
  const from = threadRows[column.thread[i]];
  ctx.strokeStyle = ctx.fillStyle = kindOf(i) === "wait" ? colours.wait : colours.soft;
  ctx.globalAlpha = strong ? 1 : 0.55;
  ctx.lineWidth = strong ? 2 : 1.25;
  for (const point of awaitedBy(i)) {
    const found = flightOf(point.stream, point.submission);
    if (found < 0) continue;
    const to = streamRows[point.stream];
    const tipX = Math.min(pixel(flights[found].end), pixel(endOf(i))) - 1;
    curve(ctx, pixel(endOf(i)) - 1, from.barY + BAR, tipX, to.barY - 1);
  }
  ctx.globalAlpha = 1;
}

function curve(ctx, x, y, tipX, tipY) {
  ctx.beginPath();
  ctx.moveTo(x, y);
  ctx.bezierCurveTo(x, y + (tipY - y) * 0.4, tipX, tipY - (tipY - y) * 0.4, tipX, tipY - 5);
  ctx.stroke();
  ctx.beginPath();
  ctx.moveTo(tipX, tipY);
  ctx.lineTo(tipX - 4, tipY - 7);
  ctx.lineTo(tipX + 4, tipY - 7);
  ctx.fill();
}

const MOST_ARROWS = 200;

// What the device ran for a thing: an event's command, all of a submission, the two around a gap.
function ranFor(thing) {
  if (!thing) return [];
  const { event, gap: g, flight } = thing;
  if (flight !== undefined) {
    const { stream, first, last } = flights[flight];
    return commandsOf(stream, first, last);
  }
  if (g !== undefined) return [gap.before[g], gap.after[g]].filter((i) => trace.device[i]);
  if (kindOf(event) === "submission") return commandsOf(column.stream[event], column.submission[event]);
  return trace.device[event] ? [event] : [];
}

// From the call that issued a command to the command, for what is hovered and what is selected.
function drawIssued(ctx) {
  const found = new Set([...ranFor(hovered), ...ranFor(selected)].slice(0, MOST_ARROWS));
  if (!found.size) return;
  ctx.save();
  ctx.beginPath();
  ctx.rect(GUTTER, 0, view.width - GUTTER, ctx.canvas.height);
  ctx.clip();
  ctx.lineWidth = 1.5;
  for (const i of found) {
    const row = streamRows[column.stream[i]];
    if (!row || hidden.has(kindOf(i))) continue;
    ctx.strokeStyle = ctx.fillStyle = colourOf(kindOf(i));
    const called = Math.min(pixel(column.start[i]) + 1, pixel(column.start[i] + column.seconds[i] / 2) + 0.5);
    const from = threadRows[column.thread[i]];
    const begun = trace.device[i][0];
    curve(ctx, called, from.barY + BAR, pixel(begun) + 0.5, row.deviceY - 1);
  }
  ctx.restore();
}
