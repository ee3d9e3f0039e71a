// The bar of each GPU, with every amount in words beside it.

import { bytes, element } from "./format.js";
import { cardParts, cardTotals } from "./model.js";

const TOTALS = ["used", "charged", "held", "promised", "free", "foreign", "total"];
const LOADS = ["util", "temp", "power"];
const PARTS = ["blocks", "charged", "slack", "aside", "free", "foreign"];

function make(card) {
  const gpu = element("div", "", { class: "gpu", "data-uuid": card.uuid });
  const name = element("div", "", { class: "gpu-name" });
  name.append(element("strong"), element("span", "", { class: "muted", "data-key": "name" }),
              element("span", "", { class: "warn", "data-key": "state" }));
  const bar = element("div", "", { class: "bar", role: "img" });
  const figures = element("dl", "", { class: "figures" });
  for (const part of PARTS) bar.append(element("span", "", { class: part, "data-part": part }));
  for (const name of TOTALS) {
    const pair = element("div");
    pair.append(element("dt", name), element("dd", "", { "data-key": name }));
    figures.append(pair);
  }
  for (const name of LOADS) {
    const pair = element("div");
    pair.append(element("dt", name), element("dd", "", { "data-key": name }));
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

/** How busy the card is; "-" where no driver tells. */
function loadTexts(card) {
  const limit = card.power_limit_watts === undefined ? "" : `/${Math.round(card.power_limit_watts)}W`;
  return {
    util: card.utilization_percent === undefined ? "-" : `${card.utilization_percent}%`,
    temp: card.temperature_celsius === undefined ? "-" : `${card.temperature_celsius}C`,
    power: card.power_watts === undefined ? "-" : `${Math.round(card.power_watts)}W${limit}`,
  };
}

function show(gpu, card, leases) {
  gpu.querySelector("strong").textContent = `GPU ${card.index}`;
  gpu.querySelector('[data-key="name"]').textContent = `${card.name}${card.simulated && !/simulated/i.test(card.name) ? " (simulated)" : ""}`;
  gpu.querySelector('[data-key="state"]').textContent = stateOf(card);
  const totals = cardTotals(card, leases);
  const whole = Math.max(totals.total, totals.promised + totals.foreign) || 1;
  for (const [part, value] of Object.entries(cardParts(totals))) {
    const segment = gpu.querySelector(`[data-part="${part}"]`);
    segment.style.width = `${(100 * value) / whole}%`;
    segment.dataset.value = value;
  }
  const words = [];
  for (const [name, value] of Object.entries(totals)) {
    const figure = gpu.querySelector(`[data-key="${name}"]`);
    const known = name !== "foreign" || card.foreign_bytes !== undefined;
    figure.textContent = known ? bytes(value, name === "free" ? Math.floor : Math.round) : "unknown";
    figure.dataset.value = value;
    words.push(`${name} ${figure.textContent}`);
  }
  for (const [name, text] of Object.entries(loadTexts(card))) {
    gpu.querySelector(`[data-key="${name}"]`).textContent = text;
  }
  gpu.querySelector(".bar").setAttribute(
    "aria-label", `GPU ${card.index}: ${words.join(", ")}`);
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
