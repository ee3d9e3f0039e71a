// The table of logical devices. Rows stay in place while their numbers change; one is chosen, by mouse or keyboard.

import { age, bytes, element, percent, rate, shortDevice } from "./format.js";
import { heldParts } from "./model.js";

const ownerOf = (row) => row.lease.owner.user || String(row.lease.owner.uid);
const COLUMNS = [
  { title: "Lease", of: (row) => row.lease.name || row.lease.id, key: "lease" },
  { title: "Device", of: (row) => shortDevice(row.device.name), key: "device" },
  { title: "GPU", of: (row) => row.device.gpu, key: "gpu", number: true },
  { title: "Used of limit", of: (row) => row.device.used_bytes / (row.device.memory_limit_bytes || 1), key: "bar", bar: true },
  { title: "Used", of: (row) => row.device.used_bytes, text: bytes, key: "used_bytes", number: true },
  { title: "Held", of: (row) => row.device.held_bytes, text: bytes, key: "held_bytes", number: true, low: true },
  { title: "Limit", of: (row) => row.device.memory_limit_bytes, text: bytes, key: "memory_limit_bytes", number: true },
  { title: "Peak", of: (row) => row.device.peak_used_bytes, text: bytes, key: "peak_used_bytes", number: true, low: true },
  { title: "Ops/s", of: (row) => row.rates.ops ?? -1, text: (value) => rate(value < 0 ? undefined : value), key: "ops", number: true },
  { title: "Allocs/s", of: (row) => row.rates.allocations ?? -1, text: (value) => rate(value < 0 ? undefined : value), key: "allocations", number: true, low: true },
  { title: "SM", of: smOf, text: (value) => (value < 0 ? "-" : `${value}%`), key: "sm", number: true, low: true },
  { title: "Refused", of: (row) => row.device.refusals_total, key: "refusals_total", number: true },
  { title: "Owner", of: ownerOf, key: "owner" },
  { title: "Pid", of: (row) => row.pids.join(" ") || "-", key: "pid", low: true },
  { title: "Idle", of: (row) => row.idle ?? -1, text: (value) => (value < 0 ? "-" : age(value)), key: "idle", number: true },
  { title: "State", of: stateOf, key: "state" },
];

/** Of all processes of the lease together; below 0: not known. */
function smOf(row) {
  const known = row.lease.sessions.filter((session) => session.sm_percent !== undefined);
  return known.length === 0 ? -1 : known.reduce((sum, session) => sum + session.sm_percent, 0);
}

function stateOf(row) {
  const words = row.lease.degraded ? ["DEGRADED"] : [];
  if (row.lease.gives_way_for) words.push(`gives way for ${row.lease.gives_way_for}`);
  const counts = new Map();
  for (const session of row.lease.sessions) counts.set(session.state, (counts.get(session.state) ?? 0) + 1);
  for (const [state, count] of counts) words.push(count === 1 ? state : `${count} ${state}`);
  return words.join(", ") || "no program";
}

export class LeaseTable {
  #body;
  #table;
  #rows = new Map();
  #sort = { column: COLUMNS[0], descending: false };
  #last = [];
  #filter = "";
  chosen = null;

  /** `choose(key)` is called when the reader chooses a row. */
  constructor(table, choose) {
    this.#table = table;
    this.#body = table.tBodies[0];
    this.choose = choose;
    for (const column of COLUMNS) this.#addTitle(column);
    this.#body.addEventListener("click", (event) => this.#pick(event.target.closest("tr")));
    this.#body.addEventListener("keydown", (event) => this.#onKey(event));
  }

  #addTitle(column) {
    const title = element("th", "", { scope: "col", "data-key": column.key });
    if (column.number) title.classList.add("number");
    if (column.low) title.classList.add("low");
    const button = element("button", column.title, { type: "button" });
    button.addEventListener("click", () => {
      const again = this.#sort.column === column;
      this.#sort = { column, descending: again ? !this.#sort.descending : Boolean(column.number || column.bar) };
      this.#order();
    });
    title.append(button);
    this.#table.tHead.rows[0].append(title);
  }

  filter(text) {
    this.#filter = text.trim().toLowerCase();
    this.show(this.#last);
  }

  #matches(row) {
    if (!this.#filter) return true;
    const words = [row.lease.name, row.lease.id, ownerOf(row), `gpu ${row.device.gpu}`, ...row.pids];
    return words.join(" ").toLowerCase().includes(this.#filter);
  }

  /** Gives the rows that are shown. */
  show(rows) {
    this.#last = rows;
    const shown = rows.filter((row) => this.#matches(row));
    const gone = new Set(this.#rows.keys());
    for (const row of shown) {
      gone.delete(row.key);
      if (!this.#rows.has(row.key)) this.#rows.set(row.key, this.#make(row));
      this.#update(this.#rows.get(row.key), row);
    }
    for (const key of gone) {
      this.#rows.get(key).line.remove();
      this.#rows.delete(key);
    }
    this.#order();
    return shown;
  }

  #make(row) {
    const line = element("tr", "", { tabindex: "-1", "data-row": row.key, "aria-selected": "false" });
    const cells = COLUMNS.map((column) => {
      const cell = line.insertCell();
      cell.dataset.key = column.key;
      if (column.number) cell.classList.add("number");
      if (column.low) cell.classList.add("low");
      if (column.bar) {
        const bar = element("div", "", { class: "bar small", role: "img" });
        for (const part of ["blocks", "charged", "slack"]) bar.append(element("span", "", { class: part }));
        cell.append(bar);
      }
      return cell;
    });
    return { line, cells, row };
  }

  #update(entry, row) {
    entry.row = row;
    entry.line.classList.toggle("refused", row.device.refusals_total > 0);
    COLUMNS.forEach((column, i) => {
      const cell = entry.cells[i];
      const value = column.of(row);
      if (column.bar) {
        this.#updateBar(cell.firstChild, row.device, value);
        return;
      }
      const text = String(column.text ? column.text(value) : value);
      if (cell.textContent !== text) cell.textContent = text;
      cell.dataset.value = value;
    });
  }

  #updateBar(bar, device, ratio) {
    const limit = device.memory_limit_bytes || 1;
    const parts = Object.values(heldParts(device.used_bytes, device.charged_bytes, device.held_bytes));
    [...bar.children].forEach((part, i) => {
      part.style.width = `${Math.min(100, (100 * parts[i]) / limit)}%`;
    });
    bar.setAttribute("aria-label", `${percent(ratio)} of the limit used`);
  }

  #order() {
    const { column, descending } = this.#sort;
    const entries = [...this.#rows.values()];
    entries.sort((a, b) => {
      const left = column.of(a.row);
      const right = column.of(b.row);
      const order = typeof left === "number" && typeof right === "number"
        ? left - right : String(left).localeCompare(String(right), undefined, { numeric: true });
      return (descending ? -order : order) || a.row.key.localeCompare(b.row.key, undefined, { numeric: true });
    });
    // Only rows that moved are touched: the focus stays where it is.
    let at = this.#body.firstElementChild;
    for (const { line } of entries) {
      if (line === at) {
        at = at.nextElementSibling;
      } else {
        this.#body.insertBefore(line, at);
      }
    }
    for (const title of this.#table.tHead.rows[0].cells) {
      const own = title.dataset.key === column.key;
      title.setAttribute("aria-sort", own ? (descending ? "descending" : "ascending") : "none");
    }
    const focused = this.#rows.get(this.chosen)?.line ?? this.#body.firstElementChild;
    for (const { line } of entries) line.tabIndex = line === focused ? 0 : -1;
  }

  select(key) {
    this.chosen = key;
    for (const [other, { line }] of this.#rows) {
      line.setAttribute("aria-selected", String(other === key));
      line.tabIndex = other === key ? 0 : -1;
    }
  }

  #pick(line) {
    if (line?.dataset.row) this.choose(line.dataset.row);
  }

  #onKey(event) {
    const line = event.target.closest("tr");
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      this.#pick(line);
      return;
    }
    const to = { ArrowDown: line.nextElementSibling, ArrowUp: line.previousElementSibling,
                 Home: this.#body.firstElementChild, End: this.#body.lastElementChild }[event.key];
    if (!to) return;
    event.preventDefault();
    line.tabIndex = -1;
    to.tabIndex = 0;
    to.focus();
  }
}
