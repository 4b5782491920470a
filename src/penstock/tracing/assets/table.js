// The receipt as a table: similar events share a line, and the most expensive come first.

const COLUMNS = [
  ["kind", "Kind", false], ["what", "What", false], ["count", "Times", true],
  ["time", "Host time", true], ["bytes", "Bytes", true], ["line", "Line", false],
  ["reason", "Reason", false],
];
const SHOWN = 60;
const sorting = { by: "time", down: true, all: false };
const folder = commonFolder();

// The common prefix of all source lines is left out.
function commonFolder() {
  const files = new Set(Array.from(new Set(column.where), (n) => texts[n]).filter(Boolean));
  let common = null;
  for (const file of files) {
    const path = file.slice(0, file.lastIndexOf("/") + 1);
    if (common === null) common = path;
    while (!path.startsWith(common)) common = common.slice(0, common.lastIndexOf("/", common.length - 2) + 1);
  }
  return common ?? "";
}

const shortLine = (where) => where.startsWith(folder) ? where.slice(folder.length) : where;

function groups() {
  const found = new Map();
  for (let i = 0; i < size; i++) {
    const kind = kindOf(i);
    if (kind === "done" || hidden.has(kind) || (search.active && !search.matches[i])) continue;
    const key = `${column.kind[i]} ${column.path[i]} ${column.buffer[i]} ${column.where[i]}`;
    let group = found.get(key);
    if (!group) {
      group = {
        kind, what: whatOf(i), count: 0, time: 0, bytes: 0, line: shortLine(text("where", i)),
        reason: text("reason", i), reasons: new Set(), dearest: i,
      };
      found.set(key, group);
    }
    group.count += 1;
    group.time += column.seconds[i];
    group.bytes += column.nbytes[i];
    group.reasons.add(column.reason[i]);
    if (column.seconds[i] > column.seconds[group.dearest]) group.dearest = i;
  }
  return [...found.values()];
}

function whatOf(i) {
  const path = text("path", i), buffer = text("buffer", i);
  return [buffer, path].filter(Boolean).join(" · ");
}

function sorted(list) {
  const { by, down } = sorting;
  const compare = (a, b) => typeof a[by] === "number" ? a[by] - b[by] : a[by].localeCompare(b[by]);
  return list.sort((a, b) => (down ? -1 : 1) * compare(a, b) ||
    b.time - a.time || b.bytes - a.bytes || b.count - a.count);
}

function fillTable() {
  const list = sorted(groups());
  const body = byId("receipt").tBodies[0];
  const shown = sorting.all ? list : list.slice(0, SHOWN);
  body.replaceChildren(...shown.map(tableRow));
  const more = byId("more");
  more.hidden = shown.length === list.length;
  more.textContent = `Show all ${number(list.length)} lines`;
  for (const head of byId("receipt").tHead.rows[0].cells) {
    if (head.dataset.by === sorting.by) head.ariaSort = sorting.down ? "descending" : "ascending";
    else head.removeAttribute("aria-sort");
  }
  markChosenRow();
}

function tableRow(group) {
  const row = document.createElement("tr");
  row.group = group;
  const button = element("button", group.kind);
  button.type = "button";
  button.style.setProperty("--kind", colourName(group.kind));
  const first = element("td");
  first.append(button);
  const others = group.reasons.size - 1;
  const reason = others ? `${group.reason} (and ${number(others)} other reason${others > 1 ? "s" : ""})` : group.reason;
  row.append(
    first,
    element("td", group.what, "what"),
    element("td", number(group.count), "number"),
    element("td", group.time ? duration(group.time) : "", "number"),
    element("td", group.bytes ? bytes(group.bytes) : "", "number"),
    element("td", group.line, "line"),
    element("td", reason, "reason"),
  );
  // On a narrow screen rows are no table to CSS, which would make them none to a screen reader.
  row.role = "row";
  for (const cell of row.cells) cell.role = "cell";
  row.addEventListener("click", () => goTo(group.dearest));
  return row;
}

const PLAIN = ["clock", "fallback"]; // kinds without a colour of their own
const colourName = (kind) => `var(--${KINDS.some(([each]) => each === kind) && !PLAIN.includes(kind) ? kind : "other"})`;

function markChosenRow() {
  const i = selected?.event;
  for (const row of byId("receipt").tBodies[0].rows) {
    const group = row.group;
    row.classList.toggle("chosen", i !== undefined && group.kind === kindOf(i) &&
      group.what === whatOf(i) && group.line === shortLine(text("where", i)));
  }
}

function makeTableHead() {
  const head = byId("receipt").tHead.rows[0];
  for (const [by, name, isNumber] of COLUMNS) {
    const cell = element("th", "", isNumber ? "number" : "");
    cell.scope = "col";
    cell.role = "columnheader";
    cell.dataset.by = by;
    const button = element("button", name);
    button.type = "button";
    button.addEventListener("click", () => {
      sorting.down = sorting.by === by ? !sorting.down : isNumber;
      sorting.by = by;
      fillTable();
    });
    cell.append(button);
    head.append(cell);
  }
  byId("more").addEventListener("click", () => {
    sorting.all = true;
    fillTable();
  });
}
