// The page's behaviour: counts, pointer, keys, light and dark.

function showAbout() {
  const when = new Date(trace.recorded);
  byId("about").textContent = `${duration(traced)} · ${number(size)} events · ` +
    `${when.toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" })} · ` +
    `penstock ${trace.penstock}`;
}

function showCounts() {
  const counts = counted();
  const singular = Object.fromEntries(KINDS.map(([kind, plural]) => [plural, kind]));
  for (const name of COUNTED) {
    const kind = singular[name];
    const button = element("button", "", !counts[name] ? "none" : kind === "wait" ? "loud" : "");
    button.type = "button";
    button.dataset.count = name;
    button.ariaPressed = "true";
    button.style.setProperty("--kind", `var(--${kind})`);
    button.append(element("b", number(counts[name])), element("span", name));
    if (kind === "copy") {
      const copied = element("span", bytes(counts.bytes_copied));
      copied.dataset.bytes = counts.bytes_copied;
      button.append(copied);
    }
    button.addEventListener("click", () => {
      if (!hidden.delete(kind)) hidden.add(kind);
      button.ariaPressed = String(!hidden.has(kind));
      overviewPicture = null;
      fillTable();
      redraw();
    });
    byId("counts").append(button);
  }
}

// The pointer.

function followPointer() {
  const chart = byId("chart"), overview = byId("overview");
  let drag = null;
  chart.addEventListener("wheel", (event) => {
    event.preventDefault();
    const wide = view.width - GUTTER;
    if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      pan((event.deltaX || event.deltaY) / wide);
    } else {
      zoom(1.0016 ** event.deltaY, Math.max(view.from, timeAt(event.offsetX)));
    }
    point(event); // something else is under it now
  }, { passive: false });
  chart.addEventListener("pointerdown", (event) => {
    drag = { x: event.clientX, y: event.clientY, from: view.from, top: byId("rows").scrollTop, moved: false };
    chart.setPointerCapture(event.pointerId);
  });
  chart.addEventListener("pointermove", (event) => {
    if (!drag) {
      point(event);
      return;
    }
    const byX = event.clientX - drag.x, byY = event.clientY - drag.y;
    drag.moved ||= Math.hypot(byX, byY) > 3;
    if (!drag.moved) return;
    chart.classList.add("dragging");
    const span = view.to - view.from;
    const from = drag.from - (byX / (view.width - GUTTER)) * span;
    const start = Math.min(Math.max(from, 0), total - span);
    byId("rows").scrollTop = drag.top - byY;
    hideTip();
    show(start, start + span);
  });
  const release = (event) => {
    chart.classList.remove("dragging");
    if (drag && !drag.moved && event.type === "pointerup") select(thingAt(event.offsetX, event.offsetY));
    drag = null;
  };
  chart.addEventListener("pointerup", release);
  chart.addEventListener("pointercancel", release);
  chart.addEventListener("pointerleave", () => {
    hovered = null;
    hideTip();
    redraw();
  });
  chart.addEventListener("dblclick", (event) => {
    const thing = thingAt(event.offsetX, event.offsetY);
    if (thing) zoomTo(thing);
  });
  const toOverview = (event) => {
    const middle = ((event.offsetX - GUTTER) / (view.width - GUTTER)) * total;
    const span = view.to - view.from;
    show(middle - span / 2, middle + span / 2);
  };
  overview.addEventListener("pointerdown", (event) => {
    overview.setPointerCapture(event.pointerId);
    toOverview(event);
  });
  overview.addEventListener("pointermove", (event) => {
    if (event.buttons) toOverview(event);
  });
}

function point(event) {
  const thing = thingAt(event.offsetX, event.offsetY);
  byId("chart").classList.toggle("pointing", Boolean(thing));
  if (!isSame(thing, hovered)) redraw();
  hovered = thing;
  if (!thing) {
    hideTip();
    return;
  }
  const tip = byId("tip");
  const [head, ...rest] = tipLines(thing);
  tip.replaceChildren(element("b", head), ...rest.filter(Boolean).map((line) => element("div", line)));
  tip.hidden = false;
  const left = Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 8);
  const below = event.clientY + 18 + tip.offsetHeight < window.innerHeight;
  tip.style.left = `${Math.max(4, left)}px`;
  tip.style.top = `${below ? event.clientY + 18 : event.clientY - tip.offsetHeight - 12}px`;
}

function tipLines(thing) {
  if (thing.flight !== undefined) {
    const flight = flights[thing.flight];
    return [`flight ${flightName(flight)}`, trace.streams[flight.stream].name];
  }
  if (thing.gap !== undefined) {
    const g = thing.gap;
    const lines = texts[gap.lines[g]].split("\n").map(shortLine).join(" to ");
    return [`gap of ${duration(gap.seconds[g])}: ${causeLabel(causeOf(g))}`,
      causes[gap.cause[g]].sentence, texts[gap.detail[g]], lines];
  }
  const i = thing.event;
  const time = column.seconds[i] ? duration(column.seconds[i]) : "";
  const device = trace.device[i];
  const amount = column.nbytes[i] ? bytes(column.nbytes[i]) : "";
  return [
    [kindOf(i), whatOf(i), amount, time].filter(Boolean).join("  "),
    text("reason", i), device ? `${duration(device[1])} on the device` : "",
    shortLine(text("where", i)),
  ];
}

function hideTip() {
  byId("tip").hidden = true;
}

function zoomTo(thing) {
  const [start, end] = spanOf(thing);
  const margin = Math.max((end - start) * 0.6, SHORTEST * 20);
  select(thing);
  show(start - margin, end + margin);
}

// The keys.

const KEYS = {
  "+": () => zoom(0.6), "=": () => zoom(0.6), "-": () => zoom(1 / 0.6), "−": () => zoom(1 / 0.6),
  "0": () => show(0, total),
  ArrowLeft: () => pan(-0.15), ArrowRight: () => pan(0.15),
  ArrowUp: () => byId("rows").scrollBy(0, -50), ArrowDown: () => byId("rows").scrollBy(0, 50),
  Home: () => show(0, view.to - view.from), End: () => show(total - (view.to - view.from), total),
  z: () => selected && zoomTo(selected),
  w: () => stepThrough(orderedWaits(), 1), W: () => stepThrough(orderedWaits(), -1),
  g: () => stepThrough(orderedGaps(), 1), G: () => stepThrough(orderedGaps(), -1),
  "]": () => nextInRow(1), "[": () => nextInRow(-1),
  n: () => jump(1), N: () => jump(-1), p: () => jump(-1),
  "/": () => byId("query").select(),
  t: () => switchTheme(),
  "?": () => byId("help").showModal(),
  Escape: () => clearAll(),
};

function clearAll() {
  byId("query").value = "";
  if (search.active) runSearch("");
  select(null);
}

function followKeys() {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || byId("help").open) return;
    const typing = event.target === byId("query");
    if (typing) {
      if (event.key === "Escape") {
        clearAll();
        byId("chart").focus();
      }
      return;
    }
    // The arrow keys scroll the page, and Enter presses buttons, unless the chart has the focus.
    const onPage = event.target === document.body || event.target === byId("chart");
    if (event.key === "Enter" && onPage) jump(event.shiftKey ? -1 : 1);
    else if (/^(Arrow|Home|End)/.test(event.key) && !onPage) return;
    else if (KEYS[event.key]) KEYS[event.key]();
    else return;
    event.preventDefault();
  });
  byId("search").addEventListener("submit", (event) => event.preventDefault());
  byId("query").addEventListener("input", () => runSearch(byId("query").value));
  byId("query").addEventListener("keydown", (event) => {
    if (event.key === "Enter") jump(event.shiftKey ? -1 : 1);
  });
  const buttons = {
    "next": () => jump(1), "previous": () => jump(-1), "zoom-in": () => zoom(0.6),
    "zoom-out": () => zoom(1 / 0.6), "fit": () => show(0, total), "theme": switchTheme,
    "help-button": () => byId("help").showModal(),
  };
  for (const [id, action] of Object.entries(buttons)) byId(id).addEventListener("click", action);
}

// Light and dark: the system's setting, until the user chooses.

const prefersDark = matchMedia("(prefers-color-scheme: dark)");

function setTheme(name) {
  document.documentElement.dataset.theme = name;
  readColours();
  redraw();
}

function switchTheme() {
  setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
}

setTheme(prefersDark.matches ? "dark" : "light");
prefersDark.addEventListener("change", () => setTheme(prefersDark.matches ? "dark" : "light"));
showAbout();
showVerdict();
showLegend();
showCounts();
showKernels();
makeTableHead();
fillTable();
showDetails(null);
followPointer();
followKeys();
byId("rows").addEventListener("scroll", redraw);
new ResizeObserver(() => {
  layOut();
  redraw();
}).observe(byId("timeline"));
layOut();
drawNow();

// For tests, and for debugging in the browser's tools.
window.penstock = {
  trace, column, flights, gap, part, causes, texts, ranFor, view, search, frames, counted, select, show, zoom, redraw, drawNow,
  pixel, thingAt, rowOf, layout: () => shownRows.map(({ type, name, y, barY, deviceY, tickY }) =>
    ({ type, name, y, barY, deviceY, tickY })),
  state: () => ({ selected, hovered, hidden: [...hidden], hiddenCauses: [...hiddenCauses].map(causeAt), theme: document.documentElement.dataset.theme }),
};
