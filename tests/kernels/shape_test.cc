#include "lgpu/shape.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace lgpu {
namespace {

TEST(ShapeTest, CountsElements) {
  EXPECT_EQ(Shape().elements(), 1);
  EXPECT_EQ((Shape{2, 3}).elements(), 6);
  EXPECT_EQ((Shape{2, 0, 3}).elements(), 0);
  EXPECT_EQ((Shape{2, 3}).ToString(), "[2,3]");
  EXPECT_EQ(Shape().ToString(), "[]");
  EXPECT_EQ((Shape{2, 3}), (Shape{2, 3}));
  EXPECT_NE((Shape{2, 3}), (Shape{3, 2}));
  EXPECT_NE((Shape{1}), Shape());
}

TEST(ShapeTest, MakeRefusesInvalidDimensions) {
  const auto make = [](std::vector<std::int64_t> dimensions) { return Shape::Make(dimensions).status(); };
  EXPECT_EQ(make({1, -1}).message(), "dimension 1 of shape [1,-1] is negative; dimensions are 0 or more");
  EXPECT_EQ(make(std::vector<std::int64_t>(9, 1)).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(make({std::int64_t{1} << 32, std::int64_t{1} << 31}).code(), absl::StatusCode::kInvalidArgument);
  // A zero does not hide an overflow of the other dimensions.
  EXPECT_EQ(make({0, std::int64_t{1} << 32, std::int64_t{1} << 32}).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(make({std::numeric_limits<std::int64_t>::max(), 1}).ok());
}

TEST(ShapeDeathTest, WrongLiteralAborts) { EXPECT_DEATH((Shape{-1}), "check failed"); }

}  // namespace
}  // namespace lgpu
