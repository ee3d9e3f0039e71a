#include "lgpu/dtype.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "kernels/bodies/cast.h"

namespace lgpu {
namespace {

TEST(DTypeTest, NamesAndSizes) {
  EXPECT_EQ(DTypeName(DType::kFloat32), "float");
  EXPECT_EQ(DTypeName(DType::kFloat16), "half");
  EXPECT_EQ(DTypeName(DType::kInvalid), "invalid");
  EXPECT_EQ(DTypeName(static_cast<DType>(77)), "invalid");
  EXPECT_EQ(ElementBytes(DType::kBFloat16), 2U);
  EXPECT_EQ(ElementBytes(DType::kInt64), 8U);
  EXPECT_EQ(ElementBytes(static_cast<DType>(77)), 0U);
}

TEST(DTypeTest, EveryHalfComesBackFromFloat) {
  for (int bits = 0; bits <= 0xffff; ++bits) {
    const Half half{static_cast<std::uint16_t>(bits)};
    const float wide = HalfToFloat(half);
    if (std::isnan(wide)) {
      EXPECT_TRUE((bits & 0x7c00) == 0x7c00 && (bits & 0x3ff) != 0) << bits;
      EXPECT_TRUE(std::isnan(HalfToFloat(FloatToHalf(wide))));
    } else {
      ASSERT_EQ(FloatToHalf(wide).bits, bits);
      const double mantissa = bits & 0x3ff;
      const int exponent = (bits >> 10) & 0x1f;
      const double expected = exponent == 0x1f ? std::numeric_limits<double>::infinity()
                              : exponent == 0  ? std::ldexp(mantissa, -24)
                                               : std::ldexp(1024 + mantissa, exponent - 25);
      ASSERT_EQ(static_cast<double>(wide), (bits & 0x8000) != 0 ? -expected : expected);
    }
  }
}

// Between two neighbours the nearer one wins, and the even one at the middle; over the whole range.
TEST(DTypeTest, FloatToHalfRoundsToNearestEven) {
  for (std::uint16_t bits = 0; bits < 0x7c00; ++bits) {
    const float low = HalfToFloat(Half{bits});
    const float high = bits == 0x7bff ? 65536.0F : HalfToFloat(Half{static_cast<std::uint16_t>(bits + 1)});
    const float middle = low + (high - low) / 2;
    const auto next = static_cast<std::uint16_t>(bits + 1);
    ASSERT_EQ(FloatToHalf(middle).bits, (bits & 1) == 0 ? bits : next);
    ASSERT_EQ(FloatToHalf(std::nextafterf(middle, 0)).bits, bits);
    ASSERT_EQ(FloatToHalf(std::nextafterf(middle, 1e9F)).bits, next);
    ASSERT_EQ(FloatToHalf(-std::nextafterf(middle, 1e9F)).bits, next | 0x8000);
  }
  EXPECT_EQ(FloatToHalf(std::numeric_limits<float>::infinity()).bits, 0x7c00);
  EXPECT_EQ(FloatToHalf(1e30F).bits, 0x7c00);
  EXPECT_EQ(FloatToHalf(-0.0F).bits, 0x8000);
  EXPECT_EQ(FloatToHalf(std::numeric_limits<float>::denorm_min()).bits, 0);
}

TEST(DTypeTest, FloatToBFloat16RoundsToNearestEven) {
  for (std::uint32_t bits = 0; bits < 0x7f80; ++bits) {
    const std::uint32_t base = bits << 16;
    const auto round = [](std::uint32_t u) { return FloatToBFloat16(std::bit_cast<float>(u)).bits; };
    ASSERT_EQ(round(base), bits);
    ASSERT_EQ(round(base | 0x7fff), bits);
    ASSERT_EQ(round(base | 0x8000), (bits & 1) == 0 ? bits : bits + 1);
    ASSERT_EQ(round(base | 0x8001), bits + 1);
  }
  const float nan = std::bit_cast<float>(0x7f800001U);  // its payload lies in the half that goes
  EXPECT_TRUE(std::isnan(BFloat16ToFloat(FloatToBFloat16(nan))));
}

TEST(DTypeTest, RoundToOddKeepsTheBitsThatALaterRoundingNeeds) {
  // Just above the middle of two halves, by less than a float can show: rounding twice would lose it.
  const double value = 1.0 + 0x1p-11 + 0x1p-40;
  EXPECT_EQ(code::Convert<code::HalfBits>(value).bits, 0x3c01);
  EXPECT_EQ(FloatToHalf(static_cast<float>(value)).bits, 0x3c00);
  EXPECT_EQ(code::OddFloat(std::int64_t{1} << 40), 0x1p40F);
  EXPECT_EQ(code::OddFloat(-((std::int64_t{1} << 40) + 1)), -(0x1p40F + 0x1p17F));
  EXPECT_EQ(code::OddFloat(std::numeric_limits<std::int64_t>::min()), -0x1p63F);
  EXPECT_EQ(code::Convert<code::BFloat16Bits>((std::int64_t{257} << 40) + 1).bits,
            FloatToBFloat16(258 * 0x1p40F).bits);
}

}  // namespace
}  // namespace lgpu
