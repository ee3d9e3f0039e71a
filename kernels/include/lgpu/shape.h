#ifndef LGPU_SHAPE_H_
#define LGPU_SHAPE_H_

#include <array>
#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "lgpu/export.h"

namespace lgpu {

/// The dimensions of a tensor, row-major, at most kMaxRank of them; rank 0 is a scalar. A value type
/// without allocation. Dimensions are >= 0 and their product fits in 63 bits.
class LGPU_API Shape {
 public:
  static constexpr int kMaxRank = 8;

  Shape() = default;
  /// For literals; a wrong one (too many, negative, product too large) aborts. Use Make for input.
  Shape(std::initializer_list<std::int64_t> dimensions);  // NOLINT(google-explicit-constructor)
  static absl::StatusOr<Shape> Make(std::span<const std::int64_t> dimensions);

  int rank() const { return rank_; }
  std::int64_t operator[](int i) const { return dimensions_[static_cast<std::size_t>(i)]; }
  std::span<const std::int64_t> dimensions() const {
    return {dimensions_.data(), static_cast<std::size_t>(rank_)};
  }
  std::int64_t elements() const { return elements_; }

  /// "[2,3]"; "[]" for a scalar: TensorFlow's form.
  std::string ToString() const;
  friend bool operator==(const Shape&, const Shape&) = default;

 private:
  std::array<std::int64_t, kMaxRank> dimensions_{};
  int rank_ = 0;
  std::int64_t elements_ = 1;
};
LGPU_API std::ostream& operator<<(std::ostream& out, const Shape& shape);

}  // namespace lgpu

#endif  // LGPU_SHAPE_H_
