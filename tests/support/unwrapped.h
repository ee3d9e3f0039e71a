#ifndef LGPU_TESTS_SUPPORT_UNWRAPPED_H_
#define LGPU_TESTS_SUPPORT_UNWRAPPED_H_

#include <string>
#include <string_view>

namespace lgpu::testing {

/// The text with one blank in place of blanks and line breaks: long lines of errors are broken to fit a
/// terminal.
inline std::string Unwrapped(std::string_view text) {
  std::string line;
  for (const char c : text) {
    const char blank = c == '\n' ? ' ' : c;
    if (blank != ' ' || line.empty() || line.back() != ' ') line += blank;
  }
  return line;
}

}  // namespace lgpu::testing

#endif  // LGPU_TESTS_SUPPORT_UNWRAPPED_H_
