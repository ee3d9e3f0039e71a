// Numbers and times as people read them; the same forms as the command line's.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

/** 536870912 -> "512.00MiB"; `round`: Math.floor for free memory, as the command line has it. */
export function bytes(count, round = Math.round) {
  if (count === null || count === undefined) return "-";
  let value = count;
  let unit = 0;
  while (value >= 1024 && unit + 1 < UNITS.length) {
    value /= 1024;
    ++unit;
  }
  if (unit === 0) return `${value}B`;
  const decimals = unit === 1 ? 1 : 2;
  const scale = 10 ** decimals;
  return `${(round(value * scale) / scale).toFixed(decimals)}${UNITS[unit]}`;
}

/** Seconds -> "7s", "12m", "3h", "2d" */
export function age(seconds) {
  if (!(seconds >= 0)) return "-";
  if (seconds < 60) return `${Math.floor(seconds)}s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)}m`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)}h`;
  return `${Math.floor(seconds / 86400)}d`;
}

/** Milliseconds since 1970, or ISO 8601 -> "12:03:58", in local time */
export function clock(time) {
  const date = new Date(time);
  const two = (number) => String(number).padStart(2, "0");
  return `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
}

/** 0.0123 -> "12.3ms" */
export function duration(seconds) {
  if (seconds === undefined || seconds === null) return "-";
  if (seconds < 1e-6) return `${(seconds * 1e9).toFixed(0)}ns`;
  if (seconds < 1e-3) return `${(seconds * 1e6).toFixed(1)}us`;
  if (seconds < 1) return `${(seconds * 1e3).toFixed(1)}ms`;
  return `${seconds.toFixed(2)}s`;
}

/** 0.333 -> "33%" */
export const percent = (ratio) => `${Math.round(ratio * 100)}%`;

/** A rate per second; "-" where it is not known yet. */
export function rate(value) {
  if (value === undefined || value === null) return "-";
  return value >= 100 || Number.isInteger(value) ? value.toFixed(0) : value.toFixed(1);
}

/** "/job:localhost/replica:0/task:0/device:GPU:0" -> "GPU:0" */
export const shortDevice = (name) => name.slice(name.lastIndexOf("device:") + 7);

/** An element with text and attributes. */
export function element(name, text = "", attributes = {}) {
  const made = document.createElement(name);
  if (text !== "") made.textContent = text;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}
