// The bar of each GPU, with every amount in words beside it.

import { bytes, element } from "./format.js";
import { cardParts } from "./model.js";

const PARTS = ["used", "charged", "held", "promised", "free", "foreign"];
const WORDS = { foreign: "outside" };

function make(card) {
  const gpu = element("div", "", { class: "gpu", "data-uuid": card.uuid });
  const name = element("div", "", { class: "gpu-name" });
  name.append(element("strong"), element("span", "", { class: "muted", "data-key": "name" }),
              element("span", "", { class: "warn", "data-key": "state" }));
  const bar = element("div", "", { class: "bar", role: "img" });
  const figures = element("dl", "", { class: "figures" });
  for (const part of [...PARTS, "total"]) {
    if (part !== "total") bar.append(element("span", "", { class: part, "data-part": part }));
    const pair = element("div");
    pair.append(element("dt", WORDS[part] ?? part), element("dd", "", { "data-key": part }));
    figures.append(pair);
  }
  gpu.append(name, bar, figures);
  return gpu;
}

function stateOf(card) {
  if (!card.served) return `not served: ${card.not_served_because ?? "another daemon has it"}`;
  const words = [];
  if (card.overcommitted) words.push("OVERCOMMITTED: nothing is granted");
  if (card.waiting_requests > 0) words.push(`${card.waiting_requests} waiting`);
  if (card.draining_bytes > 0) words.push(`${bytes(card.draining_bytes)} draining`);
  return words.join(", ");
}

function show(gpu, card, leases) {
  gpu.querySelector("strong").textContent = `GPU ${card.index}`;
  gpu.querySelector('[data-key="name"]').textContent = `${card.name}${card.simulated ? " (simulated)" : ""}`;
  gpu.querySelector('[data-key="state"]').textContent = stateOf(card);
  const parts = { ...cardParts(card, leases), total: card.total_bytes };
  const whole = Math.max(card.total_bytes, card.promised_bytes + parts.foreign) || 1;
  const words = [];
  for (const part of PARTS) {
    gpu.querySelector(`[data-part="${part}"]`).style.width = `${(100 * parts[part]) / whole}%`;
    words.push(`${WORDS[part] ?? part} ${bytes(parts[part])}`);
  }
  for (const [part, value] of Object.entries(parts)) {
    const figure = gpu.querySelector(`[data-key="${part}"]`);
    const known = part !== "foreign" || card.foreign_bytes !== undefined;
    figure.textContent = known ? bytes(value) : "unknown";
    figure.dataset.value = value;
  }
  gpu.querySelector(".bar").setAttribute(
    "aria-label", `GPU ${card.index}: ${words.join(", ")}, of ${bytes(card.total_bytes)}`);
}

export function showCards(list, stats) {
  const known = new Map([...list.children].map((gpu) => [gpu.dataset.uuid, gpu]));
  for (const card of stats.cards) {
    const gpu = known.get(card.uuid) ?? list.appendChild(make(card));
    known.delete(card.uuid);
    show(gpu, card, stats.leases);
  }
  for (const gpu of known.values()) gpu.remove();
}
