// The details panel: all fields of the selected event, flight or gap.

function inWords(thing) {
  if (thing.flight !== undefined) {
    const flight = flights[thing.flight];
    return `flight ${flightName(flight)} on ${trace.streams[flight.stream].name}`;
  }
  if (thing.gap !== undefined) {
    const g = thing.gap;
    return `gap of ${duration(gap.seconds[g])}, ${causeLabel(causeOf(g))}: ${causes[gap.cause[g]].sentence}`;
  }
  const i = thing.event;
  const parts = [kindOf(i), whatOf(i), column.nbytes[i] ? bytes(column.nbytes[i]) : "",
    column.seconds[i] ? duration(column.seconds[i]) : "", text("reason", i)];
  return parts.filter(Boolean).join(", ");
}

function showDetails(thing) {
  const panel = byId("details");
  if (!thing) {
    panel.replaceChildren(element("p", "Choose an event or a gap on the timeline, a cause, or a line of the receipt."));
    return;
  }
  if (thing.event !== undefined) panel.replaceChildren(...eventDetails(thing.event));
  else if (thing.gap !== undefined) panel.replaceChildren(...gapDetails(thing.gap));
  else panel.replaceChildren(...flightDetails(thing.flight));
}

function heading(words, colour) {
  const head = element("h3", words);
  head.style.setProperty("--kind", colour);
  return head;
}

function list(entries) {
  const made = element("dl");
  for (const [name, value] of entries) {
    if (!value || value.length === 0) continue;
    const cell = element("dd");
    cell.append(...(Array.isArray(value) ? value : [value]));
    made.append(element("dt", name), cell);
  }
  return made;
}

function go(words, thing) {
  const button = element("button", words, "go");
  button.type = "button";
  button.addEventListener("click", () => {
    select(thing);
    reveal(thing);
  });
  return button;
}

function eventDetails(i) {
  const buffer = text("buffer", i);
  const stream = column.stream[i] >= 0 ? trace.streams[column.stream[i]] : null;
  const thread = trace.threads[column.thread[i]];
  const device = trace.device[i];
  const own = stream ? flightOf(column.stream[i], column.submission[i]) : -1;
  const place = stream && `submission ${column.submission[i]}` +
    (column.command[i] ? `, command ${column.command[i]}` : "");
  return [
    heading(kindOf(i), colourName(kindOf(i))),
    element("p", text("reason", i)),
    list([
      ["Waited for", awaitedBy(i).map(awaitedButton)],
      ["Line", text("where", i) && element("span", text("where", i), "line")],
      ["Buffer", buffer && `${buffer}[${number(column.lo[i])}:${number(column.hi[i])}]`],
      ["Bytes", column.nbytes[i] ? `${number(column.nbytes[i])} (${bytes(column.nbytes[i])})` : ""],
      ["Path", text("path", i)],
      ["Start", moment(column.start[i])],
      ["Host time", column.seconds[i] ? duration(column.seconds[i]) : ""],
      ["Device start", device ? moment(device[0]) : ""],
      ["Device time", device ? duration(device[1]) : ""],
      ["Ended", gapEndedBy.has(i) ? [gapButton(gapEndedBy.get(i))] : ""],
      ["Thread", `${thread.name} (${thread.id})`],
      ["Device", stream?.device],
      ["Stream", stream?.name],
      ["Place", own >= 0 ? [go(place, { flight: own })] : place],
      ["Event", `${number(i + 1)} of ${number(size)}`],
    ]),
  ];
}

const gapButton = (g) => go(`gap of ${duration(gap.seconds[g])}: ${causeLabel(causeOf(g))}`, { gap: g });
const eventButton = (i) => go(`${kindOf(i)} ${text("reason", i)}`, { event: i });

function linesOf(index) {
  return texts[index].split("\n").filter(Boolean).map((each) => element("div", each, "line"));
}

function gapDetails(g) {
  const cause = causes[gap.cause[g]];
  const head = element("h3", `gap: ${causeLabel(cause.cause)}`, "gap");
  head.prepend(swatch(cause.cause));
  const proof = trace.proof[g] ?? [];
  const told = trace.advice.filter((_, n) => gap.advice[g] & (1 << n)).map((advice) => {
    const line = element("div");
    line.append(...withCode(sentence(advice.sentence)));
    return line;
  });
  return [
    head,
    element("p", sentence(cause.sentence)),
    list([
      ["Idle", duration(gap.seconds[g])],
      ["What to do", told],
      ["Lines", linesOf(gap.lines[g])],
      ["In detail", texts[gap.detail[g]]],
      ["Start", moment(gap.start[g])],
      ["Before", [eventButton(gap.before[g])]],
      ["After", [eventButton(gap.after[g])]],
      ["Shown by", proof.map(eventButton)],
      ["Device", trace.devices[gap.device[g]].name],
      ["Stream", trace.streams[gap.stream[g]]?.name],
      ["Parts", partsOf(g)],
      ["Gap", `${number(g + 1)} of ${number(gapCount)}`],
    ]),
  ];
}

// The parts of a gap in order, with their own causes.
function partsOf(g) {
  const made = [];
  for (let p = gap.firstPart[g]; p < gap.firstPart[g] + gap.parts[g]; p++) {
    if (made.length === 20) {
      made.push(element("div", `and ${number(gap.parts[g] - 20)} more`));
      break;
    }
    const { cause } = causes[part.cause[p]];
    const row = element("div", "", "part");
    const lines = texts[part.lines[p]].split("\n").map(shortLine).join(" to ");
    row.append(swatch(cause), `${duration(part.seconds[p])}  ${causeLabel(cause)}`,
      element("span", [texts[part.detail[p]], lines].filter(Boolean).join(" · "), "soft"));
    made.push(row);
  }
  return made;
}

const sentence = (words) => words ? `${words[0].toUpperCase()}${words.slice(1)}.` : "";

function awaitedButton(point) {
  const name = trace.streams[point.stream].name;
  const words = `${point.what ? `${point.what}, ` : ""}submission ${point.submission} of ${name}`;
  const found = flightOf(point.stream, point.submission);
  return found < 0 ? element("div", `${words}, from before the trace`) : go(words, { flight: found });
}

function flightDetails(n) {
  const flight = flights[n];
  const stream = trace.streams[flight.stream];
  const inside = [], waits = [];
  for (let i = 0; i < size; i++) {
    const its = column.stream[i] === flight.stream &&
      column.submission[i] >= flight.first && column.submission[i] <= flight.last;
    if (its && kindOf(i) !== "done" && kindOf(i) !== "barrier") inside.push(i);
    if (kindOf(i) === "wait" && awaitedBy(i).some((point) => point.stream === flight.stream &&
      point.submission >= flight.first && point.submission <= flight.last)) waits.push(i);
  }
  const shown = (numbers) => [
    ...numbers.slice(0, 12).map((i) => go(`${kindOf(i)} ${text("reason", i)}`, { event: i })),
    ...(numbers.length > 12 ? [element("div", `and ${number(numbers.length - 12)} more`)] : []),
  ];
  return [
    heading(flight.last > flight.first ? `submissions ${flight.first} to ${flight.last}`
      : `submission ${flight.first}`, "var(--flight-edge)"),
    element("p", flight.seen
      ? "In flight: from when it could start to when the host saw that it was done."
      : "In flight; the trace ended before the host saw that it was done."),
    list([
      ["Stream", stream.name], ["Device", stream.device],
      ["Handed over", moment(flight.submitted)],
      ["Start", `${moment(flight.start)}, at the earliest`],
      ["Seen done", flight.seen ? moment(flight.end) : ""],
      ["Longest", duration(flight.end - flight.start)],
      ["Waited for by", waits.length ? shown(waits) : ""],
      ["Commands", inside.length ? shown(inside) : ""],
    ]),
  ];
}
