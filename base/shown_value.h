#ifndef LGPU_BASE_SHOWN_VALUE_H_
#define LGPU_BASE_SHOWN_VALUE_H_

#include <cstddef>
#include <string>
#include <string_view>

namespace lgpu {

/// A variable's value for a message. The environment may hold anything; a message is one readable line.
inline std::string ShownValue(std::string_view text) {
  constexpr std::size_t kMostLength = 200;
  std::string shown = "'";
  for (char c : text.substr(0, kMostLength)) shown += (c >= 0 && c < ' ') || c == 127 ? '?' : c;
  return shown + (text.size() > kMostLength ? "...'" : "'");
}

}  // namespace lgpu

#endif  // LGPU_BASE_SHOWN_VALUE_H_
