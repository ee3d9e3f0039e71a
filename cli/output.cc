#include "cli/output.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <ctime>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/utf8.h"

namespace lgpu::cli {
namespace {

// The most columns of a last column that is cut which count for the table's width.
constexpr std::size_t kCountedOfLast = 12;

/// At most so many characters of UTF-8, the last three of them dots where there were more.
std::string CutWithDots(const std::string& text, std::size_t most) {
  if (TextWidth(text) <= most) return text;
  std::size_t width = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool begins = (static_cast<unsigned char>(text[i]) & 0xc0) != 0x80;
    if (begins && width++ + 3 == most) return text.substr(0, i) + "...";
  }
  return text;
}

}  // namespace

std::size_t TextWidth(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

std::string Wrap(std::string_view text, std::size_t width, std::size_t indent, std::size_t used) {
  std::string out;
  for (const std::string& word : std::vector<std::string>(absl::StrSplit(std::string(text), ' '))) {
    const std::size_t taken = TextWidth(word);
    const bool fits = used == indent || width == 0 || used + 1 + taken <= width;
    if (!fits) {
      absl::StrAppend(&out, "\n", std::string(indent, ' '));
      used = indent;
    } else if (used != indent) {
      out += ' ';
      ++used;
    }
    out += word;
    used += taken;
  }
  return out;
}

std::size_t TerminalWidth(const std::string& variable) {
  constexpr std::size_t kUsual = 80;
  std::size_t width = 0;
  if (absl::SimpleAtoi(variable, &width) && width > 0) return width;
  winsize size = {};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return kUsual;
}

bool UseColor(ColorMode mode, const ColorEnvironment& environment) {
  if (mode != ColorMode::kAuto) return mode == ColorMode::kAlways;
  if (environment.no_color) return false;
  if (environment.clicolor_force) return true;
  return environment.is_terminal && !environment.dumb_terminal;
}

std::string Style::Bold(std::string_view text) const {
  return color ? "\033[1m" + std::string(text) + "\033[0m" : std::string(text);
}

std::string Style::Red(std::string_view text) const {
  return color ? "\033[1;31m" + std::string(text) + "\033[0m" : std::string(text);
}

void Table::AddRow(std::vector<std::string> cells) {
  cells.resize(columns_.size());
  for (std::string& cell : cells) {
    if (cell.empty()) cell = "-";
  }
  rows_.push_back(std::move(cells));
}

std::vector<std::size_t> Table::Shown(const std::vector<std::size_t>& widths, std::size_t most) const {
  std::vector<std::size_t> shown;
  for (std::size_t i = 0; i < columns_.size(); ++i) shown.push_back(i);
  const auto total = [&] {
    std::size_t sum = 2 * (shown.size() - 1);
    for (const std::size_t i : shown) {
      sum += columns_[i].is_cut ? std::min(widths[i], kCountedOfLast) : widths[i];
    }
    return sum;
  };
  while (most > 0 && total() > most) {
    const auto least = std::max_element(shown.begin(), shown.end(), [this](std::size_t a, std::size_t b) {
      return columns_[a].drop < columns_[b].drop;
    });
    if (columns_[*least].drop == 0) break;
    shown.erase(least);
  }
  return shown;
}

std::size_t Table::MostOfLast(const std::vector<std::size_t>& shown, const std::vector<std::size_t>& widths,
                              std::size_t most) const {
  const std::size_t last = shown.back();
  if (most == 0 || !columns_[last].is_cut) return widths[last];
  std::size_t before = 0;
  for (const std::size_t i : shown) before += i == last ? 0 : widths[i] + 2;
  return std::min(widths[last], std::max(kCountedOfLast, most > before ? most - before : 0));
}

std::string Table::Format(const Style& style) const {
  std::vector<std::size_t> widths;
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    std::size_t width = TextWidth(columns_[i].title);
    for (const auto& row : rows_) width = std::max(width, TextWidth(row[i]));
    widths.push_back(width);
  }
  const std::vector<std::size_t> shown = Shown(widths, style.width);
  const std::size_t most_of_last = MostOfLast(shown, widths, style.width);
  const auto line = [&](const auto& cell_of) {
    std::string text;
    for (const std::size_t i : shown) {
      const std::string cell = i == shown.back() ? CutWithDots(cell_of(i), most_of_last) : cell_of(i);
      const std::string padding(widths[i] - TextWidth(cell), ' ');
      if (i != shown.front()) text += "  ";
      if (columns_[i].align == Align::kRight) {
        text += padding + cell;
      } else {
        text += cell;
        if (i != shown.back()) text += padding;
      }
    }
    return text;
  };
  std::string text =
      style.Bold(line([&](std::size_t i) -> const std::string& { return columns_[i].title; })) + "\n";
  for (const auto& row : rows_) {
    text += line([&](std::size_t i) -> const std::string& { return row[i]; }) + "\n";
  }
  return text;
}

std::string FormatAge(std::chrono::seconds age) {
  const auto s = age.count();
  if (s < 0) return "-";
  if (s < 60) return absl::StrCat(s, "s");
  if (s < 60 * 60) return absl::StrCat(s / 60, "m");
  if (s < 24 * 60 * 60) return absl::StrCat(s / (60 * 60), "h");
  return absl::StrCat(s / (24 * 60 * 60), "d");
}

std::string FormatNanoseconds(std::uint64_t ns) {
  const double value = static_cast<double>(ns);
  if (ns < 1'000) return absl::StrCat(ns, "ns");
  if (ns < 1'000'000) return absl::StrFormat("%.1fus", value / 1e3);
  if (ns < 1'000'000'000) return absl::StrFormat("%.1fms", value / 1e6);
  return absl::StrFormat("%.2fs", value / 1e9);
}

std::string FormatClock(const google::protobuf::Timestamp& time) {
  const std::time_t seconds = time.seconds();
  std::tm parts{};
  if (localtime_r(&seconds, &parts) == nullptr) return "-";
  return absl::StrFormat("%02d:%02d:%02d.%03d", parts.tm_hour, parts.tm_min, parts.tm_sec,
                         time.nanos() / 1'000'000);
}

std::string FormatOwner(std::string_view owner, std::uint32_t uid) {
  return owner.empty() ? absl::StrCat(uid) : Printable(owner);
}

std::string SessionStateName(v1::SessionStats::State state) {
  switch (state) {
    case v1::SessionStats::STATE_LIVE:
      return "LIVE";
    case v1::SessionStats::STATE_DRAINING:
      return "DRAINING";
    case v1::SessionStats::STATE_ABSENT:
      return "ABSENT";
    default:
      return "?";
  }
}

std::string Printable(std::string_view text) { return AsUtf8(text); }

absl::StatusOr<std::chrono::milliseconds> ParseDuration(std::string_view text) {
  const std::size_t end = text.find_first_not_of("0123456789.");
  const std::string_view unit = end == std::string_view::npos ? "" : text.substr(end);
  double factor = 0;
  if (unit == "ms") factor = 1;
  if (unit.empty() || unit == "s") factor = 1e3;
  if (unit == "m" || unit == "min") factor = 60e3;
  if (unit == "h") factor = 3600e3;
  const std::string number(text.substr(0, text.size() - unit.size()));
  double value = 0;
  // A year is far beyond any use and far below what the clocks overflow at.
  constexpr double kMaxMs = 366.0 * 24 * 3600e3;
  if (factor == 0 || !absl::SimpleAtod(number, &value) || !std::isfinite(value) || value * factor > kMaxMs) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", Printable(text).c_str(),
                     "\" is not a duration\ntry: 500ms, 10s, 2m, 1h, or a number of seconds"));
  }
  return std::chrono::milliseconds(static_cast<std::int64_t>(value * factor));
}

absl::Status WriteOut(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(STDOUT_FILENO, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      return absl::UnknownError(absl::StrCat("cannot write the answer: ", std::strerror(errno)));
    }
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return absl::OkStatus();
}

}  // namespace lgpu::cli
