#include "base/memory_size.h"

#include <string>

#include "absl/status/status.h"

namespace lgpu {

absl::StatusOr<Bytes> ParseMemorySize(std::string_view text) {
  const absl::StatusOr<Bytes> bytes = ParseBytes(text);
  if (!bytes.ok() || bytes->is_zero() || *bytes >= 1_MiB) return bytes;
  constexpr std::string_view kDigits = "0123456789.";
  constexpr std::string_view kBlanks = " \t\n\v\f\r";
  const std::size_t begin = text.find_first_not_of(kBlanks);
  const std::string number(text.substr(begin, text.find_last_not_of(kBlanks) + 1 - begin));
  if (number.find_first_not_of(kDigits) != std::string::npos) return bytes;  // it has a unit
  constexpr std::size_t kLongest = 32;
  const std::string shown = number.size() <= kLongest ? number : number.substr(0, kLongest) + "...";
  return absl::InvalidArgumentError(shown + " means " + shown + " bytes; write " + shown + "MiB, or " +
                                    shown + "B for bytes");
}

}  // namespace lgpu
