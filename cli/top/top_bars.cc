#include "cli/top/top_bars.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cli/output.h"
#include "lgpu/bytes.h"

namespace lgpu::cli {
namespace {

std::string Size(std::uint64_t bytes) { return FormatBytes(Bytes(bytes)); }

/// The parts of a card's memory; they add up to its total. Held: bytes in chunks, and in no block of a lease
/// that the user sees.
struct CardParts {
  std::uint64_t used = 0, charged = 0, held = 0, promised = 0, free = 0, foreign = 0;
};

CardParts PartsOf(const v1::CardStats& card, const v1::StatsSnapshot& stats) {
  CardParts parts;
  for (const v1::LeaseStats& lease : stats.leases()) {
    for (const v1::LogicalDeviceStats& device : lease.devices()) {
      if (device.card_uuid() != card.uuid()) continue;
      parts.charged += device.charged_bytes();
      parts.used += device.used_bytes() - std::min(device.used_bytes(), device.charged_bytes());
    }
  }
  parts.charged = std::min(parts.charged, card.held_bytes());
  parts.used = std::min(parts.used, card.held_bytes() - parts.charged);
  parts.held = card.held_bytes() - parts.charged - parts.used;
  parts.promised = card.promised_bytes() - std::min(card.promised_bytes(), card.held_bytes());
  parts.free = card.free_bytes();
  parts.foreign = card.foreign_bytes();
  return parts;
}

std::vector<Part> BarParts(const CardParts& parts) {
  return {{parts.used, TopLook::kUsed, "#", "█"}, {parts.charged, TopLook::kCharged, "c", "▓"},
          {parts.held, TopLook::kHeld, "=", "▒"}, {parts.promised, TopLook::kPromised, "s", "░"},
          {parts.free, TopLook::kDim, ".", "·"},  {parts.foreign, TopLook::kForeign, "x", "╳"}};
}

/// "used 60.00MiB | held 40.00MiB | ...", on as many lines as it needs.
std::vector<TopLine> FigureLines(const v1::CardStats& card, const CardParts& parts, std::size_t columns) {
  std::vector<std::pair<TopSpan, TopSpan>> figures = {{{"used "}, {Size(parts.used), TopLook::kUsed}}};
  if (parts.charged > 0) figures.push_back({{"charged "}, {Size(parts.charged), TopLook::kCharged}});
  figures.push_back({{"held "}, {Size(parts.held), TopLook::kHeld}});
  figures.push_back({{"promised "}, {Size(parts.promised), TopLook::kPromised}});
  figures.push_back({{"free "}, {Size(parts.free)}});
  figures.push_back(
      {{"outside "}, {card.has_foreign_bytes() ? Size(parts.foreign) : "unknown", TopLook::kForeign}});
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
  const CardParts parts = PartsOf(card, stats);
  constexpr std::size_t kBesideBar = 6, kBesideShortBar = 50;
  const std::size_t beside = style.is_short ? kBesideShortBar : kBesideBar;
  const std::size_t cells = style.columns > beside ? style.columns - beside : 0;
  TopLine bar = TopBar(BarParts(parts), card.total_bytes(), cells, style.ascii);
  if (style.is_short) {
    for (TopSpan& span : bar) title.push_back(std::move(span));
    title.push_back({absl::StrCat(" free ", Size(parts.free), " of ", Size(card.total_bytes()))});
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
  for (TopLine& line : FigureLines(card, parts, style.columns)) lines.push_back(std::move(line));
}

}  // namespace lgpu::cli
