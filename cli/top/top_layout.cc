#include "cli/top/top_layout.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "cli/event_lines.h"
#include "cli/ls_tables.h"
#include "cli/output.h"
#include "cli/top/top_bars.h"
#include "cli/top/top_table.h"
#include "lgpu/bytes.h"

namespace lgpu::cli {
namespace {

/// Lines have this many columns at least; a narrower window shows their beginning.
constexpr std::size_t kLeastColumns = 20;

std::string Size(std::uint64_t bytes) { return FormatBytes(Bytes(bytes)); }

/// `mark`, of one column, stands for what a line has beyond the columns.
TopLine Fit(TopLine line, std::size_t columns, const char* mark) {
  std::string text;
  for (const TopSpan& span : line) text += span.text;
  absl::StripTrailingAsciiWhitespace(&text);
  const bool is_cut = columns > 0 && TextWidth(text) > columns;
  TopLine fitted;
  std::size_t left = is_cut ? columns - 1 : columns;
  for (TopSpan& span : line) {
    span.text = CutText(span.text, left);
    left -= TextWidth(span.text);
    if (!span.text.empty()) fitted.push_back(std::move(span));
  }
  if (is_cut) fitted.push_back({mark, TopLook::kDim});
  return fitted;
}

std::vector<TopLine> QueueLines(const v1::StatsSnapshot& stats) {
  std::vector<TopLine> lines;
  for (const v1::CardStats& card : stats.cards()) {
    for (const v1::QueuedRequest& request : card.queue()) {
      const std::string owner = absl::StrCat(
          request.owner().empty() ? "another user" : Printable(request.owner()),
          request.pid() == 0 ? "" : absl::StrCat(" (pid ", request.pid(), ")"),
          request.lease_name().empty() ? "" : absl::StrCat(" ", Printable(request.lease_name())));
      lines.push_back({{absl::StrCat("  GPU ", card.index(), "  ", request.place(), ". ", owner,
                                     request.makes_lease() ? " (a new lease)" : "", " asks for ",
                                     Size(request.asked_bytes()), ", waits ",
                                     FormatAge(std::chrono::seconds(request.waited_ms() / 1000)),
                                     request.has_turn_left_ms() ? ", has its turn" : "")}});
    }
  }
  if (!lines.empty()) lines.insert(lines.begin(), TopLine{{"waiting for memory", TopLook::kTitle}});
  return lines;
}

/// Newest first.
std::vector<TopLine> EventLines(const TopModel& model, std::size_t most) {
  std::vector<TopLine> lines;
  for (auto event = model.events.rbegin(); event != model.events.rend() && lines.size() < most; ++event) {
    const std::string text = FormatEvent(*event);
    const TopLook look = event->kind() == v1::Event::KIND_REFUSED ? TopLook::kWarning : TopLook::kPlain;
    lines.push_back({{"  " + text.substr(0, text.find('\n')), look}});
  }
  if (!lines.empty()) lines.insert(lines.begin(), TopLine{{"last events", TopLook::kTitle}});
  return lines;
}

std::vector<TopLine> TextLines(const std::string& text) {
  std::vector<TopLine> lines;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) lines.push_back({{std::string(line)}});
  return lines;
}

std::vector<TopLine> HelpLines() {
  return TextLines(
      "Keys\n"
      "  up, down, PgUp, PgDn, Home, End   choose a logical device\n"
      "  Enter                             its lease in full, and back\n"
      "  o, F6                             sort by the next column\n"
      "  /                                 turn the order around\n"
      "  r                                 ask lgpud now\n"
      "  K, F9                             end the lease, yours or as root; asks first\n"
      "  a, F2                             ASCII or blocks in the bars\n"
      "  h, ?, F1                          this help, and back\n"
      "  q, F10                            quit\n"
      "\n"
      "Bars: # used, in blocks of programs; c used, charged to unmodified programs;\n"
      "= held, not used, or of leases that you do not see; s promised, not held;\n"
      ". free; x foreign, of processes outside lgpu. The numbers below the bar of a\n"
      "GPU are totals: used is part of held, and held is part of promised.\n"
      "Rates are of the time since the last look.");
}

const char* SortName(TopSort sort) {
  constexpr std::array<const char*, kTopSorts> kNames = {"lease", "used", "ops/s", "allocs/s", "owner"};
  return kNames[static_cast<std::size_t>(sort)];
}

TopLine Head(const TopModel& model) {
  const std::chrono::seconds up(static_cast<std::int64_t>(model.stats.uptime_seconds()));
  std::string text = FormatClock(model.stats.taken_at());
  text = text.substr(0, text.find('.'));
  TopLine line = {{"lgpu top", TopLook::kTitle},
                  {absl::StrCat("  ", text, "  ", Printable(model.stats.daemon()), " up ", FormatAge(up),
                                model.stats.accounting() == "estimated" ? "  accounting: estimated" : "")}};
  if (!model.problem.empty()) {
    line.push_back({absl::StrCat("  ", Printable(model.problem)), TopLook::kWarning});
  }
  return line;
}

TopLine Foot(const TopModel& model, const TopView& view) {
  if (view.asked) {
    std::string name = view.asked->first;
    for (const v1::LeaseStats& lease : model.stats.leases()) {
      if (lease.id() == view.asked->first && !lease.name().empty()) name = lease.name();
    }
    return {{absl::StrCat("End lease ", Printable(name), "? Its programs get no more memory. [y/N]"),
             TopLook::kWarning}};
  }
  if (!view.message.empty()) return {{Printable(view.message), TopLook::kWarning}};
  return {{absl::StrCat("[h]elp [q]uit [Enter] details [o] sort: ", SortName(view.sort),
                        view.reversed ? " (reversed)" : "", " [/] reverse",
                        view.readonly ? "" : " [K] end lease"),
           TopLook::kDim}};
}

/// The part of the rows that fits, with the chosen one in it.
std::pair<std::size_t, std::size_t> Window(std::size_t rows, std::size_t chosen, std::size_t room) {
  if (rows <= room) return {0, rows};
  const std::size_t first = std::min(chosen < room / 2 ? 0 : chosen - room / 2, rows - room);
  return {first, first + room};
}

std::size_t ChosenOf(const std::vector<TopRow>& rows, const TopView& view) {
  for (std::size_t i = 0; view.chosen && i < rows.size(); ++i) {
    if (rows[i].key == *view.chosen) return i;
  }
  return 0;
}

void Append(std::vector<TopLine> more, std::vector<TopLine>& lines) {
  for (TopLine& line : more) lines.push_back(std::move(line));
}

std::vector<TopLine> DetailLines(const TopModel& model, const std::vector<TopRow>& rows, const TopView& view,
                                 std::size_t columns) {
  if (rows.empty()) return {{{"There is no lease."}}};
  return TextLines(
      FormatLease(*rows[ChosenOf(rows, view)].lease, model.stats, {.color = false, .width = columns}));
}

/// The table, with the waiting requests and the last events below it in `room` lines (0: as many as needed).
std::vector<TopLine> Body(const TopModel& model, const TopView& view, const std::vector<TopRow>& rows,
                          TopSize size, std::size_t room) {
  constexpr std::size_t kMostEvents = 6, kMostQueued = 6;
  std::vector<TopLine> queue = QueueLines(model.stats);
  std::vector<TopLine> events = EventLines(model, kMostEvents);
  if (queue.size() > kMostQueued && room > 0) {
    queue.resize(kMostQueued);
    queue.push_back({{"  ...", TopLook::kDim}});
  }
  std::size_t shown = rows.size();
  if (room > 0) {
    const std::size_t below =
        queue.size() + events.size() + (queue.empty() ? 0 : 1) + (events.empty() ? 0 : 1);
    const std::size_t fewest = std::min<std::size_t>(rows.size(), 4);
    shown = std::min(rows.size(), std::max(fewest, room > below + 2 ? room - below - 2 : 0));
  }
  std::vector<TopLine> lines;
  if (rows.empty()) {
    lines.push_back({{model.uid == 0 ? "No leases." : "No leases of yours."}});
  } else {
    const std::size_t chosen = ChosenOf(rows, view);
    const auto [first, last] = Window(rows.size(), chosen, std::max<std::size_t>(shown, 1));
    lines.push_back(TopTableTitle(size.columns));
    for (std::size_t i = first; i < last; ++i) {
      lines.push_back(TopTableLine(rows[i], model, view, size.columns, room > 0 && i == chosen));
    }
    if (last - first < rows.size()) {
      lines.push_back({{absl::StrCat("  ", first + 1, " to ", last, " of ", rows.size()), TopLook::kDim}});
    }
  }
  for (std::vector<TopLine>* part : {&queue, &events}) {
    if (part->empty()) continue;
    lines.emplace_back();
    Append(std::move(*part), lines);
  }
  return lines;
}

}  // namespace

std::map<TopKey, TopRates> RatesBetween(const v1::StatsSnapshot& before, const v1::StatsSnapshot& now) {
  const auto at = [](const v1::StatsSnapshot& snapshot) {
    return static_cast<double>(snapshot.taken_at().seconds()) +
           1e-9 * static_cast<double>(snapshot.taken_at().nanos());
  };
  const double seconds = at(now) - at(before);
  std::map<TopKey, const v1::LogicalDeviceStats*> known;
  for (const v1::LeaseStats& lease : before.leases()) {
    for (const v1::LogicalDeviceStats& device : lease.devices()) known[{lease.id(), device.name()}] = &device;
  }
  std::map<TopKey, TopRates> rates;
  if (seconds <= 0) return rates;
  // Counts fall when a session ends.
  const auto rate = [seconds](std::uint64_t was, std::uint64_t is) {
    return is > was ? static_cast<double>(is - was) / seconds : 0.0;
  };
  for (const v1::LeaseStats& lease : now.leases()) {
    for (const v1::LogicalDeviceStats& device : lease.devices()) {
      const auto found = known.find({lease.id(), device.name()});
      if (found == known.end()) continue;
      rates[found->first] = {
          .ops = rate(found->second->ops_total(), device.ops_total()),
          .allocations = rate(found->second->allocations_total(), device.allocations_total())};
    }
  }
  return rates;
}

std::vector<TopKey> TopRows(const TopModel& model, const TopView& view) {
  std::vector<TopKey> keys;
  for (const TopRow& row : TopTableRows(model, view)) keys.push_back(row.key);
  return keys;
}

std::vector<TopLine> LayOutTop(const TopModel& model, const TopView& view, TopSize wanted) {
  const TopSize size{.columns = std::max(wanted.columns, kLeastColumns), .lines = wanted.lines};
  const std::vector<TopRow> rows = TopTableRows(model, view);
  std::vector<TopLine> lines = {Head(model)};
  const bool has_foot = size.lines > 0;
  if (view.help) {
    Append(HelpLines(), lines);
  } else if (view.details) {
    Append(DetailLines(model, rows, view, size.columns), lines);
  } else {
    constexpr std::size_t kLinesOfACard = 4;
    const std::size_t cards = static_cast<std::size_t>(model.stats.cards_size());
    const bool is_short = has_foot && cards * kLinesOfACard > size.lines / 2;
    for (const v1::CardStats& card : model.stats.cards()) {
      AddCard(card, model.stats, {.columns = size.columns, .ascii = view.ascii, .is_short = is_short}, lines);
    }
    lines.emplace_back();
    const std::size_t taken = lines.size() + (has_foot ? 1 : 0);
    const std::size_t room = !has_foot ? 0 : size.lines > taken ? size.lines - taken : 1;
    Append(Body(model, view, rows, size, room), lines);
  }
  if (has_foot) {
    lines.resize(size.lines - 1);
    lines.push_back(Foot(model, view));
  }
  for (TopLine& line : lines) line = Fit(std::move(line), wanted.columns, view.ascii ? ">" : "…");
  return lines;
}

std::string TopText(const std::vector<TopLine>& lines, bool color) {
  std::string text;
  for (const TopLine& line : lines) {
    std::string row;
    for (const TopSpan& span : line) {
      const char* const code = span.look == TopLook::kTitle      ? "1"
                               : span.look == TopLook::kWarning  ? "1;31"
                               : span.look == TopLook::kUsed     ? "34"
                               : span.look == TopLook::kCharged  ? "33"
                               : span.look == TopLook::kHeld     ? "36"
                               : span.look == TopLook::kPromised ? "35"
                                                                 : "";
      absl::StrAppend(
          &row, color && *code != 0 ? absl::StrCat("\033[", code, "m", span.text, "\033[0m") : span.text);
    }
    row.erase(row.find_last_not_of(' ') + 1);
    absl::StrAppend(&text, row, "\n");
  }
  return text;
}

}  // namespace lgpu::cli
