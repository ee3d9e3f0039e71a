// The queue and the events.

import { bytes, clock, duration, element, shortDevice } from "./format.js";

const MOST_EVENTS = 300;
const QUEUE = ["GPU", "Place", "Owner", "Lease", "Asked", "Waited", "Turn"];

function turnOf(request) {
  if (request.turn_left_seconds !== undefined) return `now, at most ${duration(request.turn_left_seconds)} more`;
  return request.turns > 0 ? `had ${request.turns}` : "-";
}

export function showQueue(table, none, stats) {
  const rows = stats.cards.flatMap((card) => card.queue.map((request) => ({ gpu: card.index, ...request })));
  none.hidden = rows.length > 0;
  table.hidden = rows.length === 0;
  if (!table.tHead.rows.length) {
    const titles = table.tHead.insertRow();
    for (const title of QUEUE) titles.append(element("th", title, { scope: "col" }));
  }
  table.tBodies[0].replaceChildren(...rows.map((request) => {
    const line = element("tr");
    const lease = request.makes_lease
      ? `${request.lease} (being made)`.trim()
      : [request.lease, request.device && shortDevice(request.device)].filter(Boolean).join(" ");
    for (const text of [request.gpu, request.place, request.owner || "another user", lease || "-",
                        bytes(request.asked_bytes), duration(request.waited_seconds), turnOf(request)]) {
      line.append(element("td", String(text)));
    }
    return line;
  }));
}

const WARNINGS = new Set(["overcommitted", "lease_degraded", "unexplained", "unreturned", "context_lost", "uncharged",
                          "session_lost", "protocol_error", "trim_ignored"]);

/** Adds events above the older ones; the oldest go. */
export function addEvents(list, none, batch) {
  if (batch.lost > 0) list.prepend(element("li", `${batch.lost} earlier events are not kept any more`));
  for (const event of batch.events) {
    const line = element("li", "", { "data-kind": event.kind });
    if (event.kind === "refused") line.className = "refused";
    if (WARNINGS.has(event.kind)) line.className = "warned";
    line.append(element("time", clock(event.at), { datetime: event.at }),
                ` ${event.lease?.name ? `${event.lease.name}  ` : ""}${event.text}`);
    list.prepend(line);
  }
  while (list.children.length > MOST_EVENTS) list.lastElementChild.remove();
  none.hidden = list.children.length > 0;
}
