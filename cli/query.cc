#include "cli/query.h"

#include <pwd.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <iterator>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "cli/labels.h"
#include "cli/lease_names.h"
#include "cli/output.h"
#include "lgpu/bytes.h"
#include "lgpu/status.h"
#include "proto/messages_json.h"

namespace lgpu::cli {
namespace {

struct Cell {
  enum class Kind { kText, kCount, kBytes, kSeconds };
  Kind kind = Kind::kText;
  std::string text = {};
  std::uint64_t number = 0;
  bool known = true;
};

Cell Text(const std::string& text) { return {.kind = Cell::Kind::kText, .text = Printable(text)}; }
Cell Count(std::uint64_t number) { return {.kind = Cell::Kind::kCount, .number = number}; }
Cell SizeCell(std::uint64_t bytes) { return {.kind = Cell::Kind::kBytes, .number = bytes}; }
Cell Since(const v1::StatsSnapshot& snapshot, const google::protobuf::Timestamp& time) {
  const std::int64_t age = snapshot.taken_at().seconds() - time.seconds();
  return {.kind = Cell::Kind::kSeconds, .number = static_cast<std::uint64_t>(std::max<std::int64_t>(age, 0))};
}
Cell Unknown() { return {.known = false}; }

struct Field {
  std::string_view key;
  Cell (*get)(const QueryRow& row);
};

// Fields of the lease behind a row.
constexpr Field kLeaseFields[] = {
    {"lease", [](const QueryRow& row) { return Text(row.lease->name()); }},
    {"lease_id", [](const QueryRow& row) { return Text(row.lease->id()); }},
    {"owner",
     [](const QueryRow& row) { return Text(FormatOwner(row.lease->owner(), row.lease->owner_uid())); }},
    {"owner_uid", [](const QueryRow& row) { return Count(row.lease->owner_uid()); }},
    {"lasting", [](const QueryRow& row) { return Text(row.lease->lasting() ? "true" : "false"); }},
    {"managed", [](const QueryRow& row) { return Text(row.lease->has_management() ? "true" : "false"); }},
    {"labels", [](const QueryRow& row) { return Text(LabelsText(*row.lease)); }},
    {"created_at", [](const QueryRow& row) { return Text(FormatIso8601(row.lease->created_at())); }},
    {"age", [](const QueryRow& row) { return Since(row.snapshot, row.lease->created_at()); }},
    {"idle",
     [](const QueryRow& row) {
       return row.lease->has_idle_since() ? Since(row.snapshot, row.lease->idle_since()) : Unknown();
     }},
    {"sessions",
     [](const QueryRow& row) { return Count(static_cast<std::uint64_t>(row.lease->sessions_size())); }},
};

constexpr Field kDeviceFields[] = {
    {"device", [](const QueryRow& row) { return Text(row.device->name()); }},
    {"mode", [](const QueryRow& row) { return Text(row.device->mode()); }},
    {"limit", [](const QueryRow& row) { return SizeCell(row.device->limit_bytes()); }},
    {"guarantee", [](const QueryRow& row) { return SizeCell(row.device->guarantee_bytes()); }},
    {"held", [](const QueryRow& row) { return SizeCell(row.device->held_bytes()); }},
    {"leaving", [](const QueryRow& row) { return SizeCell(row.device->leaving_bytes()); }},
    {"used", [](const QueryRow& row) { return SizeCell(row.device->used_bytes()); }},
    {"peak_used", [](const QueryRow& row) { return SizeCell(row.device->peak_used_bytes()); }},
    {"requested", [](const QueryRow& row) { return SizeCell(row.device->requested_bytes()); }},
    {"largest_free_block",
     [](const QueryRow& row) { return SizeCell(row.device->largest_free_block_bytes()); }},
    {"live_blocks", [](const QueryRow& row) { return Count(row.device->live_blocks()); }},
    {"allocations", [](const QueryRow& row) { return Count(row.device->allocations_total()); }},
    {"refusals", [](const QueryRow& row) { return Count(row.device->refusals_total()); }},
    {"ops", [](const QueryRow& row) { return Count(row.device->ops_total()); }},
    {"overhead", [](const QueryRow& row) { return SizeCell(row.device->overhead_bytes()); }},
    {"total_limit", [](const QueryRow& row) { return SizeCell(row.device->total_limit_bytes()); }},
};

constexpr Field kCardFields[] = {
    {"gpu.index", [](const QueryRow& row) { return Count(row.card->index()); }},
    {"gpu.uuid", [](const QueryRow& row) { return Text(row.card->uuid()); }},
    {"gpu.name", [](const QueryRow& row) { return Text(row.card->name()); }},
    {"gpu.minor",
     [](const QueryRow& row) { return row.card->has_minor() ? Count(row.card->minor()) : Unknown(); }},
    {"gpu.pci_bus_id", [](const QueryRow& row) { return Text(row.card->pci_bus_id()); }},
    {"gpu.served", [](const QueryRow& row) { return Text(row.card->served() ? "true" : "false"); }},
    {"gpu.total", [](const QueryRow& row) { return SizeCell(row.card->total_bytes()); }},
    {"gpu.reserve", [](const QueryRow& row) { return SizeCell(row.card->reserve_bytes()); }},
    {"gpu.held", [](const QueryRow& row) { return SizeCell(row.card->held_bytes()); }},
    {"gpu.promised", [](const QueryRow& row) { return SizeCell(row.card->promised_bytes()); }},
    {"gpu.overhead", [](const QueryRow& row) { return SizeCell(row.card->overhead_bytes()); }},
    {"gpu.foreign",
     [](const QueryRow& row) {
       return row.card->has_foreign_bytes() ? SizeCell(row.card->foreign_bytes()) : Unknown();
     }},
    {"gpu.free", [](const QueryRow& row) { return SizeCell(row.card->free_bytes()); }},
    {"gpu.draining", [](const QueryRow& row) { return SizeCell(row.card->draining_bytes()); }},
    {"gpu.utilization",
     [](const QueryRow& row) {
       return row.card->has_utilization_percent() ? Count(row.card->utilization_percent()) : Unknown();
     }},
    {"gpu.temperature",
     [](const QueryRow& row) {
       return row.card->has_temperature_celsius() ? Count(row.card->temperature_celsius()) : Unknown();
     }},
    {"gpu.power",
     [](const QueryRow& row) {
       return row.card->has_power_milliwatts() ? Count(row.card->power_milliwatts() / 1000) : Unknown();
     }},
    {"gpu.waiting", [](const QueryRow& row) { return Count(row.card->waiting_requests()); }},
};

constexpr Field kSessionFields[] = {
    {"pid", [](const QueryRow& row) { return Count(static_cast<std::uint64_t>(row.session->pid())); }},
    {"uid", [](const QueryRow& row) { return Count(row.session->uid()); }},
    {"session_id", [](const QueryRow& row) { return Count(row.session->id()); }},
    {"state", [](const QueryRow& row) { return Text(SessionStateName(row.session->state())); }},
    {"session_held", [](const QueryRow& row) { return SizeCell(row.session->held_bytes()); }},
    {"session_overhead", [](const QueryRow& row) { return SizeCell(row.session->overhead_bytes()); }},
    {"sm",
     [](const QueryRow& row) {
       return row.session->has_sm_percent() ? Count(row.session->sm_percent()) : Unknown();
     }},
    {"connected_at", [](const QueryRow& row) { return Text(FormatIso8601(row.session->connected_at())); }},
    {"connected", [](const QueryRow& row) { return Since(row.snapshot, row.session->connected_at()); }},
    {"command", [](const QueryRow& row) { return Text(row.session->command()); }},
};

using Fields = std::vector<Field>;

template <typename... Arrays>
Fields Join(const Arrays&... arrays) {
  Fields fields;
  (fields.insert(fields.end(), std::begin(arrays), std::end(arrays)), ...);
  return fields;
}

std::vector<std::string> Keys(const Fields& fields) {
  std::vector<std::string> keys;
  for (const Field& field : fields) keys.emplace_back(field.key);
  return keys;
}

struct Format {
  bool header = true;
  bool units = true;
};

absl::StatusOr<Format> ParseFormat(const std::string& text) {
  Format format;
  const std::vector<std::string> words = absl::StrSplit(text, ',');
  for (const std::string& word : words) {
    if (word == "noheader") {
      format.header = false;
    } else if (word == "nounits") {
      format.units = false;
    } else if (word != "csv") {
      return absl::InvalidArgumentError(absl::StrCat("--format ", Printable(text), ": there is no \"",
                                                     Printable(word),
                                                     "\"\ntry: --format=csv,noheader,nounits"));
    }
  }
  return format;
}

absl::StatusOr<Fields> Choose(const std::string& keys, const Fields& known) {
  Fields chosen;
  for (const std::string& key : std::vector<std::string>(absl::StrSplit(keys, ','))) {
    const auto found =
        std::find_if(known.begin(), known.end(), [&](const Field& field) { return field.key == key; });
    if (found == known.end()) {
      return absl::InvalidArgumentError(absl::StrCat("--query: there is no key \"", Printable(key),
                                                     "\"\nthere are: ", absl::StrJoin(Keys(known), " ")));
    }
    chosen.push_back(*found);
  }
  return chosen;
}

std::string Quote(const std::string& text) {
  if (text.find_first_of(",\"") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + "\"";
}

std::string Show(const Cell& cell, const Format& format) {
  if (!cell.known) return "";
  switch (cell.kind) {
    case Cell::Kind::kText:
      return Quote(cell.text);
    case Cell::Kind::kBytes:
      return format.units ? FormatBytes(Bytes(cell.number)) : absl::StrCat(cell.number);
    case Cell::Kind::kSeconds:
      return format.units ? absl::StrCat(cell.number, "s") : absl::StrCat(cell.number);
    case Cell::Kind::kCount:
      break;
  }
  return absl::StrCat(cell.number);
}

absl::StatusOr<std::string> Write(const QueryFlags& flags, const Fields& known,
                                  const std::vector<QueryRow>& rows) {
  LGPU_ASSIGN_OR_RETURN(const Format format, ParseFormat(flags.format));
  LGPU_ASSIGN_OR_RETURN(const Fields fields, Choose(flags.keys, known));
  std::string text;
  if (format.header) text = absl::StrJoin(Keys(fields), ",") + "\n";
  for (const QueryRow& row : rows) {
    std::vector<std::string> cells;
    for (const Field& field : fields) cells.push_back(Show(field.get(row), format));
    absl::StrAppend(&text, absl::StrJoin(cells, ","), "\n");
  }
  return text;
}

const v1::CardStats* FindCard(const v1::StatsSnapshot& snapshot, const std::string& uuid) {
  for (const v1::CardStats& card : snapshot.cards()) {
    if (card.uuid() == uuid) return &card;
  }
  return &v1::CardStats::default_instance();
}

}  // namespace

CLI::Option* QueryFlags::AddTo(CLI::App& verb, const std::vector<std::string>& known) {
  auto* query =
      verb.add_option("--query", keys, "Print these keys as CSV instead: " + absl::StrJoin(known, " "))
          ->type_name("KEY,KEY");
  verb.add_option("--format", format, "How --query prints: csv, and noheader, nounits (plain bytes, seconds)")
      ->type_name("csv[,noheader][,nounits]")
      ->needs(query);
  return query;
}

void FilterFlags::AddTo(CLI::App& verb) {
  verb.add_option("-u,--user", user, "Only leases of this user (name or uid)")->type_name("USER");
  verb.add_option("-p,--pid", pid, "Only leases that this process is attached to")->type_name("PID");
  verb.add_option("--lease", lease, "Only this lease (name or id)")->type_name("LEASE");
  verb.add_option("--label", labels, "Only leases with this label; may be repeated")
      ->type_name("KEY[=VALUE]")
      ->allow_extra_args(false);
}

absl::Status QueryFlags::CheckAlone(bool json) const {
  if (!wanted() || !json) return absl::OkStatus();
  return absl::InvalidArgumentError("--query prints CSV and --json JSON: leave one of them out");
}

absl::Status FilterFlags::Check(const v1::StatsSnapshot& snapshot) const {
  std::set<std::string> names;
  std::set<std::string> owners;
  std::set<std::string> pids;
  std::uint32_t uid = 0;
  bool has_user = user.empty() || ::getpwnam(user.c_str()) != nullptr ||
                  (absl::SimpleAtoi(user, &uid) && ::getpwuid(uid) != nullptr);
  for (const v1::LeaseStats& entry : snapshot.leases()) {
    names.insert(Printable(entry.name()));
    owners.insert(FormatOwner(entry.owner(), entry.owner_uid()));
    has_user = has_user || IsOfUser(entry);
    for (const v1::SessionStats& session : entry.sessions()) pids.insert(absl::StrCat(session.pid()));
  }
  const auto there_are = [](const std::set<std::string>& some) {
    constexpr std::size_t kShown = 20;
    if (some.empty()) return std::string("none");
    const std::vector<std::string> first(
        some.begin(), std::next(some.begin(), static_cast<std::ptrdiff_t>(std::min(some.size(), kShown))));
    return absl::StrCat(absl::StrJoin(first, ", "), some.size() > kShown ? ", ..." : "");
  };
  if (pid && *pid <= 0) {
    return absl::InvalidArgumentError(absl::StrCat("--pid ", *pid, ": the number of a process is above 0"));
  }
  for (const std::string& label : labels) LGPU_RETURN_IF_ERROR(CheckLabelFilter(label));
  LGPU_ASSIGN_OR_RETURN(const v1::LeaseStats* const found, FindLease(snapshot, lease, ::getuid()));
  if (!lease.empty() && found == nullptr) {
    return absl::NotFoundError(
        absl::StrCat("you have no lease named \"", Printable(lease), "\"\nthere are: ", there_are(names)));
  }
  if (pid && !pids.contains(absl::StrCat(*pid))) {
    return absl::NotFoundError(
        absl::StrCat("process ", *pid, " is attached to no lease of yours\nattached are: ", there_are(pids)));
  }
  if (!has_user) {
    return absl::NotFoundError(absl::StrCat("there is no user \"", Printable(user),
                                            "\"\nthe leases that you may see are of: ", there_are(owners)));
  }
  return absl::OkStatus();
}

bool FilterFlags::IsOfUser(const v1::LeaseStats& entry) const {
  return entry.owner() == user || absl::StrCat(entry.owner_uid()) == user;
}

v1::StatsSnapshot FilterFlags::Apply(v1::StatsSnapshot snapshot) const {
  const absl::StatusOr<const v1::LeaseStats*> found = FindLease(snapshot, lease, ::getuid());
  const std::string id = found.ok() && *found != nullptr ? (*found)->id() : "";
  const auto keep = [&](const v1::LeaseStats& entry) {
    const bool has_pid =
        std::any_of(entry.sessions().begin(), entry.sessions().end(),
                    [this](const v1::SessionStats& session) { return session.pid() == pid; });
    return (user.empty() || IsOfUser(entry)) && (!pid || has_pid) && (lease.empty() || entry.id() == id) &&
           HasLabels(entry, labels);
  };
  auto& leases = *snapshot.mutable_leases();
  leases.erase(std::remove_if(leases.begin(), leases.end(), [&](const auto& entry) { return !keep(entry); }),
               leases.end());
  for (v1::CardStats& card : *snapshot.mutable_cards()) {
    auto& processes = *card.mutable_foreign_processes();
    const auto leave_out = [this](const v1::ForeignProcess& process) {
      return !lease.empty() || !labels.empty() || (pid && process.pid() != *pid) ||
             (!user.empty() && user != process.user() && user != std::to_string(process.uid()));
    };
    processes.erase(std::remove_if(processes.begin(), processes.end(), leave_out), processes.end());
  }
  return snapshot;
}

v1::StatsSnapshot WithoutOtherCards(v1::StatsSnapshot snapshot) {
  std::set<std::string> used;
  for (const v1::LeaseStats& lease : snapshot.leases()) {
    for (const v1::LogicalDeviceStats& device : lease.devices()) used.insert(device.card_uuid());
  }
  auto& cards = *snapshot.mutable_cards();
  cards.erase(std::remove_if(cards.begin(), cards.end(),
                             [&](const v1::CardStats& card) { return !used.contains(card.uuid()); }),
              cards.end());
  return snapshot;
}

std::vector<std::string> DeviceKeys() { return Keys(Join(kLeaseFields, kDeviceFields, kCardFields)); }
std::vector<std::string> SessionKeys() { return Keys(Join(kSessionFields, kLeaseFields)); }

absl::StatusOr<std::string> QueryDevices(const QueryFlags& flags, const v1::StatsSnapshot& snapshot) {
  const std::vector<std::string> keys = absl::StrSplit(flags.keys, ',');
  const bool cards_only = std::all_of(keys.begin(), keys.end(),
                                      [](const std::string& key) { return absl::StartsWith(key, "gpu."); });
  std::vector<QueryRow> rows;
  if (cards_only) {
    for (const v1::CardStats& card : snapshot.cards()) rows.push_back({.snapshot = snapshot, .card = &card});
    return Write(flags, Join(kCardFields), rows);
  }
  for (const v1::LeaseStats& lease : snapshot.leases()) {
    for (const v1::LogicalDeviceStats& device : lease.devices()) {
      rows.push_back({.snapshot = snapshot,
                      .lease = &lease,
                      .device = &device,
                      .card = FindCard(snapshot, device.card_uuid())});
    }
  }
  return Write(flags, Join(kLeaseFields, kDeviceFields, kCardFields), rows);
}

absl::StatusOr<std::string> QuerySessions(const QueryFlags& flags, const v1::StatsSnapshot& snapshot) {
  std::vector<QueryRow> rows;
  for (const v1::LeaseStats& lease : snapshot.leases()) {
    for (const v1::SessionStats& session : lease.sessions()) {
      rows.push_back({.snapshot = snapshot, .lease = &lease, .session = &session});
    }
  }
  return Write(flags, Join(kSessionFields, kLeaseFields), rows);
}

}  // namespace lgpu::cli
