// What the page derives from the daemon's statistics, without the document: amounts of a card's bar, rates, rows of the
// table, colours of ops.

/**
 * The parts of a card's bar, which add up to its memory. `held` is what lies in chunks and in no block that this
 * reader sees: slack, and all chunks of leases of others.
 */
export function cardParts(card, leases) {
  let used = 0;
  let charged = 0;
  for (const lease of leases) {
    for (const device of lease.devices) {
      if (device.card_uuid !== card.uuid) continue;
      charged += device.charged_bytes;
      used += Math.max(0, device.used_bytes - device.charged_bytes);
    }
  }
  charged = Math.min(charged, card.held_bytes);
  used = Math.min(used, card.held_bytes - charged);
  const held = card.held_bytes - charged - used;
  const promised = Math.max(0, card.promised_bytes - card.held_bytes);
  return { used, charged, held, promised, free: card.free_bytes, foreign: card.foreign_bytes ?? 0 };
}

/** 1 - largest free block / slack; 0 where there is no slack. */
export function fragmentation(device) {
  const slack = device.held_bytes - device.used_bytes;
  return slack <= 0 ? 0 : Math.max(0, 1 - device.largest_free_block_bytes / slack);
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
        fragmentation: fragmentation(device),
        rates: rates.of(key),
        pids: lease.sessions.map((session) => session.pid),
        idle: lease.last_op_at ? (now - Date.parse(lease.last_op_at)) / 1000 : undefined,
      });
    }
  }
  return rows;
}

// Okabe and Ito's colours, which people with any kind of colour vision tell apart, without the ones that fade on white
// or black; each comes with its own pattern as well.
const COLOURS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00"];

/** Gives each name a colour and a pattern, the same as long as the page is open. */
export class Looks {
  #numbers = new Map();

  of(name) {
    if (!this.#numbers.has(name)) this.#numbers.set(name, this.#numbers.size);
    const number = this.#numbers.get(name);
    return { colour: COLOURS[number % COLOURS.length], pattern: Math.floor(number / COLOURS.length) % 4 + (number % 3) };
  }
}

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
