// The memory of a logical device in address order, thinned by the daemon to the cells of the canvas: what lies in each
// cell, by the op that has most of it, and what is not used. A dashed line stands where address space without memory was
// left out.

import { bytes, element, percent } from "./format.js";
import { colour, fillOf, opLooks, prepare } from "./model.js";

const ROWS = 6;

export class MemoryMap {
  #canvas;
  #detail;
  #words;
  #legend;
  #map = null;
  #at = -1;

  constructor(canvas, detail, words, legend) {
    this.#canvas = canvas;
    this.#detail = detail;
    this.#words = words;
    this.#legend = legend;
    canvas.addEventListener("mousemove", (event) => this.#pointAt(event));
    canvas.addEventListener("keydown", (event) => this.#onKey(event));
    new ResizeObserver(() => this.#draw()).observe(canvas);
  }

  /** How many cells the daemon thins to: a pixel each, in rows. */
  get width() {
    return Math.max(60, Math.min(8000, Math.floor(this.#canvas.parentElement.clientWidth) * ROWS));
  }

  /** `problem`: why there is no map, in the daemon's words. */
  show(map, problem) {
    this.#map = map;
    this.#canvas.hidden = !map;
    if (!map) {
      this.#words.textContent = problem ?? "";
      this.#detail.textContent = "";
      this.#legend.replaceChildren();
      this.#canvas.setAttribute("aria-label", `Memory map. ${problem ?? ""}`);
      this.#draw();
      return;
    }
    const text =
      `${map.live_blocks} blocks, ${bytes(map.used_bytes)} used of ${bytes(map.granted_bytes)} granted to the program; ` +
      `largest free block ${bytes(map.largest_free_block_bytes)}; ` +
      (map.fragmentation > 0
        ? `fragmentation ${percent(map.fragmentation)}: no single hole has more than ` +
          `${percent(1 - map.fragmentation)} of the memory that is granted and not used`
        : "not fragmented: what is not used lies in one piece, or all is used");
    this.#words.textContent = text;
    this.#canvas.setAttribute("aria-label", `Memory map. ${text}`);
    this.#canvas.dataset.blocks = map.live_blocks;
    this.#canvas.dataset.used = map.used_bytes;
    const entries = map.ops.slice(0, 12).map((op) => this.#entry(op.name || "unnamed", op.bytes, opLooks.of(op.name)));
    entries.push(this.#entry("not used", Math.max(0, map.granted_bytes - map.used_bytes), null));
    this.#legend.replaceChildren(...entries);
    this.#draw();
  }

  #entry(name, count, look) {
    const entry = element("li");
    const swatch = element("canvas", "", { class: "swatch", width: "18", height: "12" });
    const paint = swatch.getContext("2d");
    paint.fillStyle = look ? fillOf(paint, look, colour("back")) : colour("back");
    paint.fillRect(0, 0, 18, 12);
    entry.append(swatch, `${name} ${bytes(count)}`);
    return entry;
  }

  #geometry() {
    const perRow = Math.ceil(this.#map.cells.length / ROWS);
    const width = this.#canvas.clientWidth;
    const height = this.#canvas.clientHeight;
    return { perRow, cell: width / perRow, row: height / ROWS };
  }

  #draw() {
    const { context } = prepare(this.#canvas);
    if (!this.#map || this.#map.cells.length === 0) return;
    const { perRow, cell, row } = this.#geometry();
    const fills = this.#map.ops.map((op) => fillOf(context, opLooks.of(op.name), colour("back")));
    const line = colour("line");
    const gap = colour("text");
    this.#map.cells.forEach(([op, used, , gaps], i) => {
      const x = (i % perRow) * cell;
      const y = Math.floor(i / perRow) * row + 2;
      const tall = row - 4;
      context.fillStyle = line;
      context.fillRect(x, y + tall - 1, cell + 0.5, 1);
      if (used > 0) {
        context.fillStyle = fills[op] ?? colour("used");
        context.fillRect(x, y + tall * (1 - used), cell + 0.5, tall * used);
      }
      if (gaps > 0) {
        context.fillStyle = gap;
        for (let at = y; at < y + tall; at += 5) context.fillRect(x, at, 1.5, 3);
      }
    });
    if (this.#at >= 0) {
      context.strokeStyle = colour("text");
      context.lineWidth = 2;
      context.strokeRect((this.#at % perRow) * cell - 1, Math.floor(this.#at / perRow) * row + 1, cell + 2, row - 2);
    }
  }

  #say(index) {
    if (!this.#map) return;
    this.#at = Math.min(Math.max(index, 0), this.#map.cells.length - 1);
    const [op, used, blocks, gaps] = this.#map.cells[this.#at];
    const before = this.#map.cell_bytes * this.#at;
    const what = used > 0
      ? `${blocks} ${blocks === 1 ? "block begins" : "blocks begin"} here, ${percent(used)} used, most by ${this.#map.ops[op]?.name || "unnamed"}`
      : "not used";
    const left = gaps > 0 ? "; before it lies address space without memory" : "";
    this.#detail.textContent = `behind ${bytes(before)}, ${bytes(this.#map.cell_bytes)}: ${what}${left}`;
    this.#draw();
  }

  #pointAt(event) {
    if (!this.#map) return;
    const place = this.#canvas.getBoundingClientRect();
    const { perRow, cell, row } = this.#geometry();
    const column = Math.floor((event.clientX - place.left) / cell);
    this.#say(Math.floor((event.clientY - place.top) / row) * perRow + Math.min(column, perRow - 1));
  }

  #onKey(event) {
    if (!this.#map) return;
    const { perRow } = this.#geometry();
    const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: perRow, ArrowUp: -perRow, PageDown: 50, PageUp: -50 };
    if (!(event.key in steps)) return;
    event.preventDefault();
    this.#say(this.#at + steps[event.key]);
  }
}
