// The course of memory over time: of a GPU, stacked by lease; or of a lease, with its limits and refusals. The daemon
// remembers it and thins it to the width of the chart.

import { bytes, clock, element, shortDevice } from "./format.js";
import { colour } from "./model.js";

const COLOURS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8c6d1f"];
const DASHES = [null, [7, 3], [2, 3], [10, 3, 2, 3]];

const times = (data) => Array.from({ length: data.columns }, (_, i) => new Date(data.from_ms + i * data.step_ms));

/** Series of a GPU: its leases, from the largest, as areas one on another; promised and total as lines. */
function ofCard(data) {
  const stacked = data.leases.map((lease) => ({ name: lease.name, values: lease.used_bytes, area: true }));
  const lines = data.card ? [
    { name: "held", values: data.card.held_bytes },
    { name: "promised", values: data.card.promised_bytes },
  ] : [];
  return { stacked, lines, refusals: [] };
}

/** Series of a lease: used, held and the limit of each logical device; and what is in host memory while it is suspended. */
function ofLease(data) {
  const lines = [];
  if (data.suspended_bytes?.some((value) => value > 0)) lines.push({ name: "in host memory", values: data.suspended_bytes, area: true });
  const refusals = new Map();
  data.devices.forEach((device) => {
    const name = shortDevice(device.name);
    lines.push({ name: `${name} used`, values: device.used_bytes, area: data.devices.length === 1 });
    lines.push({ name: `${name} held`, values: device.held_bytes });
    if (device.charged_bytes.some((value) => value > 0)) lines.push({ name: `${name} charged`, values: device.charged_bytes });
    lines.push({ name: `${name} limit`, values: device.memory_limit_bytes, limit: true });
    device.refusals.forEach((count, i) => {
      if (count > 0) refusals.set(i, (refusals.get(i) ?? 0) + count);
    });
  });
  return { stacked: [], lines, refusals: [...refusals] };
}

/** Areas lie one on another: what is drawn is the sum of an area and all below it. */
function stack(series) {
  const sums = [];
  return series.map(({ name, values }) => {
    const drawn = values.map((value, i) => {
      sums[i] = (sums[i] ?? 0) + (value ?? 0);
      return value === null && sums[i] === 0 ? null : sums[i];
    });
    return { name, values, drawn, area: true };
  });
}

function looks(series) {
  let number = 0;
  return series.map((one) => {
    if (one.limit) return { ...one, colour: colour("warn"), dash: [8, 4], width: 2 };
    const look = { ...one, colour: COLOURS[number % COLOURS.length],
                   dash: DASHES[Math.floor(number / COLOURS.length + (one.area ? 0 : 1)) % DASHES.length], width: 1.6 };
    ++number;
    return look;
  });
}

export class Timeline {
  #chart = null;
  #element;
  #legend;
  #words;
  #shape = "";
  #marks = [];
  /** The time that is shown, in seconds since 1970; null before the first answer. */
  span = null;

  constructor(chart, legend, words) {
    this.#element = chart;
    this.#legend = legend;
    this.#words = words;
    new ResizeObserver(() => this.#chart?.resize()).observe(chart);
  }

  /** The width that the daemon thins to. */
  get width() {
    return Math.max(50, Math.min(2000, this.#element.clientWidth - 70));
  }

  show(data, title) {
    this.span = { from: data.from_ms / 1000, to: (data.from_ms + data.columns * data.step_ms) / 1000 };
    Object.assign(this.#element.dataset, this.span);
    const { stacked, lines, refusals } = data.devices ? ofLease(data) : ofCard(data);
    // The largest area lies at the bottom and is drawn last, so that the others show above it.
    const series = looks([...stack(stacked), ...lines.map((line) => ({ ...line, drawn: line.values }))]);
    const at = times(data);
    const rows = at.map((time, i) => [time, ...series.map((one) => one.drawn[i])]);
    this.#marks = refusals.map(([i, count]) => ({ x: at[i].getTime(), count }));
    this.#label(title, series, refusals);
    this.#element.hidden = series.length === 0;
    if (series.length === 0) return;
    this.#draw(rows, series);
  }

  #label(title, series, refusals) {
    const last = (values) => {
      for (let i = values.length - 1; i >= 0; --i) if (values[i] !== null) return values[i];
      return null;
    };
    const now = series.map((one) => `${one.name} ${bytes(last(one.values))}`).join(", ");
    const refused = refusals.reduce((sum, [, count]) => sum + count, 0);
    const text = series.length === 0 ? `${title}: nothing is remembered of it.`
      : `${title}: ${now}${refused ? `; ${refused} refused (marked x)` : ""}`;
    this.#element.setAttribute("aria-label", text);
    this.#words.textContent = series.length === 0 ? text : refused ? `${refused} refused in this time (marked x)` : "";
    this.#legend.replaceChildren(...series.map((one) => {
      const entry = element("li");
      const swatch = element("canvas", "", { class: "swatch", width: "36", height: "12" });
      const paint = swatch.getContext("2d");
      paint.strokeStyle = one.colour;
      paint.lineWidth = 4;
      paint.setLineDash(one.dash ?? []);
      paint.moveTo(0, 6);
      paint.lineTo(36, 6);
      paint.stroke();
      entry.append(swatch, `${one.name} ${bytes(last(one.values))}`);
      return entry;
    }));
  }

  #draw(rows, series) {
    const labels = ["time", ...series.map((one) => one.name)];
    // Two leases can have one name.
    const seen = new Map();
    const unique = labels.map((label) => {
      const count = (seen.get(label) ?? 0) + 1;
      seen.set(label, count);
      return count === 1 ? label : `${label} (${count})`;
    });
    const options = {
      file: rows,
      dateWindow: [1000 * this.span.from, 1000 * this.span.to],
      labels: unique,
      colors: series.map((one) => one.colour),
      series: Object.fromEntries(series.map((one, i) => [unique[i + 1], {
        strokeWidth: one.width, strokePattern: one.dash, fillGraph: Boolean(one.area) }])),
      gridLineColor: colour("line"),
      axisLineColor: colour("line"),
    };
    const shape = unique.join("|") + colour("line");
    if (this.#chart && shape === this.#shape) {
      this.#chart.updateOptions({ file: rows, dateWindow: options.dateWindow });
      return;
    }
    this.#shape = shape;
    this.#chart?.destroy();
    this.#chart = new Dygraph(this.#element, rows, {
      ...options,
      legend: "never",
      fillAlpha: 0.35,
      includeZero: true,
      connectSeparatedPoints: false,
      animatedZooms: false,
      rightGap: 10,
      axes: {
        y: { axisLabelWidth: 68, axisLabelFormatter: (value) => bytes(value), valueFormatter: (value) => bytes(value),
             ticker: ticks },
        x: { axisLabelFormatter: (time) => clock(time) },
      },
      highlightCallback: (_event, x, points, row) => {
        const texts = points.map((point, i) => `${point.name} ${bytes(series[i]?.values[row] ?? point.yval)}`);
        this.#words.textContent = `${clock(x)}  ${texts.join("  ")}`;
      },
      underlayCallback: (context, area, chart) => this.#mark(context, area, chart),
    });
    delete options.file;
  }

  /** An x at the top of each column with refusals. */
  #mark(context, area, chart) {
    context.save();
    context.strokeStyle = colour("warn");
    context.lineWidth = 2;
    for (const { x } of this.#marks) {
      const at = chart.toDomXCoord(x);
      const top = area.y + 8;
      context.beginPath();
      context.moveTo(at - 5, top - 5);
      context.lineTo(at + 5, top + 5);
      context.moveTo(at - 5, top + 5);
      context.lineTo(at + 5, top - 5);
      context.stroke();
      context.globalAlpha = 0.35;
      context.beginPath();
      context.moveTo(at, top + 8);
      context.lineTo(at, area.y + area.h);
      context.stroke();
      context.globalAlpha = 1;
    }
    context.restore();
  }
}

/** Marks of the axis at round binary amounts. */
function ticks(low, high) {
  const step = 2 ** Math.max(10, Math.ceil(Math.log2((high - low) / 5 || 1)));
  const marks = [];
  for (let value = Math.ceil(low / step) * step; value <= high; value += step) marks.push({ v: value, label: bytes(value) });
  return marks;
}
