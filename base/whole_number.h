#ifndef LGPU_BASE_WHOLE_NUMBER_H_
#define LGPU_BASE_WHOLE_NUMBER_H_

#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>

namespace lgpu {

/// A whole number as TensorFlow reads one in lists and variables: blanks around it, a minus sign, digits,
/// nothing else. Nothing for all other text, and for numbers that Int cannot hold.
template <typename Int>
std::optional<Int> ParseWholeNumber(std::string_view text) {
  const auto is_blank = [](char c) { return c == ' ' || (c >= '\t' && c <= '\r'); };
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_blank(text.back())) text.remove_suffix(1);
  const bool negative = !text.empty() && text.front() == '-';
  if (negative) text.remove_prefix(1);
  if (text.empty()) return std::nullopt;
  // Counts below zero, where there is one number more.
  constexpr Int kLeast = std::numeric_limits<Int>::min();
  Int value = 0;
  for (const char c : text) {
    if (!is_digit(c)) return std::nullopt;
    const Int digit = static_cast<Int>(c - '0');
    if (value < kLeast / 10 || value * 10 < kLeast + digit) return std::nullopt;
    value = static_cast<Int>(value * 10 - digit);
  }
  if (negative) return value;
  return value == kLeast ? std::nullopt : std::optional<Int>(static_cast<Int>(-value));
}

}  // namespace lgpu

#endif  // LGPU_BASE_WHOLE_NUMBER_H_
