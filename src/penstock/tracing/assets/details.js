// The details panel: all fields of the selected event or flight.

function inWords(thing) {
  if (thing.flight !== undefined) {
    const flight = flights[thing.flight];
    return `flight ${flightName(flight)} on ${trace.streams[flight.stream].name}`;
  }
  const i = thing.event;
  const parts = [kindOf(i), whatOf(i), column.nbytes[i] ? bytes(column.nbytes[i]) : "",
    column.seconds[i] ? duration(column.seconds[i]) : "", text("reason", i)];
  return parts.filter(Boolean).join(", ");
}

function showDetails(thing) {
  const panel = byId("details");
  if (!thing) {
    panel.replaceChildren(element("p", "Choose an event on the timeline or a line of the receipt."));
    return;
  }
  panel.replaceChildren(...(thing.event !== undefined ? eventDetails(thing.event) : flightDetails(thing.flight)));
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
      ["Device start", device ? moment(device[0] * 1e9) : ""],
      ["Device time", device ? duration(device[1] * 1e9) : ""],
      ["Thread", `${thread.name} (${thread.id})`],
      ["Device", stream?.device],
      ["Stream", stream?.name],
      ["Place", own >= 0 ? [go(place, { flight: own })] : place],
      ["Event", `${number(i + 1)} of ${number(size)}`],
    ]),
  ];
}

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
