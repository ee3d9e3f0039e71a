#include "bench/text_table.h"

#include <algorithm>
#include <array>
#include <cstdio>

namespace lgpu::bench {

std::string TextTable::Text() const {
  std::vector<std::size_t> widths;
  for (const std::vector<std::string>& row : rows_) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const std::vector<std::string>& row : rows_) {
    text += "  ";
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string padding(widths[i] - row[i].size(), ' ');
      if (i == 0) {
        text += row[i] + (row.size() > 1 ? padding : "");
      } else {
        text += "  " + padding + row[i];
      }
    }
    text += '\n';
  }
  return text;
}

std::string Fixed(double value, int digits) {
  std::array<char, 64> text{};
  const int length = std::snprintf(text.data(), text.size(), "%.*f", digits, value);
  return std::string(text.data(), static_cast<std::size_t>(std::clamp(length, 0, 63)));
}

}  // namespace lgpu::bench
