#include "lgpu/shape.h"

#include <algorithm>
#include <limits>
#include <ostream>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"

namespace lgpu {

namespace {

/// The product of the dimensions, where zeros count as ones: a zero must not hide an overflow that
/// strides would meet. Nothing if it does not fit in 63 bits.
bool Fits(std::span<const std::int64_t> dimensions) {
  std::int64_t product = 1;
  for (const std::int64_t dimension : dimensions) {
    const std::int64_t factor = std::max<std::int64_t>(dimension, 1);
    if (product > std::numeric_limits<std::int64_t>::max() / factor) return false;
    product *= factor;
  }
  return true;
}

}  // namespace

Shape::Shape(std::initializer_list<std::int64_t> dimensions) {
  const absl::StatusOr<Shape> shape = Make({dimensions.begin(), dimensions.size()});
  LGPU_CHECK(shape.ok());
  *this = *shape;
}

absl::StatusOr<Shape> Shape::Make(std::span<const std::int64_t> dimensions) {
  if (dimensions.size() > static_cast<std::size_t>(kMaxRank)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a shape has at most ", kMaxRank, " dimensions, got ", dimensions.size()));
  }
  Shape shape;
  for (const std::int64_t dimension : dimensions) {
    if (dimension < 0) {
      return absl::InvalidArgumentError(absl::StrCat("dimension ", shape.rank_, " of shape [",
                                                     absl::StrJoin(dimensions, ","),
                                                     "] is negative; dimensions are 0 or more"));
    }
    shape.dimensions_[static_cast<std::size_t>(shape.rank_++)] = dimension;
  }
  if (!Fits(dimensions)) {
    return absl::InvalidArgumentError(absl::StrCat("shape [", absl::StrJoin(dimensions, ","),
                                                   "] has more elements than 63 bits can count"));
  }
  for (const std::int64_t dimension : dimensions) shape.elements_ *= dimension;
  return shape;
}

std::string Shape::ToString() const { return absl::StrCat("[", absl::StrJoin(dimensions(), ","), "]"); }

std::ostream& operator<<(std::ostream& out, const Shape& shape) { return out << shape.ToString(); }

}  // namespace lgpu
