// Where ops ran: a lane for each logical device and the CPU. A copy is a flat box at the foot of its target's lane, with
// an arrow from the lane of its source. Ops that soft placement moved have a frame.

import { bytes, clock, duration, element, shortDevice } from "./format.js";
import { colour, fillOf, opLooks, prepare } from "./model.js";

const LEFT = 64;

const startOf = (record) => Date.parse(record.submitted_at) / 1000;
const endOf = (record) => startOf(record) + (record.device_seconds ?? record.host_seconds ?? 0);

export class Placements {
  #canvas;
  #detail;
  #legend;
  #records = [];
  #boxes = [];
  #span = null;
  #report = null;
  #at = -1;

  constructor(canvas, detail, legend) {
    this.#canvas = canvas;
    this.#detail = detail;
    this.#legend = legend;
    canvas.addEventListener("mousemove", (event) => this.#pointAt(event));
    canvas.addEventListener("keydown", (event) => this.#onKey(event));
    new ResizeObserver(() => this.#draw()).observe(canvas);
  }

  /** The time to show, in seconds since 1970; null: that of the records. */
  showSpan(span) {
    this.#span = span;
    this.show(this.#report);
  }

  show(report) {
    this.#report = report;
    const span = this.#span;
    this.#records = this.#merge(report).filter((record) => !span || (endOf(record) >= span.from && startOf(record) <= span.to));
    this.#canvas.hidden = this.#records.length === 0;
    this.#draw();
    const ops = new Map();
    const copies = this.#records.filter((record) => record.source !== undefined);
    for (const record of this.#records) {
      if (record.source === undefined) ops.set(record.op, (ops.get(record.op) ?? 0) + 1);
    }
    const copied = copies.reduce((sum, copy) => sum + copy.bytes, 0);
    // In a narrow lane arrows lie over each other, so the routes are words, too.
    const routes = new Map();
    for (const copy of copies) {
      const route = `${shortDevice(copy.source)} to ${shortDevice(copy.target)}`;
      routes.set(route, (routes.get(route) ?? 0) + 1);
    }
    const list = (counts) => [...counts].map(([name, count]) => `${name} ${count}`).join(", ");
    const text = this.#records.length === 0
      ? "No op of it ran in this time, or none is remembered."
      : `${this.#records.length - copies.length} ops: ${list(ops)}` +
        `${copies.length ? `; ${copies.length} copies of ${bytes(copied)}: ${list(routes)}` : ""}`;
    this.#canvas.setAttribute("aria-label", `Placements. ${text}`);
    if (this.#at < 0) this.#detail.textContent = text;
    const legend = (name, fill, height) => {
      const entry = element("li");
      const swatch = element("canvas", "", { class: "swatch", width: "18", height: "12" });
      const paint = swatch.getContext("2d");
      paint.fillStyle = fill(paint);
      paint.fillRect(0, 12 - height, 18, height);
      entry.append(swatch, name);
      return entry;
    };
    this.#legend.replaceChildren(
      ...[...ops.keys()].map((op) => legend(op, (paint) => fillOf(paint, opLooks.of(op), colour("back")), 12)),
      ...(copies.length ? [legend("copy, its arrow comes from its source", () => colour("muted"), 4)] : []));
  }

  // The last ops and copies by time. A copy has its target as its device.
  #merge(report) {
    const copies = (report?.copies ?? []).map((copy) => ({ ...copy, device: copy.target }));
    const all = [...(report?.records ?? []), ...copies];
    return all.sort((a, b) => Date.parse(a.submitted_at) - Date.parse(b.submitted_at));
  }

  #draw() {
    const { context, width, height } = prepare(this.#canvas);
    this.#boxes = [];
    if (this.#records.length === 0) return;
    const starts = this.#records.map(startOf);
    const spans = this.#records.map((record) => Math.max(record.device_seconds ?? record.host_seconds ?? 0, 1e-6));
    const first = this.#span?.from ?? Math.min(...starts);
    const last = this.#span?.to ?? Math.max(...starts.map((start, i) => start + spans[i]));
    Object.assign(this.#canvas.dataset, { from: first, to: last });
    const scale = (width - LEFT - 10) / Math.max(last - first, 1e-6);
    const devices = this.#records.flatMap((record) => [record.device, ...(record.source === undefined ? [] : [record.source])]);
    const lanes = [...new Set(devices.map(shortDevice))].sort();
    const lane = (height - 22) / lanes.length;
    context.font = "12px system-ui, sans-serif";
    context.fillStyle = colour("text");
    context.strokeStyle = colour("line");
    lanes.forEach((name, i) => {
      context.fillText(name, 6, 6 + i * lane + lane / 2 + 4);
      context.beginPath();
      context.moveTo(LEFT, 6 + (i + 1) * lane);
      context.lineTo(width - 10, 6 + (i + 1) * lane);
      context.stroke();
    });
    context.fillStyle = colour("muted");
    context.fillText(clock(first * 1000), LEFT, height - 4);
    const end = `${clock(last * 1000)} (${duration(last - first)})`;
    context.fillText(end, width - 10 - context.measureText(end).width, height - 4);
    this.#drawOps(context, { starts, spans, first, scale, lanes, lane });
  }

  #drawOps(context, { starts, spans, first, scale, lanes, lane }) {
    const topOf = (device) => 6 + lanes.indexOf(shortDevice(device)) * lane;
    this.#boxes = this.#records.map((record, i) => {
      const start = Math.max(starts[i], first);
      const isCopy = record.source !== undefined;
      return {
        record,
        x: LEFT + (start - first) * scale,
        y: topOf(record.device) + lane * (isCopy ? 0.8 : 0.1),
        w: Math.max(2, (starts[i] + spans[i] - start) * scale),
        h: lane * (isCopy ? 0.12 : 0.62),
      };
    });
    // Copies first: ops lie over their arrows.
    context.fillStyle = colour("muted");
    for (const box of this.#boxes.filter((one) => one.record.source !== undefined)) {
      context.fillRect(box.x, box.y, box.w, box.h);
      arrow(context, box.x, topOf(box.record.source) + lane * 0.5, box.x, box.y + box.h / 2);
    }
    const fills = new Map();
    for (const box of this.#boxes.filter((one) => one.record.source === undefined)) {
      const { record } = box;
      if (!fills.has(record.op)) fills.set(record.op, fillOf(context, opLooks.of(record.op), colour("back")));
      context.fillStyle = fills.get(record.op);
      context.fillRect(box.x, box.y, box.w, box.h);
      if (record.soft_placed) {
        context.strokeStyle = colour("warn");
        context.lineWidth = 2;
        context.strokeRect(box.x, box.y, box.w, box.h);
      }
      if (box.w > 40) {
        context.fillStyle = colour("text");
        context.fillText(record.op, box.x + 4, box.y + box.h / 2 + 4);
      }
    }
    if (this.#at >= 0 && this.#boxes[this.#at]) {
      const box = this.#boxes[this.#at];
      context.strokeStyle = colour("accent");
      context.lineWidth = 3;
      context.strokeRect(box.x - 1, box.y - 1, box.w + 2, box.h + 2);
    }
  }

  #say(index) {
    this.#at = index;
    const box = this.#boxes[index];
    if (!box) return;
    const { record } = box;
    const moved = record.soft_placed ? `, asked for ${record.requested_device} and moved` : "";
    this.#detail.textContent = record.source !== undefined
      ? `${clock(record.submitted_at)}  copy of ${bytes(record.bytes)} (${record.dtype}) from ${shortDevice(record.source)} ` +
        `to ${shortDevice(record.target)}, host ${duration(record.host_seconds)}`
      : `${clock(record.submitted_at)}  ${record.op} (${record.dtype}) on ${shortDevice(record.device)}${moved}, ` +
        `host ${duration(record.host_seconds)}, device ${duration(record.device_seconds)}, result ${bytes(record.output_bytes)}`;
    this.#draw();
  }

  #pointAt(event) {
    const place = this.#canvas.getBoundingClientRect();
    const x = event.clientX - place.left;
    const y = event.clientY - place.top;
    const index = this.#boxes.findIndex(
      (box) => x >= box.x - 1 && x <= box.x + box.w + 1 && y >= box.y && y <= box.y + box.h);
    if (index >= 0 && index !== this.#at) this.#say(index);
  }

  #onKey(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1, PageDown: 20, PageUp: -20 }[event.key];
    if (step === undefined || this.#boxes.length === 0) return;
    event.preventDefault();
    this.#say(Math.min(Math.max(this.#at + step, 0), this.#boxes.length - 1));
  }
}

function arrow(context, fromX, fromY, toX, toY) {
  context.save();
  context.strokeStyle = context.fillStyle = colour("muted");
  context.lineWidth = 1;
  context.beginPath();
  context.moveTo(fromX, fromY);
  context.lineTo(toX, toY);
  context.stroke();
  const up = toY < fromY ? 1 : -1;
  context.beginPath();
  context.moveTo(toX, toY);
  context.lineTo(toX - 4, toY + 6 * up);
  context.lineTo(toX + 4, toY + 6 * up);
  context.fill();
  context.restore();
}
