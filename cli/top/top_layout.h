#ifndef LGPU_CLI_TOP_TOP_LAYOUT_H_
#define LGPU_CLI_TOP_TOP_LAYOUT_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lgpu/v1/events.pb.h"
#include "lgpu/v1/stats.pb.h"

namespace lgpu::cli {

// The screen of `lgpu top`, as a pure function of the statistics and the size of the screen: lines of text
// with attributes. cli/top/top_screen.h paints them.

/// The look of a piece of text. It only repeats the text's meaning.
enum class TopLook { kPlain, kTitle, kDim, kChosen, kUsed, kCharged, kHeld, kPromised, kForeign, kWarning };

/// A piece of a line.
struct TopSpan {
  std::string text;
  TopLook look = TopLook::kPlain;
};
using TopLine = std::vector<TopSpan>;

/// Per second, of one logical device.
struct TopRates {
  double ops = 0;
  double allocations = 0;
};
/// Lease id and name of the device.
using TopKey = std::pair<std::string, std::string>;

/// The rates between two snapshots; nothing for a device that the first one does not have.
std::map<TopKey, TopRates> RatesBetween(const v1::StatsSnapshot& before, const v1::StatsSnapshot& now);

/// The data behind the screen.
struct TopModel {
  v1::StatsSnapshot stats;
  std::map<TopKey, TopRates> rates;
  std::vector<v1::Event> events;  // the last ones, in their order
  std::string problem;            // why `stats` is old; empty: it is not
  std::uint32_t uid = 0;          // the user at the screen
};

enum class TopSort { kLease, kUsed, kOps, kAllocations, kOwner };
inline constexpr int kTopSorts = 5;

/// The user's choices.
struct TopView {
  std::optional<TopKey> chosen = {};  // nothing: the first row
  TopSort sort = TopSort::kLease;
  bool reversed = false;
  bool help = false;
  bool details = false;              // of the lease of the chosen row
  std::optional<TopKey> asked = {};  // whether to end the lease of this row
  std::string message = {};          // of the last key
  bool ascii = false;
  bool readonly = false;
};

struct TopSize {
  std::size_t columns = 80;
  std::size_t lines = 0;  // 0: as many as there are
};
/// A smaller screen gets the text of --once.
inline constexpr TopSize kSmallestTop = {.columns = 80, .lines = 16};

/// The rows in the order in which they are shown.
std::vector<TopKey> TopRows(const TopModel& model, const TopView& view);

/// All lines, none wider than `size.columns`, no more than `size.lines`.
std::vector<TopLine> LayOutTop(const TopModel& model, const TopView& view, TopSize size);

/// Lines as text for a pipe or a file; with colours, escape sequences around the looks.
std::string TopText(const std::vector<TopLine>& lines, bool color);

}  // namespace lgpu::cli

#endif  // LGPU_CLI_TOP_TOP_LAYOUT_H_
