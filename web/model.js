// What the page derives from the daemon's statistics, without the document: amounts of a card's bar, rates, rows of the
// table, colours of ops.

/** Used and charged memory of a card's logical devices, of the leases that this reader sees. */
function usedOf(card, leases) {
  let used = 0;
  let charged = 0;
  for (const lease of leases) {
    for (const device of lease.devices) {
      if (device.card_uuid !== card.uuid) continue;
      used += device.used_bytes;
      charged += device.charged_bytes;
    }
  }
  used = Math.min(used, card.held_bytes);
  return { used, charged: Math.min(charged, used) };
}

/** The numbers of a card: totals. Used is part of held, and held is part of promised. */
export function cardTotals(card, leases) {
  return { ...usedOf(card, leases), held: card.held_bytes, promised: card.promised_bytes, free: card.free_bytes,
           foreign: card.foreign_bytes ?? 0, total: card.total_bytes };
}

/** The parts of a bar: `slack` is held and not used. */
export function heldParts(used, charged, held) {
  return { blocks: Math.max(0, used - charged), charged, slack: Math.max(0, held - used) };
}

/** The parts of a card's bar, which add up to its memory: `aside` is promised and not held. */
export function cardParts(totals) {
  return { ...heldParts(totals.used, totals.charged, totals.held), aside: Math.max(0, totals.promised - totals.held),
           free: totals.free, foreign: totals.foreign };
}

/** Rates of logical devices, from each snapshot and the one before. */
export class Rates {
  #before = new Map();
  #rates = new Map();

  add(stats) {
    const at = Date.parse(stats.taken_at);
    const now = new Map();
    this.#rates = new Map();
    for (const lease of stats.leases) {
      for (const device of lease.devices) {
        const key = `${lease.id}/${device.name}`;
        const counts = { at, ops: device.ops_total, allocations: device.allocations_total };
        const before = this.#before.get(key);
        const seconds = before ? (at - before.at) / 1000 : 0;
        if (seconds > 0) {
          this.#rates.set(key, {
            ops: Math.max(0, counts.ops - before.ops) / seconds,
            allocations: Math.max(0, counts.allocations - before.allocations) / seconds,
          });
        }
        now.set(key, seconds === 0 && before ? before : counts);
      }
    }
    this.#before = now;
  }

  of(key) {
    return this.#rates.get(key) ?? {};
  }
}

/** A row per logical device. */
export function rowsOf(stats, rates) {
  const now = Date.parse(stats.taken_at);
  const rows = [];
  for (const lease of stats.leases) {
    for (const device of lease.devices) {
      const key = `${lease.id}/${device.name}`;
      rows.push({
        key,
        lease,
        device,
        rates: rates.of(key),
        pids: lease.sessions.map((session) => session.pid),
        idle: lease.idle_since ? Math.max(now - Date.parse(lease.idle_since), 0) / 1000 : undefined,
      });
    }
  }
  return rows;
}

// Okabe and Ito's colours, which people with any kind of colour vision tell apart, without the ones that fade on white
// or black; each comes with its own pattern as well.
const COLOURS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00"];

/** Gives each name a colour and a pattern, the same as long as the page is open. */
class Looks {
  #numbers = new Map();

  of(name) {
    if (!this.#numbers.has(name)) this.#numbers.set(name, this.#numbers.size);
    const number = this.#numbers.get(name);
    return { colour: COLOURS[number % COLOURS.length], pattern: Math.floor(number / COLOURS.length) % 4 + (number % 3) };
  }
}

/** The looks of ops, everywhere on the page. */
export const opLooks = new Looks();

/** A fill for a canvas: the colour with the pattern (0: plain) in the page's ink. */
export function fillOf(context, look, ink) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 8;
  const paint = tile.getContext("2d");
  paint.fillStyle = look.colour;
  paint.fillRect(0, 0, 8, 8);
  paint.strokeStyle = paint.fillStyle = ink;
  paint.globalAlpha = 0.55;
  paint.lineWidth = 1;
  paint.beginPath();
  switch (look.pattern % 5) {
    case 1:
      paint.moveTo(0, 8);
      paint.lineTo(8, 0);
      break;
    case 2:
      paint.fillRect(3, 3, 2, 2);
      break;
    case 3:
      paint.moveTo(0, 4);
      paint.lineTo(8, 4);
      break;
    case 4:
      paint.moveTo(0, 0);
      paint.lineTo(8, 8);
      paint.moveTo(0, 8);
      paint.lineTo(8, 0);
      break;
    default:
  }
  paint.stroke();
  return context.createPattern(tile, "repeat");
}

/** The canvas's size in device pixels; its context in CSS pixels. */
export function prepare(canvas) {
  const scale = globalThis.devicePixelRatio || 1;
  const width = Math.max(1, canvas.clientWidth);
  const height = Math.max(1, canvas.clientHeight);
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  return { context, width, height };
}

/** A colour of the theme. */
export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
