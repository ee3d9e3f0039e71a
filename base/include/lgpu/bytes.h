#ifndef LGPU_BYTES_H_
#define LGPU_BYTES_H_

#include <compare>
#include <cstdint>
#include <iosfwd>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "lgpu/export.h"

namespace lgpu {

/// Bytes is an amount of memory. It is a value type; arithmetic is that of std::uint64_t and is the
/// caller's to keep in range, except where a name says Saturating.
class Bytes {
 public:
  constexpr Bytes() = default;
  constexpr explicit Bytes(std::uint64_t count) : count_(count) {}

  constexpr std::uint64_t count() const { return count_; }
  constexpr bool is_zero() const { return count_ == 0; }

  friend constexpr auto operator<=>(Bytes, Bytes) = default;
  constexpr Bytes& operator+=(Bytes other) {
    count_ += other.count_;
    return *this;
  }
  constexpr Bytes& operator-=(Bytes other) {
    count_ -= other.count_;
    return *this;
  }
  friend constexpr Bytes operator+(Bytes a, Bytes b) { return Bytes(a.count_ + b.count_); }
  friend constexpr Bytes operator-(Bytes a, Bytes b) { return Bytes(a.count_ - b.count_); }
  friend constexpr Bytes operator*(Bytes a, std::uint64_t n) { return Bytes(a.count_ * n); }
  friend constexpr std::uint64_t operator/(Bytes a, Bytes b) { return a.count_ / b.count_; }
  friend constexpr Bytes operator/(Bytes a, std::uint64_t n) { return Bytes(a.count_ / n); }

 private:
  std::uint64_t count_ = 0;
};

/// a + b, or the largest amount where that overflows.
constexpr Bytes SaturatingAdd(Bytes a, Bytes b) {
  return Bytes(a.count() + b.count() < a.count() ? ~std::uint64_t{0} : a.count() + b.count());
}
/// a - b, or zero where b is larger.
constexpr Bytes SaturatingSub(Bytes a, Bytes b) { return a < b ? Bytes() : a - b; }

/// The smallest multiple of `unit` (a power of two) that is not below `amount`; the largest multiple
/// that fits in 64 bits where there is none.
constexpr Bytes RoundUp(Bytes amount, Bytes unit) {
  const std::uint64_t mask = unit.count() - 1;
  const Bytes raised = SaturatingAdd(amount, Bytes(mask));
  return Bytes(raised.count() & ~mask);
}
/// The largest multiple of `unit` (a power of two) that is not above `amount`.
constexpr Bytes RoundDown(Bytes amount, Bytes unit) { return Bytes(amount.count() & ~(unit.count() - 1)); }

inline namespace literals {
constexpr Bytes operator""_B(unsigned long long n) { return Bytes(n); }
constexpr Bytes operator""_KiB(unsigned long long n) { return Bytes(n << 10); }
constexpr Bytes operator""_MiB(unsigned long long n) { return Bytes(n << 20); }
constexpr Bytes operator""_GiB(unsigned long long n) { return Bytes(n << 30); }
constexpr Bytes operator""_TiB(unsigned long long n) { return Bytes(n << 40); }
}  // namespace literals

/// Reads a size as a person writes it: digits with an optional fraction ("1.5GiB") and a unit that
/// is nothing or B (bytes), K M G T, Ki Mi Gi Ti, or KiB MiB GiB TiB, in any case; all are powers of 1024.
/// White space around the whole and between number and unit is allowed. A fraction must come out as a
/// whole number of bytes or is rounded down. INVALID_ARGUMENT, with what was read and what to write
/// instead, for anything else: KB MB GB TB (ambiguous by 7 %), signs, exponents, overflow, nothing.
LGPU_API absl::StatusOr<Bytes> ParseBytes(std::string_view text);

/// Writes a size as TensorFlow's HumanReadableNumBytes does: "1023B", "1.5KiB", "512.00MiB", "2.00GiB"; one
/// decimal, from MiB on two, to the nearest.
LGPU_API std::string FormatBytes(Bytes amount);
/// As FormatBytes, rounded down: for texts such as "asked for 512.00MiB, free 511.99MiB", where rounding up
/// would hide what is missing.
LGPU_API std::string FormatBytesCut(Bytes amount);

/// FormatBytes, for streams and test messages.
LGPU_API std::ostream& operator<<(std::ostream& out, Bytes amount);

}  // namespace lgpu

#endif  // LGPU_BYTES_H_
