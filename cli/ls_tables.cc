#include "cli/ls_tables.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/labels.h"
#include "lgpu/bytes.h"
#include "proto/messages_json.h"

namespace lgpu::cli {
namespace {

using Align = Table::Align;

std::string Size(std::uint64_t bytes) { return FormatBytes(Bytes(bytes)); }

std::string ShortDevice(const std::string& name) {
  const std::size_t at = name.rfind("device:");
  return Printable(at == std::string::npos ? name : name.substr(at + 7));
}

std::string LeaseName(const v1::LeaseStats& lease) {
  return Printable(lease.name().empty() ? lease.id() : lease.name());
}

/// As `lgpu rm` takes it and no wider than a column is to be: the name, OWNER/NAME, or the id.
std::string LeaseLabel(const v1::LeaseStats& lease, const Viewer& viewer) {
  constexpr std::size_t kWidest = 20;
  if (lease.name().empty()) return Printable(lease.id());
  std::string label = Printable(lease.name());
  if (lease.owner_uid() != viewer.uid) {
    label = absl::StrCat(FormatOwner(lease.owner(), lease.owner_uid()), "/", label);
  }
  return TextWidth(label) <= kWidest || lease.id().empty() ? label : Printable(lease.id());
}

std::string Watts(std::uint32_t milliwatts) { return absl::StrCat((milliwatts + 500) / 1000, "W"); }

std::string CardState(const v1::CardStats& card) {
  if (!card.served()) return "not served";
  if (card.overcommitted()) return "OVERCOMMITTED";
  std::string state = "ok";
  if (card.draining_bytes() > 0) absl::StrAppend(&state, ", ", Size(card.draining_bytes()), " draining");
  if (card.waiting_requests() > 0) absl::StrAppend(&state, ", ", card.waiting_requests(), " waiting");
  return state;
}

std::string Pids(const v1::LeaseStats& lease) {
  constexpr int kShown = 3;
  std::vector<std::string> pids;
  for (const auto& session : lease.sessions()) {
    if (static_cast<int>(pids.size()) == kShown) {
      return absl::StrCat(absl::StrJoin(pids, ","), ",+", lease.sessions_size() - kShown);
    }
    pids.push_back(absl::StrCat(session.pid()));
  }
  return absl::StrJoin(pids, ",");
}

/// For how long a lease or a session has been idle; "-": one of its programs cannot tell.
template <typename Stats>
std::string Idle(const v1::StatsSnapshot& snapshot, const Stats& stats) {
  if (!stats.has_idle_since()) return "-";
  const std::int64_t seconds = snapshot.taken_at().seconds() - stats.idle_since().seconds();
  return FormatAge(std::chrono::seconds(std::max<std::int64_t>(seconds, 0)));
}

std::string SessionStates(const v1::LeaseStats& lease) {
  std::map<v1::SessionStats::State, int> counts;
  for (const auto& session : lease.sessions()) ++counts[session.state()];
  std::vector<std::string> states;
  if (lease.degraded()) states.emplace_back("DEGRADED");
  if (lease.has_suspension()) {
    const v1::LeaseSuspension& suspension = lease.suspension();
    states.push_back(!suspension.failed().empty() ? "FAILED"
                     : suspension.in_host_memory()
                         ? absl::StrCat("SUSPENDED ", Size(suspension.bytes()), " on host")
                         : "MOVING");
    if (suspension.place() > 0) states.push_back(absl::StrCat("wants the GPU, place ", suspension.place()));
  }
  if (!lease.gives_way_for().empty()) {
    states.push_back(absl::StrCat("gives way for ", Printable(lease.gives_way_for())));
  }
  for (const auto& [state, count] : counts) {
    const std::string name = SessionStateName(state);
    states.push_back(count == 1 ? name : absl::StrCat(count, " ", name));
  }
  return absl::StrJoin(states, ", ");
}

/// The requests that wait for memory of the GPUs; empty where none does.
std::string FormatQueues(const v1::StatsSnapshot& snapshot, const Style& style) {
  Table table({{"GPU", Align::kRight},
               {"PLACE", Align::kRight},
               {"OWNER"},
               {"PID", Align::kRight, /*drop=*/2},
               {"LEASE"},
               {"DEVICE", Align::kLeft, /*drop=*/1},
               {"ASKED", Align::kRight},
               {"WAITED", Align::kRight},
               {"TURN"}});
  for (const v1::CardStats& card : snapshot.cards()) {
    for (const v1::QueuedRequest& request : card.queue()) {
      std::string turn = request.turns() > 0 ? absl::StrCat("had ", request.turns()) : "";
      if (request.has_turn_left_ms()) {
        turn = absl::StrCat("now, at most ",
                            absl::StrFormat("%.1f", 0.001 * static_cast<double>(request.turn_left_ms())),
                            "s more");
      }
      std::string lease = Printable(request.lease_name());
      if (request.makes_lease()) absl::StrAppend(&lease, lease.empty() ? "" : " ", "(being made)");
      table.AddRow({absl::StrCat(card.index()), absl::StrCat(request.place()), Printable(request.owner()),
                    request.pid() == 0 ? "" : absl::StrCat(request.pid()), lease,
                    request.what().empty()
                        ? ShortDevice(request.device())
                        : absl::StrCat(ShortDevice(request.device()), " (", Printable(request.what()), ")"),
                    Size(request.asked_bytes()), FormatAge(std::chrono::seconds(request.waited_ms() / 1000)),
                    turn});
    }
  }
  return table.empty() ? "" : absl::StrCat("\nWaiting for memory:\n", table.Format(style));
}

/// What programs have of real GPUs beside their charges and chunks; empty where nothing is known of it.
std::string FormatBeside(const v1::StatsSnapshot& snapshot, const Style& style) {
  Table table({{"PID", Align::kRight},
               {"LEASE"},
               {"OVERHEAD", Align::kRight},
               {"COMMAND", Align::kLeft, 0, /*is_cut=*/true}});
  std::set<std::int64_t> shown;  // sessions of one process share it
  for (const v1::LeaseStats& lease : snapshot.leases()) {
    for (const v1::SessionStats& session : lease.sessions()) {
      if (session.overhead_bytes() == 0 || !shown.insert(session.pid()).second) continue;
      table.AddRow({absl::StrCat(session.pid()), LeaseName(lease), Size(session.overhead_bytes()),
                    Printable(session.command())});
    }
  }
  return table.empty() ? ""
                       : absl::StrCat("\nBeside charges and chunks (contexts, code, libraries):\n",
                                      table.Format(style));
}

/// Processes outside lgpu that use the GPUs; empty without any, or where the driver does not tell.
std::string FormatForeign(const v1::StatsSnapshot& snapshot, const Style& style) {
  Table table({{"GPU", Align::kRight},
               {"PID", Align::kRight},
               {"USER"},
               {"USED", Align::kRight},
               {"SM", Align::kRight},
               {"COMMAND", Align::kLeft, 0, /*is_cut=*/true}});
  for (const v1::CardStats& card : snapshot.cards()) {
    for (const v1::ForeignProcess& process : card.foreign_processes()) {
      table.AddRow({absl::StrCat(card.index()), absl::StrCat(process.pid()),
                    process.user().empty() ? "?" : Printable(process.user()), Size(process.used_bytes()),
                    process.has_sm_percent() ? absl::StrCat(process.sm_percent(), "%") : "-",
                    process.command().empty() ? "?" : Printable(process.command())});
    }
  }
  return table.empty() ? "" : absl::StrCat("\nOutside lgpu:\n", table.Format(style));
}

}  // namespace

namespace {

std::string FormatCards(const v1::StatsSnapshot& snapshot, const Style& style) {
  Table cards({{"GPU", Align::kRight},
               {"NAME"},
               {"HELD", Align::kRight, /*drop=*/2},
               {"PROMISED", Align::kRight},
               {"TOTAL", Align::kRight},
               {"FREE", Align::kRight},
               {"FOREIGN", Align::kRight, /*drop=*/1},
               {"STATE"}});
  for (const auto& card : snapshot.cards()) {
    cards.AddRow({absl::StrCat(card.index()), Printable(card.name()), Size(card.held_bytes()),
                  Size(card.promised_bytes()), Size(card.total_bytes()),
                  FormatBytesCut(Bytes(card.free_bytes())),
                  card.has_foreign_bytes() ? Size(card.foreign_bytes()) : "", CardState(card)});
  }
  return cards.Format(style);
}

/// A line for every card: the memory that it can grant, or the reason why it grants none.
std::string FormatRoom(const v1::StatsSnapshot& snapshot) {
  std::string text;
  for (const auto& card : snapshot.cards()) {
    if (card.served()) {
      absl::StrAppend(&text, FormatBytesCut(Bytes(card.free_bytes())), " of GPU ", card.index(),
                      " can still be promised.\n");
    } else {
      absl::StrAppend(&text, "GPU ", card.index(), " is not served: ", Printable(card.not_served_because()),
                      "\n");
    }
  }
  return text;
}

/// The bytes on a card that are held by leases hidden from the viewer.
std::uint64_t HiddenBytes(const v1::CardStats& card, const v1::StatsSnapshot& snapshot) {
  std::uint64_t seen = 0;
  for (const auto& lease : snapshot.leases()) {
    for (const auto& device : lease.devices()) {
      if (device.card_uuid() == card.uuid()) seen += device.held_bytes();
    }
  }
  return card.held_bytes() > seen ? card.held_bytes() - seen : 0;
}

std::string FormatLeases(const v1::StatsSnapshot& snapshot, const Style& style, const Viewer& viewer) {
  Table leases({{"LEASE"},
                {"DEVICE"},
                {"GPU", Align::kRight},
                {"MODE", Align::kLeft, /*drop=*/3},
                {"USED", Align::kRight},
                {"HELD", Align::kRight},
                {"LIMIT", Align::kRight},
                {"PEAK", Align::kRight, /*drop=*/5},
                {"OWNER", Align::kLeft, /*drop=*/6},
                {"PID", Align::kLeft, /*drop=*/2},
                {"AGE", Align::kRight, /*drop=*/4},
                {"IDLE", Align::kRight, /*drop=*/1},
                {"STATE", Align::kLeft, 0, /*is_cut=*/true}});
  for (const auto& lease : snapshot.leases()) {
    const std::chrono::seconds age(snapshot.taken_at().seconds() - lease.created_at().seconds());
    for (const auto& device : lease.devices()) {
      leases.AddRow({LeaseLabel(lease, viewer), ShortDevice(device.name()), absl::StrCat(device.card_index()),
                     device.mode(), Size(device.used_bytes()), Size(device.held_bytes()),
                     Size(device.limit_bytes()), Size(device.peak_used_bytes()),
                     FormatOwner(lease.owner(), lease.owner_uid()), Pids(lease), FormatAge(age),
                     Idle(snapshot, lease), SessionStates(lease)});
    }
  }
  const bool none = leases.empty();
  if (viewer.uid != 0 && !viewer.filtered) {
    for (const auto& card : snapshot.cards()) {
      const std::uint64_t hidden = HiddenBytes(card, snapshot);
      if (hidden == 0) continue;
      leases.AddRow({"(others)", "", absl::StrCat(card.index()), "", "", Size(hidden)});
    }
  }
  return absl::StrCat(none ? (leases.empty() ? "No leases.\n" : "No leases of yours.\n") : "",
                      leases.empty() ? "" : leases.Format(style));
}

}  // namespace

std::string FormatPower(const v1::CardStats& card) {
  if (!card.has_power_milliwatts()) return "-";
  return absl::StrCat(Watts(card.power_milliwatts()),
                      card.has_power_limit_milliwatts() ? "/" + Watts(card.power_limit_milliwatts()) : "");
}

std::string FormatSnapshot(const v1::StatsSnapshot& snapshot, const Style& style, const Viewer& viewer) {
  const std::string room = FormatRoom(snapshot);
  return absl::StrCat(FormatCards(snapshot, style), "\n", FormatLeases(snapshot, style, viewer),
                      FormatQueues(snapshot, style), FormatBeside(snapshot, style),
                      FormatForeign(snapshot, style), room.empty() ? "" : "\n", room);
}

namespace {

Table SessionTable() {
  return Table({{"PID", Align::kRight},
                {"USER"},
                {"LEASE"},
                {"STATE"},
                {"HELD", Align::kRight},
                {"CHARGED", Align::kRight, /*drop=*/3},
                {"OVERHEAD", Align::kRight, /*drop=*/4},
                {"SM", Align::kRight, /*drop=*/2},
                {"IDLE", Align::kRight, /*drop=*/1},
                {"CONNECTED", Align::kRight, /*drop=*/5},
                {"COMMAND", Align::kLeft, 0, /*is_cut=*/true}});
}

void AddSession(const v1::StatsSnapshot& snapshot, const v1::LeaseStats& lease,
                const v1::SessionStats& session, Table& table) {
  const std::chrono::seconds age(snapshot.taken_at().seconds() - session.connected_at().seconds());
  table.AddRow({absl::StrCat(session.pid()),
                session.uid() == lease.owner_uid() ? FormatOwner(lease.owner(), lease.owner_uid())
                                                   : absl::StrCat(session.uid()),
                LeaseName(lease), SessionStateName(session.state()), Size(session.held_bytes()),
                session.charged_bytes() == 0 ? "" : Size(session.charged_bytes()),
                Size(session.overhead_bytes()),
                session.has_sm_percent() ? absl::StrCat(session.sm_percent(), "%") : "-",
                Idle(snapshot, session), FormatAge(age), Printable(session.command())});
}

/// Lines of a name and its value, lined up.
class Facts {
 public:
  void Add(std::string name, std::string value) {
    width_ = std::max(width_, name.size());
    facts_.emplace_back(std::move(name), std::move(value));
  }
  std::string Format(std::string_view indent) const {
    std::string text;
    for (const auto& [name, value] : facts_) {
      absl::StrAppend(&text, std::string(indent), name, std::string(width_ - name.size() + 2, ' '), value,
                      "\n");
    }
    return text;
  }

 private:
  std::vector<std::pair<std::string, std::string>> facts_;
  std::size_t width_ = 0;
};

std::string FormatDevice(const v1::LogicalDeviceStats& device) {
  Facts facts;
  facts.Add("gpu", absl::StrCat(device.card_index(), " (", Printable(device.card_uuid()), ")"));
  facts.Add("mode", device.mode());
  facts.Add("limit", absl::StrCat(Size(device.limit_bytes()),
                                  device.overhead_bytes() == 0 ? "" : ", with the overhead of its programs ",
                                  device.overhead_bytes() == 0 ? "" : Size(device.total_limit_bytes())));
  facts.Add("guarantee", Size(device.guarantee_bytes()));
  facts.Add("held", absl::StrCat(Size(device.held_bytes()), device.leaving_bytes() == 0 ? "" : ", of it ",
                                 device.leaving_bytes() == 0 ? "" : Size(device.leaving_bytes()),
                                 device.leaving_bytes() == 0 ? "" : " on its way back"));
  if (device.charged_bytes() > 0) {
    facts.Add("charged",
              absl::StrCat(Size(device.charged_bytes()), " by programs that use the driver themselves"));
  }
  if (device.missing_bytes() > 0) facts.Add("missing", Size(device.missing_bytes()));
  facts.Add("used", absl::StrCat(Size(device.used_bytes()), " in ", device.live_blocks(), " blocks, peak ",
                                 Size(device.peak_used_bytes())));
  facts.Add("largest free block", Size(device.largest_free_block_bytes()));
  facts.Add("allocations", absl::StrCat(device.allocations_total(), ", refused ", device.refusals_total()));
  facts.Add("ops", absl::StrCat(device.ops_total()));
  return facts.Format("  ");
}

}  // namespace

std::string FormatSessions(const v1::StatsSnapshot& snapshot, const Style& style) {
  Table table = SessionTable();
  for (const v1::LeaseStats& lease : snapshot.leases()) {
    for (const v1::SessionStats& session : lease.sessions()) AddSession(snapshot, lease, session, table);
  }
  return absl::StrCat(table.empty() ? "No processes are attached.\n" : table.Format(style),
                      FormatForeign(snapshot, style));
}

/// As it was set: "90m".
static std::string Exactly(std::uint64_t milliseconds) {
  constexpr std::uint64_t kSecond = 1000, kMinute = 60 * kSecond, kHour = 60 * kMinute;
  if (milliseconds % kHour == 0) return absl::StrCat(milliseconds / kHour, "h");
  if (milliseconds % kMinute == 0) return absl::StrCat(milliseconds / kMinute, "m");
  if (milliseconds % kSecond == 0) return absl::StrCat(milliseconds / kSecond, "s");
  return absl::StrCat(milliseconds, "ms");
}

static std::string EndText(const v1::LeaseStats& lease) {
  if (!lease.lasting()) return "with its last process";
  const v1::Management& management = lease.management();
  std::string text;
  const auto in_words = [](std::uint64_t milliseconds) {
    return FormatAge(std::chrono::ceil<std::chrono::seconds>(std::chrono::milliseconds(milliseconds)));
  };
  for (const std::uint64_t left : {management.time_to_live_ms(), lease.ends().time_to_live_ms()}) {
    if (left > 0) absl::StrAppend(&text, "in ", in_words(left), ", or ");
  }
  if (const std::uint64_t idle = lease.ends().when_idle_ms(); idle > 0) {
    absl::StrAppend(&text, "when it has had no program for ", Exactly(idle), ", or ");
  }
  if (!management.end_with_cgroup().empty()) {
    absl::StrAppend(&text, "with the processes of ", Printable(management.end_with_cgroup()), ", or ");
  }
  return text + "when it is removed (lgpu rm)";
}

std::string FormatLease(const v1::LeaseStats& lease, const v1::StatsSnapshot& snapshot, const Style& style) {
  const std::chrono::seconds age(snapshot.taken_at().seconds() - lease.created_at().seconds());
  Facts facts;
  facts.Add("lease", absl::StrCat(LeaseName(lease), " (", lease.id(), ")"));
  facts.Add("owner",
            absl::StrCat(FormatOwner(lease.owner(), lease.owner_uid()), " (uid ", lease.owner_uid(), ")"));
  facts.Add("created", absl::StrCat(FormatIso8601(lease.created_at()), ", ", FormatAge(age), " ago"));
  facts.Add("idle", lease.has_idle_since() ? "for " + Idle(snapshot, lease) : "not known");
  if (lease.degraded()) {
    facts.Add("state", "DEGRADED: it has less than it was promised; lgpud goes on trying");
  }
  if (lease.has_idle_after_ms()) {
    facts.Add("idle after",
              absl::StrCat(Exactly(lease.idle_after_ms()), ": then lgpud may ask it to give way"));
  }
  if (!lease.gives_way_for().empty()) facts.Add("gives way", "for " + Printable(lease.gives_way_for()));
  facts.Add("ends", EndText(lease));
  if (lease.preemptible() != v1::PREEMPTIBLE_NEVER) {
    facts.Add("preemptible", lease.preemptible() == v1::PREEMPTIBLE_IDLE
                                 ? "lgpud may suspend it while it is idle"
                                 : "lgpud may suspend it while it is idle, and after a time at work");
  }
  if (lease.has_management()) facts.Add("managed", "only root resizes and removes it");
  if (const std::string labels = LabelsText(lease); !labels.empty()) facts.Add("labels", Printable(labels));
  std::string text = facts.Format("");
  for (const v1::LogicalDeviceStats& device : lease.devices()) {
    absl::StrAppend(&text, "\n", style.Bold(Printable(device.name())), "\n", FormatDevice(device));
  }
  Table sessions = SessionTable();
  for (const v1::SessionStats& session : lease.sessions()) AddSession(snapshot, lease, session, sessions);
  absl::StrAppend(&text, "\n", sessions.empty() ? "No processes are attached.\n" : sessions.Format(style));
  for (const v1::SessionStats& session : lease.sessions()) {
    if (session.charged_by_kind().empty() && session.allowance_bytes() == 0) continue;
    std::vector<std::string> kinds;
    for (const v1::ChargedKind& kind : session.charged_by_kind()) {
      kinds.push_back(absl::StrCat(Printable(kind.kind()), " ", Size(kind.bytes())));
    }
    if (session.allowance_bytes() > 0) {
      kinds.push_back(absl::StrCat("unused allowance ", Size(session.allowance_bytes())));
    }
    absl::StrAppend(&text, "\nCharged by pid ", session.pid(), ": ", absl::StrJoin(kinds, ", "), "\n");
  }
  for (const v1::SessionStats& session : lease.sessions()) {
    if (session.trims_ignored() == 0) continue;
    absl::StrAppend(&text, "\nPid ", session.pid(), " did not answer ", session.trims_ignored(),
                    session.trims_ignored() == 1 ? " request" : " requests",
                    " to give back idle memory within 1s",
                    session.ignores_trim() ? ", and has not answered the last one yet.\n" : ".\n");
  }
  return text;
}

std::string FormatCard(const v1::CardStats& card, const v1::StatsSnapshot& snapshot, const Style& style) {
  Facts facts;
  facts.Add("gpu", absl::StrCat(card.index(), " ", Printable(card.name())));
  facts.Add("uuid", Printable(card.uuid()));
  facts.Add("pci bus id", Printable(card.pci_bus_id()));
  facts.Add("state", card.served() ? CardState(card)
                                   : absl::StrCat("not served: ", Printable(card.not_served_because())));
  facts.Add("total", Size(card.total_bytes()));
  facts.Add("reserve", Size(card.reserve_bytes()));
  facts.Add("held", Size(card.held_bytes()));
  facts.Add("promised", Size(card.promised_bytes()));
  facts.Add("overhead", Size(card.overhead_bytes()));
  facts.Add("utilisation",
            card.has_utilization_percent() ? absl::StrCat(card.utilization_percent(), "%") : "-");
  facts.Add("temperature",
            card.has_temperature_celsius() ? absl::StrCat(card.temperature_celsius(), "C") : "-");
  facts.Add("power", FormatPower(card));
  facts.Add("foreign", card.has_foreign_bytes() ? Size(card.foreign_bytes()) : "unknown");
  facts.Add("free", FormatBytesCut(Bytes(card.free_bytes())));
  facts.Add("chunk", Size(card.granularity_bytes()));
  Table devices({{"LEASE"}, {"DEVICE"}, {"OWNER"}, {"HELD", Align::kRight}, {"LIMIT", Align::kRight}});
  for (const v1::LeaseStats& lease : snapshot.leases()) {
    for (const v1::LogicalDeviceStats& device : lease.devices()) {
      if (device.card_uuid() != card.uuid()) continue;
      devices.AddRow({LeaseName(lease), ShortDevice(device.name()),
                      FormatOwner(lease.owner(), lease.owner_uid()), Size(device.held_bytes()),
                      Size(device.limit_bytes())});
    }
  }
  return absl::StrCat(facts.Format(""), "\n", devices.empty() ? "No leases.\n" : devices.Format(style));
}

}  // namespace lgpu::cli
