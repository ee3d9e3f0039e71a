#include "cli/top/top_bars.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cli/ls_tables.h"
#include "cli/output.h"
#include "lgpu/bytes.h"

namespace lgpu::cli {
namespace {

std::string Size(std::uint64_t bytes) { return FormatBytes(Bytes(bytes)); }

/// The numbers of a card and the parts of its bar, which add up to its total. `used` is a sum of the leases
/// that the user sees; `slack` is held and not in `used`, `aside` is promised and not held.
struct CardUse {
  std::uint64_t used = 0, charged = 0;
  std::uint64_t blocks = 0, slack = 0, aside = 0;
};

CardUse UseOf(const v1::CardStats& card, const v1::StatsSnapshot& stats) {
  CardUse use;
  for (const v1::LeaseStats& lease : stats.leases()) {
    for (const v1::LogicalDeviceStats& device : lease.devices()) {
      if (device.card_uuid() != card.uuid()) continue;
      use.used += device.used_bytes();
      use.charged += device.charged_bytes();
    }
  }
  // Programs tell what they use; lgpud counts what they hold.
  use.used = std::min(use.used, card.held_bytes());
  use.charged = std::min(use.charged, use.used);
  use.blocks = use.used - use.charged;
  use.slack = card.held_bytes() - use.used;
  use.aside = card.promised_bytes() - std::min(card.promised_bytes(), card.held_bytes());
  return use;
}

std::vector<Part> BarParts(const v1::CardStats& card, const CardUse& use) {
  return {{use.blocks, TopLook::kUsed, "#", "█"},       {use.charged, TopLook::kCharged, "c", "▓"},
          {use.slack, TopLook::kHeld, "=", "▒"},        {use.aside, TopLook::kPromised, "s", "░"},
          {card.free_bytes(), TopLook::kDim, ".", "·"}, {card.foreign_bytes(), TopLook::kForeign, "x", "╳"}};
}

/// "used 60.00MiB | held 100.00MiB | ...", on as many lines as it needs.
std::vector<TopLine> FigureLines(const v1::CardStats& card, const CardUse& use, std::size_t columns) {
  std::vector<std::pair<TopSpan, TopSpan>> figures = {{{"used "}, {Size(use.used), TopLook::kUsed}}};
  if (use.charged > 0) figures.push_back({{"charged "}, {Size(use.charged), TopLook::kCharged}});
  figures.push_back({{"held "}, {Size(card.held_bytes()), TopLook::kHeld}});
  figures.push_back({{"promised "}, {Size(card.promised_bytes()), TopLook::kPromised}});
  figures.push_back({{"free "}, {FormatBytesCut(Bytes(card.free_bytes()))}});
  figures.push_back(
      {{"foreign "}, {card.has_foreign_bytes() ? Size(card.foreign_bytes()) : "unknown", TopLook::kForeign}});
  figures.push_back(
      {{"util "}, {card.has_utilization_percent() ? absl::StrCat(card.utilization_percent(), "%") : "-"}});
  figures.push_back(
      {{"temp "}, {card.has_temperature_celsius() ? absl::StrCat(card.temperature_celsius(), "C") : "-"}});
  figures.push_back({{"power "}, {FormatPower(card)}});
  constexpr std::size_t kIndent = 4, kBetween = 3;
  std::vector<TopLine> lines;
  std::size_t width = columns;
  for (auto& [name, amount] : figures) {
    const std::size_t more = TextWidth(name.text) + TextWidth(amount.text);
    if (width + kBetween + more > columns) {
      lines.push_back({{std::string(kIndent, ' ')}});
      width = kIndent;
    } else {
      lines.back().push_back({" | "});
      width += kBetween;
    }
    lines.back().push_back(std::move(name));
    lines.back().push_back(std::move(amount));
    width += more;
  }
  return lines;
}

}  // namespace

TopLine TopBar(const std::vector<Part>& parts, std::uint64_t total, std::size_t cells, bool ascii) {
  TopLine line = {{"["}};
  std::uint64_t sum = 0;
  std::size_t at = 0;
  for (const Part& part : parts) {
    sum += part.bytes;
    const double ratio =
        total == 0 ? 0 : std::min(1.0, static_cast<double>(sum) / static_cast<double>(total));
    std::size_t end = static_cast<std::size_t>(std::lround(ratio * static_cast<double>(cells)));
    if (part.bytes > 0 && end <= at) end = at + 1;
    end = std::min(end, cells);
    std::string text;
    for (; at < end; ++at) text += ascii ? part.letter : part.block;
    if (!text.empty()) line.push_back({std::move(text), part.look});
  }
  line.push_back({std::string(cells - at, ' ')});
  line.push_back({"]"});
  return line;
}

void AddCard(const v1::CardStats& card, const v1::StatsSnapshot& stats, const CardStyle& style,
             std::vector<TopLine>& lines) {
  TopLine title = {{absl::StrCat("GPU ", card.index(), "  "), TopLook::kTitle}};
  if (!style.is_short) {
    title.push_back({absl::StrCat(Printable(card.name()), "  ", Size(card.total_bytes()))});
  }
  if (!card.served()) {
    title.push_back({absl::StrCat("  not served: ", Printable(card.not_served_because())), TopLook::kDim});
    lines.push_back(std::move(title));
    return;
  }
  const CardUse use = UseOf(card, stats);
  constexpr std::size_t kBesideBar = 6, kBesideShortBar = 50;
  const std::size_t beside = style.is_short ? kBesideShortBar : kBesideBar;
  const std::size_t cells = style.columns > beside ? style.columns - beside : 0;
  TopLine bar = TopBar(BarParts(card, use), card.total_bytes(), cells, style.ascii);
  if (style.is_short) {
    for (TopSpan& span : bar) title.push_back(std::move(span));
    title.push_back(
        {absl::StrCat(" free ", FormatBytesCut(Bytes(card.free_bytes())), " of ", Size(card.total_bytes()))});
  }
  if (card.overcommitted()) title.push_back({"  OVERCOMMITTED: nothing is granted", TopLook::kWarning});
  if (card.waiting_requests() > 0) {
    title.push_back({absl::StrCat("  ", card.waiting_requests(), " waiting"), TopLook::kWarning});
  }
  if (card.draining_bytes() > 0) {
    title.push_back({absl::StrCat("  ", Size(card.draining_bytes()), " draining")});
  }
  lines.push_back(std::move(title));
  if (style.is_short) return;
  lines.push_back({{"MEM "}});
  for (TopSpan& span : bar) lines.back().push_back(std::move(span));
  for (TopLine& line : FigureLines(card, use, style.columns)) lines.push_back(std::move(line));
}

}  // namespace lgpu::cli
