#include "cli/top/top_table.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/ls_tables.h"
#include "cli/output.h"
#include "cli/top/top_bars.h"
#include "lgpu/bytes.h"

namespace lgpu::cli {
namespace {

std::string Size(std::uint64_t bytes) { return FormatBytes(Bytes(bytes)); }

std::string RateText(const std::optional<TopRates>& rates, double TopRates::*which) {
  if (!rates) return "-";
  const double rate = (*rates).*which;
  const bool is_whole = rate >= 100 || rate == std::floor(rate);
  return is_whole ? absl::StrFormat("%.0f", rate) : absl::StrFormat("%.1f", rate);
}

constexpr std::size_t kPidWidth = 10;

/// Of every process once, although it may have several sessions. Pids that do not fit are counted: a cut pid
/// would be another process's.
std::string PidsOf(const v1::LeaseStats& lease) {
  std::vector<std::string> pids;
  for (const v1::SessionStats& session : lease.sessions()) {
    std::string pid = absl::StrCat(session.pid());
    if (std::find(pids.begin(), pids.end(), pid) == pids.end()) pids.push_back(std::move(pid));
  }
  if (pids.empty()) return "-";
  const std::string all = absl::StrJoin(pids, ",");
  return all.size() <= kPidWidth ? all : absl::StrCat(pids[0], ",+", pids.size() - 1);
}

/// Of all processes of the lease together.
std::string SmOf(const v1::LeaseStats& lease) {
  std::optional<std::uint32_t> sum;
  for (const v1::SessionStats& session : lease.sessions()) {
    if (session.has_sm_percent()) sum = sum.value_or(0) + session.sm_percent();
  }
  return sum ? absl::StrCat(*sum, "%") : "-";
}

std::string IdleOf(const TopRow& row, const v1::StatsSnapshot& stats) {
  if (!row.lease->has_idle_since()) return "-";
  const std::int64_t seconds = stats.taken_at().seconds() - row.lease->idle_since().seconds();
  return FormatAge(std::chrono::seconds(std::max<std::int64_t>(seconds, 0)));
}

/// A column of the table. `least`: the width of screen from which on it is shown.
struct Column {
  const char* title;
  std::size_t width;
  bool right;
  std::size_t least;
};
constexpr std::size_t kBarColumn = 3;
constexpr std::array<Column, 14> kColumns = {{{"LEASE", 12, false, 0},
                                              {"DEVICE", 6, false, 0},
                                              {"GPU", 3, true, 0},
                                              {"USED/LIMIT", 0, false, 0},  // what is left of the line
                                              {"USED", 10, true, 0},
                                              {"LIMIT", 10, true, 0},
                                              {"PEAK", 10, true, 120},
                                              {"OPS/S", 6, true, 0},
                                              {"SM", 4, true, 104},
                                              {"ALLOC/S", 7, true, 112},
                                              {"OWNER", 8, false, 96},
                                              {"PID", kPidWidth, false, 0},
                                              {"IDLE", 4, true, 88},
                                              {"STATE", 9, false, 140}}};

std::string Pad(const std::string& text, const Column& column) {
  const std::string cut = CutText(text, column.width);
  const std::string padding(column.width - TextWidth(cut), ' ');
  return column.right ? padding + cut : cut + padding;
}

std::string StateOf(const v1::LeaseStats& lease) {
  if (lease.degraded()) return "DEGRADED";
  if (lease.sessions().empty()) return "-";
  return SessionStateName(lease.sessions(0).state());
}

std::size_t BarCells(std::size_t columns) {
  std::size_t taken = 2;  // the mark of the chosen row
  for (std::size_t i = 0; i < kColumns.size(); ++i) {
    if (i != kBarColumn && columns >= kColumns[i].least) taken += kColumns[i].width + 1;
  }
  constexpr std::size_t kBrackets = 3, kFewest = 6, kMost = 60;
  return columns < taken + kBrackets + kFewest ? 0 : std::min(columns - taken - kBrackets, kMost);
}

}  // namespace

std::string CutText(std::string_view text, std::size_t columns) {
  std::size_t width = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if ((static_cast<unsigned char>(text[i]) & 0xc0) == 0x80) continue;
    if (width++ == columns) return std::string(text.substr(0, i));
  }
  return std::string(text);
}

std::string ShortDevice(const std::string& name) {
  const std::size_t at = name.rfind("device:");
  return Printable(at == std::string::npos ? name : name.substr(at + 7));
}

std::vector<TopRow> TopTableRows(const TopModel& model, const TopView& view) {
  std::vector<TopRow> rows;
  for (const v1::LeaseStats& lease : model.stats.leases()) {
    for (const v1::LogicalDeviceStats& device : lease.devices()) {
      TopRow row{.lease = &lease, .device = &device, .key = {lease.id(), device.name()}, .rates = {}};
      const auto rates = model.rates.find(row.key);
      if (rates != model.rates.end()) row.rates = rates->second;
      rows.push_back(std::move(row));
    }
  }
  const auto number = [&view](const TopRow& row) -> double {
    switch (view.sort) {
      case TopSort::kUsed:
        return static_cast<double>(row.device->used_bytes());
      case TopSort::kOps:
        return row.rates ? row.rates->ops : 0;
      case TopSort::kAllocations:
        return row.rates ? row.rates->allocations : 0;
      case TopSort::kLease:
      case TopSort::kOwner:
        break;
    }
    return 0;
  };
  std::stable_sort(rows.begin(), rows.end(), [&](const TopRow& a, const TopRow& b) {
    if (view.sort == TopSort::kLease) return a.lease->name() < b.lease->name();
    if (view.sort == TopSort::kOwner) return a.lease->owner() < b.lease->owner();
    return number(a) > number(b);
  });
  if (view.reversed) std::reverse(rows.begin(), rows.end());
  return rows;
}

TopLine TopTableTitle(std::size_t columns) {
  std::string text = "  ";
  const std::size_t cells = BarCells(columns);
  for (std::size_t i = 0; i < kColumns.size(); ++i) {
    if (columns < kColumns[i].least || (i == kBarColumn && cells == 0)) continue;
    Column column = kColumns[i];
    if (i == kBarColumn) column.width = cells + 2;
    absl::StrAppend(&text, Pad(column.title, column), " ");
  }
  return {{std::move(text), TopLook::kTitle}};
}

TopLine TopTableLine(const TopRow& row, const TopModel& model, const TopView& view, std::size_t columns,
                     bool chosen) {
  const v1::LogicalDeviceStats& device = *row.device;
  const v1::LeaseStats& lease = *row.lease;
  const std::array<std::string, kColumns.size()> cells = {
      Printable(lease.name().empty() ? lease.id() : lease.name()),
      ShortDevice(device.name()),
      absl::StrCat(device.card_index()),
      "",
      Size(device.used_bytes()),
      Size(device.limit_bytes()),
      Size(device.peak_used_bytes()),
      RateText(row.rates, &TopRates::ops),
      SmOf(lease),
      RateText(row.rates, &TopRates::allocations),
      FormatOwner(lease.owner(), lease.owner_uid()),
      PidsOf(lease),
      IdleOf(row, model.stats),
      StateOf(lease)};
  const TopLook look = chosen ? TopLook::kChosen : TopLook::kPlain;
  TopLine line = {{chosen ? "> " : "  ", look}};
  for (std::size_t i = 0; i < cells.size(); ++i) {
    if (columns < kColumns[i].least) continue;
    if (i != kBarColumn) {
      line.push_back({Pad(cells[i], kColumns[i]) + " ", look});
      continue;
    }
    const std::size_t width = BarCells(columns);
    if (width == 0) continue;
    const std::uint64_t charged = std::min(device.charged_bytes(), device.held_bytes());
    const std::uint64_t blocks = device.used_bytes() - std::min(device.used_bytes(), device.charged_bytes());
    const std::uint64_t slack = device.held_bytes() - std::min(device.held_bytes(), blocks + charged);
    const std::uint64_t rest =
        device.limit_bytes() - std::min(device.limit_bytes(), blocks + charged + slack);
    for (TopSpan& span : TopBar({{blocks, TopLook::kUsed, "#", "█"},
                                 {charged, TopLook::kCharged, "c", "▓"},
                                 {slack, TopLook::kHeld, "=", "▒"},
                                 {rest, TopLook::kDim, ".", "·"}},
                                device.limit_bytes(), width, view.ascii)) {
      line.push_back(std::move(span));
    }
    line.push_back({" "});
  }
  return line;
}

}  // namespace lgpu::cli
