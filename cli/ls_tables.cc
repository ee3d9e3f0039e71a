#include "cli/ls_tables.h"

#include <chrono>
#include <map>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "lgpu/bytes.h"

namespace lgpu::cli {
namespace {

using Align = Table::Align;

std::string Size(std::uint64_t bytes) { return FormatBytes(Bytes(bytes)); }

std::string ShortDevice(const std::string& name) {
  const std::size_t at = name.rfind("device:");
  return Printable(at == std::string::npos ? name : name.substr(at + 7));
}

std::string CardState(const v1::CardStats& card) {
  if (!card.served()) return absl::StrCat("not served: ", Printable(card.not_served_because()));
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

std::string SessionStates(const v1::LeaseStats& lease) {
  std::map<v1::SessionStats::State, int> counts;
  for (const auto& session : lease.sessions()) ++counts[session.state()];
  std::vector<std::string> states;
  for (const auto& [state, count] : counts) {
    const char* name = state == v1::SessionStats::STATE_LIVE       ? "LIVE"
                       : state == v1::SessionStats::STATE_DRAINING ? "DRAINING"
                       : state == v1::SessionStats::STATE_ABSENT   ? "ABSENT"
                                                                   : "?";
    states.push_back(count == 1 ? name : absl::StrCat(count, " ", name));
  }
  return absl::StrJoin(states, ", ");
}

}  // namespace

std::string FormatSnapshot(const v1::StatsSnapshot& snapshot, const Style& style) {
  Table cards({{"GPU", Align::kRight},
               {"NAME"},
               {"HELD", Align::kRight},
               {"PROMISED", Align::kRight},
               {"TOTAL", Align::kRight},
               {"FREE", Align::kRight},
               {"FOREIGN", Align::kRight},
               {"STATE"}});
  std::string free;
  for (const auto& card : snapshot.cards()) {
    cards.AddRow({absl::StrCat(card.index()), Printable(card.name()), Size(card.held_bytes()),
                  Size(card.promised_bytes()), Size(card.total_bytes()), Size(card.free_bytes()),
                  card.has_foreign_bytes() ? Size(card.foreign_bytes()) : "", CardState(card)});
    if (card.served()) {
      absl::StrAppend(&free, Size(card.free_bytes()), " of GPU ", card.index(), " can still be promised.\n");
    }
  }

  Table leases({{"LEASE"},
                {"DEVICE"},
                {"GPU", Align::kRight},
                {"MODE"},
                {"USED", Align::kRight},
                {"HELD", Align::kRight},
                {"LIMIT", Align::kRight},
                {"PEAK", Align::kRight},
                {"OWNER"},
                {"PID"},
                {"STATE"},
                {"AGE", Align::kRight}});
  for (const auto& lease : snapshot.leases()) {
    const std::chrono::seconds age(snapshot.taken_at().seconds() - lease.created_at().seconds());
    for (const auto& device : lease.devices()) {
      leases.AddRow({Printable(lease.name().empty() ? lease.id() : lease.name()), ShortDevice(device.name()),
                     absl::StrCat(device.card_index()), device.mode(), Size(device.used_bytes()),
                     Size(device.held_bytes()), Size(device.limit_bytes()), Size(device.peak_used_bytes()),
                     FormatOwner(lease.owner(), lease.owner_uid()), Pids(lease), SessionStates(lease),
                     FormatAge(age)});
    }
  }
  const std::string rest = leases.empty() ? "No leases.\n" : leases.Format(style);
  return absl::StrCat(cards.Format(style), "\n", rest, free.empty() ? "" : "\n", free);
}

}  // namespace lgpu::cli
