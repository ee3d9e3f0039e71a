#include "lgpu/bytes.h"

#include <cstddef>
#include <limits>
#include <optional>
#include <ostream>
#include <string>

#include "absl/status/status.h"

namespace lgpu {
namespace {

constexpr std::uint64_t kMax = std::numeric_limits<std::uint64_t>::max();
constexpr std::string_view kHowTo =
    "write bytes (2147483648), or a number and a unit of K M G T, as in 512MiB or 1.5GiB";

// Not the functions of <cctype>: they depend on the locale and on char's sign.
bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsSpace(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
char ToUpper(char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c; }

std::string_view Trimmed(std::string_view text) {
  while (!text.empty() && IsSpace(text.front())) text.remove_prefix(1);
  while (!text.empty() && IsSpace(text.back())) text.remove_suffix(1);
  return text;
}

// The user's text, cut to a length that fits into a message.
std::string Quoted(std::string_view text) {
  constexpr std::size_t kShown = 64;
  std::string quoted = "'";
  for (char c : text.substr(0, kShown)) quoted += (c >= 0 && c < ' ') || c == 127 ? '?' : c;
  return quoted + (text.size() > kShown ? "...'" : "'");
}

absl::Status Error(std::string_view text, std::string_view why, std::string_view hint) {
  std::string message = Quoted(text) + " is not a size: ";
  message.append(why).append("; ").append(hint);
  return absl::InvalidArgumentError(message);
}

struct Unit {
  std::string_view letters;  // upper case
  int shift;
};
constexpr Unit kUnits[] = {{"", 0},     {"B", 0},   {"K", 10},   {"KI", 10}, {"KIB", 10},
                           {"M", 20},   {"MI", 20}, {"MIB", 20}, {"G", 30},  {"GI", 30},
                           {"GIB", 30}, {"T", 40},  {"TI", 40},  {"TIB", 40}};

std::optional<int> ShiftOf(std::string_view unit) {
  for (const Unit& known : kUnits) {
    if (known.letters == unit) return known.shift;
  }
  return std::nullopt;
}

// The whole part of 0.`digits` * 2^shift, exactly: doubles the decimal fraction `shift` times.
std::uint64_t ScaledFraction(std::string digits, int shift) {
  std::uint64_t whole = 0;
  for (int i = 0; i < shift; ++i) {
    int carry = 0;
    for (std::size_t j = digits.size(); j-- > 0;) {
      const int doubled = 2 * (digits[j] - '0') + carry;
      digits[j] = static_cast<char>('0' + doubled % 10);
      carry = doubled / 10;
    }
    whole = 2 * whole + static_cast<std::uint64_t>(carry);
  }
  return whole;
}

std::string_view TakeDigits(std::string_view& rest) {
  std::size_t n = 0;
  while (n < rest.size() && IsDigit(rest[n])) ++n;
  const std::string_view digits = rest.substr(0, n);
  rest.remove_prefix(n);
  return digits;
}

// The number that `digits` write, or nothing if it is above `most`.
std::optional<std::uint64_t> Number(std::string_view digits, std::uint64_t most) {
  std::uint64_t number = 0;
  for (char c : digits) {
    const std::uint64_t digit = static_cast<std::uint64_t>(c - '0');
    if (number > (most - digit) / 10) return std::nullopt;
    number = number * 10 + digit;
  }
  return number;
}

constexpr std::string_view kPrefixes = "KMGTPE";

// One decimal for KiB, two from MiB on.
std::string Decimal(std::uint64_t whole, std::uint64_t decimals, std::size_t prefix) {
  std::string text = std::to_string(whole) + ".";
  if (prefix > 0 && decimals < 10) text += '0';
  return text + std::to_string(decimals) + kPrefixes[prefix] + "iB";
}

}  // namespace

absl::StatusOr<Bytes> ParseBytes(std::string_view text) {
  std::string_view rest = Trimmed(text);
  if (rest.empty()) return Error(text, "there is nothing in it", kHowTo);
  if (rest.front() == '-' || rest.front() == '+') return Error(text, "a size has no sign", kHowTo);
  const std::string_view digits = TakeDigits(rest);
  if (digits.empty()) return Error(text, "it does not begin with a digit", kHowTo);
  std::string_view fraction;
  if (!rest.empty() && rest.front() == '.') {
    rest.remove_prefix(1);
    fraction = TakeDigits(rest);
    if (fraction.empty()) return Error(text, "no digit after the point", kHowTo);
  }

  std::string unit;
  for (char c : Trimmed(rest)) unit += ToUpper(c);
  const std::optional<int> shift = ShiftOf(unit);
  if (!shift) {
    if (unit.size() == 2 && unit[1] == 'B' && ShiftOf(unit.substr(0, 1))) {
      const std::string hint =
          std::string("write ") + unit[0] + "iB for powers of 1024, or the number of bytes";
      return Error(text, unit + " may mean powers of 1000 or of 1024", hint);
    }
    return Error(text, "unknown unit " + Quoted(Trimmed(rest)), kHowTo);
  }
  const std::optional<std::uint64_t> whole = Number(digits, kMax >> *shift);
  if (!whole) return Error(text, "more than 64 bits can count", "the largest size is 16777215TiB");
  return Bytes((*whole << *shift) + ScaledFraction(std::string(fraction), *shift));
}

std::string FormatBytes(Bytes amount) {
  std::uint64_t count = amount.count();
  if (count < 1024) return std::to_string(count) + "B";
  std::size_t prefix = 0;
  for (; count >= 1024 * 1024; count /= 1024) ++prefix;
  // Rounds count / 1024.0 as printf does, in any locale: to the nearest, halves to even.
  const std::uint64_t scale = prefix == 0 ? 10 : 100;
  std::uint64_t scaled = count * scale / 1024;
  const std::uint64_t rest = count * scale % 1024;
  if (rest > 512 || (rest == 512 && scaled % 2 == 1)) ++scaled;
  return Decimal(scaled / scale, scaled % scale, prefix);
}

std::string FormatBytesCut(Bytes amount) {
  const std::uint64_t count = amount.count();
  if (count < 1024) return std::to_string(count) + "B";
  std::size_t prefix = 0;
  while (prefix + 1 < kPrefixes.size() && count >> (10 * (prefix + 2)) != 0) ++prefix;
  const int shift = static_cast<int>(10 * (prefix + 1));
  const std::uint64_t rest = count & ((std::uint64_t{1} << shift) - 1);
  // Below 2^60 * 10, which has room; the second digit comes from the first one's remainder.
  const std::uint64_t first = rest * 10 >> shift;
  const std::uint64_t second = (rest * 10 & ((std::uint64_t{1} << shift) - 1)) * 10 >> shift;
  return Decimal(count >> shift, prefix == 0 ? first : first * 10 + second, prefix);
}

std::ostream& operator<<(std::ostream& out, Bytes amount) { return out << FormatBytes(amount); }

}  // namespace lgpu
