// The page: it wires the daemon's stream to the parts that show it, and remembers what the reader chose.

import { showCards } from "./cards.js";
import { age, clock, shortDevice } from "./format.js";
import { LeaseTable } from "./leases.js";
import { addEvents, showQueue } from "./lists.js";
import { MemoryMap } from "./memory_map.js";
import { Rates, rowsOf } from "./model.js";
import { Placements } from "./placements.js";
import { follow, get, setToken } from "./stream.js";
import { Timeline } from "./timeline.js";

const of = (id) => document.getElementById(id);
const rates = new Rates();
let stats = null;
let rows = [];

// --- The theme: the system's, or what the reader chose on this machine.
const THEMES = ["system", "dark", "light"];
function applyTheme(theme) {
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  of("theme").textContent = `Theme: ${theme}`;
  localStorage.setItem("lgpu-theme", theme);
  refreshPictures();
}
of("theme").addEventListener("click", () => {
  const now = localStorage.getItem("lgpu-theme") ?? "system";
  applyTheme(THEMES[(THEMES.indexOf(now) + 1) % THEMES.length]);
});

// --- What is chosen.
const table = new LeaseTable(of("lease-table"), (key) => {
  table.select(key);
  const row = chosenRow();
  if (row) of("timeline-of").value = `lease:${row.lease.id}`;
  refreshPictures();
});
const chosenRow = () => rows.find((row) => row.key === table.chosen);
const map = new MemoryMap(of("map"), of("map-detail"), of("map-words"), of("map-legend"));
const timeline = new Timeline(of("timeline"), of("timeline-legend"), of("timeline-words"));
const placements = new Placements(of("placements"), of("placements-detail"), of("placements-legend"));

of("filter").addEventListener("input", () => {
  table.filter(of("filter").value);
  countLeases();
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "/" || /^(INPUT|SELECT)$/.test(event.target.tagName)) return;
  event.preventDefault();
  of("filter").focus();
});
of("timeline-of").addEventListener("change", refreshPictures);
of("timeline-window").addEventListener("change", refreshPictures);

function countLeases() {
  const leases = new Set(rows.map((row) => row.lease.id)).size;
  const shown = of("lease-table").tBodies[0].rows.length;
  of("lease-count").textContent =
    `${leases} ${leases === 1 ? "lease" : "leases"}, ${rows.length} logical ${rows.length === 1 ? "device" : "devices"}` +
    (shown < rows.length ? `, ${shown} shown` : "");
  of("lease-scroll").hidden = rows.length === 0;
  of("no-leases").hidden = rows.length > 0;
}

function offerTimelines() {
  const select = of("timeline-of");
  const wanted = [
    ...stats.cards.filter((card) => card.served).map((card) => [`gpu:${card.index}`, `GPU ${card.index}`]),
    ...stats.leases.map((lease) => [`lease:${lease.id}`, lease.name || lease.id]),
  ];
  const signature = JSON.stringify(wanted);
  if (select.dataset.signature === signature) return;
  select.dataset.signature = signature;
  const chosen = select.value;
  select.replaceChildren(...wanted.map(([value, text]) => new Option(text, value)));
  // A lease that has ended stays in sight until the reader chooses another.
  if (chosen && !wanted.some(([value]) => value === chosen)) {
    select.append(new Option("(a lease that has ended)", chosen));
  }
  if (chosen) select.value = chosen;
}

// --- What is asked for: again every second at most, and never twice at a time.
const busy = new Set();
async function once(name, ask) {
  if (busy.has(name)) return;
  busy.add(name);
  try {
    await ask();
  } catch (error) {
    if (error.status !== 401) of("map-words").dataset.problem = error.message;
  } finally {
    busy.delete(name);
  }
}

function refreshPictures() {
  if (!stats) return;
  once("timeline", async () => {
    const [kind, id] = of("timeline-of").value.split(/:(.*)/);
    const option = of("timeline-of").selectedOptions[0];
    if (!option) return;
    const query = new URLSearchParams({ seconds: of("timeline-window").value, width: timeline.width, [kind]: id });
    timeline.show(await get(`/api/v1/timeline?${query}`), option.textContent);
    placements.showSpan(timeline.span);
  });
  refreshChosen();
}

function refreshChosen() {
  const row = chosenRow();
  const name = row ? `of ${row.lease.name || row.lease.id}, ${shortDevice(row.device.name)}` : "";
  of("map-of").textContent = of("placements-of").textContent = name;
  if (!row) {
    const text = rows.length === 0 ? "There is no logical device." : "Choose a logical device above.";
    map.show(null, text);
    placements.show(null);
    of("placements-detail").textContent = text;
    return;
  }
  once("placements", async () => {
    const report = await get(`/api/v1/placements?lease=${row.lease.id}&records=1000`).catch(() => null);
    if (chosenRow() === row || chosenRow()?.key === row.key) placements.show(report);
  });
  once("map", async () => {
    const query = new URLSearchParams({ lease: row.lease.id, device: shortDevice(row.device.name).replace("GPU:", ""),
                                        width: map.width });
    try {
      const answer = await get(`/api/v1/map?${query}`);
      if (chosenRow()?.key === row.key) map.show(answer);
    } catch (error) {
      if (chosenRow()?.key === row.key) map.show(null, error.message);
    }
  });
}

// --- The stream.
function showStats(message) {
  stats = message;
  rates.add(stats);
  rows = rowsOf(stats, rates);
  of("daemon").textContent = `${stats.daemon}, up ${age(stats.uptime_seconds)}${
    stats.accounting === "estimated" ? ", accounting: estimated" : ""}`;
  of("clock").textContent = clock(stats.taken_at);
  of("clock").dataset.value = stats.taken_at;
  showCards(of("card-list"), stats);
  table.show(rows);
  if (!chosenRow()) table.select(rows[0]?.key ?? null);
  else table.select(table.chosen);
  countLeases();
  offerTimelines();
  showQueue(of("queue"), of("no-queue"), stats);
  refreshPictures();
}

function showState(text, isLost) {
  if (of("state").textContent !== text) of("state").textContent = text;
  of("state").classList.toggle("lost", isLost);
  of("main").style.opacity = isLost ? "0.6" : "1";
}

async function begin() {
  of("events").replaceChildren();
  const version = await get("/api/v1/version").catch(() => null);
  if (!version) return;
  document.title = `lgpu on ${version.host}`;
  of("host").textContent = `on ${version.host}`;
  const { viewer } = version;
  of("viewer").textContent = viewer.sees_all ? "shows all users' leases"
    : viewer.user ? `shows the leases of ${viewer.user}` : "shows no leases";
  of("no-leases").textContent = viewer.sees_all ? "No leases."
    : viewer.user ? `No leases of ${viewer.user}. Those of other users are not shown here.`
    : "lgpud cannot tell who reads this page, so it shows no leases. http.show_users = true shows all to everybody.";
}

function needsToken() {
  showState("waits for the token", true);
  of("ask-token").hidden = false;
  of("main").hidden = true;
  of("token").focus();
  return new Promise((resolve) => {
    of("ask-token").addEventListener("submit", (event) => {
      event.preventDefault();
      setToken(of("token").value.trim());
      of("token-state").textContent = "trying";
      of("ask-token").hidden = true;
      of("main").hidden = false;
      resolve();
    }, { once: true });
  });
}

applyTheme(localStorage.getItem("lgpu-theme") ?? "system");
follow({
  begin,
  needsToken,
  state: showState,
  stats: showStats,
  events: (batch) => addEvents(of("events"), of("no-events"), batch),
});
