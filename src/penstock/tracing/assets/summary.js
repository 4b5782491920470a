// Above the timeline: the verdict, the largest causes, what to do; and the table of kernels.

const LARGEST = 3; // causes below the verdict
const KERNELS = 8; // lines of the table before "Show all"

function showVerdict() {
  const known = trace.span !== null;
  byId("verdict-title").textContent = sentence(trace.verdict);
  byId("causes").replaceChildren(...causes.slice(0, LARGEST).map(causeLine));
  const rest = trace.advice.filter((each) => !causes.slice(0, LARGEST).some(({ cause }) => cause === each.cause));
  byId("advice").replaceChildren(...rest.map((each) => {
    const line = adviceLine(each, "li");
    line.prepend(swatch(each.cause), ` ${causeLabel(each.cause)} `);
    return line;
  }));
  byId("advice").hidden = !rest.length;
  if (known) showShares();
  const clocks = trace.devices.filter(({ clock }) => clock).map(({ name, clock }) =>
    `${name}: ${clock.how}${clock.error === null ? "" : `, ±${duration(clock.error * 1e9)}`}`);
  byId("clocks").textContent = [
    clocks.length ? `Device times of ${clocks.join("; ")}.` : "",
    `The trace itself cost ${trace.cost.sentence}.`,
  ].filter(Boolean).join(" ");
}

// A line for a cause: it goes to the longest gap of that cause.
function causeLine({ cause, seconds, largest }, index) {
  const line = element("li");
  const button = element("button", "", "cause");
  button.type = "button";
  button.title = "Go to the longest gap with this cause";
  button.dataset.cause = cause;
  button.append(swatch(cause), element("b", duration(seconds * 1e9)), element("span", largest));
  button.addEventListener("click", () => {
    const found = longestGap(index);
    if (found >= 0) goTo(size + found);
  });
  line.append(button);
  const advice = trace.advice.find((each) => each.cause === cause);
  if (advice) line.append(adviceLine(advice, "p"));
  return line;
}

function adviceLine({ seconds, sentence: words }, name) {
  const line = element(name, "", "advice");
  line.append(...withCode(`→ ${sentence(`${words} (up to ${duration(seconds * 1e9)})`)}`));
  return line;
}

// The longest gap of a cause, or that with the longest part of it.
function longestGap(cause) {
  let best = -1, longest = -1;
  for (let g = 0; g < gapCount; g++) {
    let length = gap.cause[g] === cause ? gap.seconds[g] + total : 0;
    for (let p = gap.firstPart[g]; !length && p < gap.firstPart[g] + gap.parts[g]; p++) {
      if (part.cause[p] === cause) length = part.seconds[p];
    }
    if (length > longest) [best, longest] = [g, length];
  }
  return best;
}

// One bar: how the span divides into busy time and causes.
function showShares() {
  const bar = byId("shares");
  const pieces = [["busy", trace.busy], ...causes.map(({ cause, seconds }) => [cause, seconds])];
  for (const [name, seconds] of pieces) {
    const piece = swatch(name);
    piece.style.flexGrow = String(1e3 * seconds / (trace.span || 1)); // growing by less than 1 leaves room
    bar.append(piece);
  }
  bar.ariaLabel = pieces.map(([name, seconds]) =>
    `${name === "busy" ? name : causeLabel(name)} ${share(seconds, trace.span)}`).join(", ");
  bar.hidden = false;
}

// The colours of the lanes. Pressing one hides or shows the gaps of that cause.
function showLegend() {
  const legend = byId("legend");
  legend.hidden = !deviceRows.some((row) => row.known);
  const busy = element("span", "", "key");
  busy.append(swatch("busy"), "busy", element("b", duration((trace.busy ?? 0) * 1e9)));
  legend.append(busy);
  causes.forEach(({ cause, seconds, sentence: words }, index) => {
    const button = element("button", "", "key");
    button.type = "button";
    button.dataset.legend = cause;
    button.title = sentence(words);
    button.ariaPressed = "true";
    button.append(swatch(cause), causeLabel(cause), element("b", duration(seconds * 1e9)));
    button.addEventListener("click", () => {
      if (!hiddenCauses.delete(index)) hiddenCauses.add(index);
      button.ariaPressed = String(!hiddenCauses.has(index));
      redraw();
    });
    legend.append(button);
  });
}

function showKernels(all = false) {
  const kernels = trace.kernels;
  byId("kernels-section").hidden = !kernels.length;
  const several = trace.devices.length > 1;
  const columns = [["Kernel"], ...(several ? [["Device"]] : []), ["Launches", "number"],
    ["Total", "number"], ["Median", "number"], ["Share of busy", "number", "Of the time in which the device ran anything; launches that overlap count in full"],
    ["Bytes per s", "number", "Of the arrays bound, whether or not the kernel touches all of them"],
    ["Compiled in", "number", "Host time during the trace"]];
  byId("kernels").tHead.rows[0].replaceChildren(...columns.map(([name, kind = "", note = ""]) => {
    const cell = element("th", name, kind);
    cell.title = note;
    cell.scope = "col";
    return cell;
  }));
  const shown = all ? kernels : kernels.slice(0, KERNELS);
  byId("kernels").tBodies[0].replaceChildren(...shown.map((kernel) => kernelRow(kernel, several)));
  const more = byId("more-kernels");
  more.hidden = shown.length === kernels.length;
  more.textContent = `Show all ${number(kernels.length)} kernels`;
  more.onclick = () => showKernels(true);
}

function kernelRow(kernel, several) {
  const row = element("tr");
  const button = element("button", kernel.name || "(no name)");
  button.type = "button";
  button.title = "Search for its launches";
  button.style.setProperty("--kind", "var(--launch)");
  const first = element("td", "", "what");
  first.append(button);
  row.append(
    first,
    ...(several ? [element("td", kernel.device, "what")] : []),
    element("td", number(kernel.launches), "number"),
    element("td", duration(kernel.seconds * 1e9), "number"),
    element("td", duration(kernel.median * 1e9), "number"),
    element("td", share(kernel.share, 1), "number"),
    element("td", kernel.bytes_per_second ? `${bytes(Math.round(kernel.bytes_per_second))}/s` : "", "number"),
    element("td", kernel.compile_seconds ? duration(kernel.compile_seconds * 1e9) : "", "number"),
  );
  row.addEventListener("click", () => {
    byId("query").value = kernel.name;
    runSearch(kernel.name);
  });
  return row;
}
