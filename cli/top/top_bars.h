#ifndef LGPU_CLI_TOP_TOP_BARS_H_
#define LGPU_CLI_TOP_TOP_BARS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cli/top/top_layout.h"
#include "lgpu/v1/stats.pb.h"

namespace lgpu::cli {

// The bars of `lgpu top`, and its lines for a GPU. Pure functions, as LayOutTop.

/// A part of a bar; `letter` is ASCII's, `block` the other's.
struct Part {
  std::uint64_t bytes;
  TopLook look;
  const char* letter;
  const char* block;
};

/// "[####ss....xx]", `cells` wide without the brackets. Each part above zero has at least one cell, as far as
/// there are cells.
TopLine TopBar(const std::vector<Part>& parts, std::uint64_t total, std::size_t cells, bool ascii);

/// The display of a GPU.
struct CardStyle {
  std::size_t columns = 80;
  bool ascii = false;
  bool is_short = false;  // one line, where many GPUs would leave no room for anything else
};
/// Adds the lines of a GPU.
void AddCard(const v1::CardStats& card, const v1::StatsSnapshot& stats, const CardStyle& style,
             std::vector<TopLine>& lines);

}  // namespace lgpu::cli

#endif  // LGPU_CLI_TOP_TOP_BARS_H_
