#include "kernels/bodies/cast.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/kernels/kernel_testing.h"

namespace lgpu {
namespace {

using testing::Array;
using testing::Random;
using testing::RunOp;

template <typename To, typename From>
std::vector<To> Cast(const std::vector<From>& values) {
  const Array<From> input(Shape{static_cast<std::int64_t>(values.size())}, values);
  const std::vector<TensorView> inputs = {input.view()};
  return RunOp<To>(CastOp(), inputs, {.cast_to = kDTypeOf<To>}).values;
}

template <typename To, typename From>
void SmallNumbersSurvive() {
  std::vector<From> values;
  for (int i = -100; i <= 100; ++i) values.push_back(testing::FromDouble<From>(i));
  const std::vector<To> cast = Cast<To>(values);
  for (int i = -100; i <= 100; ++i) {
    ASSERT_EQ(testing::ToDouble(cast[static_cast<std::size_t>(i + 100)]), i)
        << DTypeName(kDTypeOf<From>) << " to " << DTypeName(kDTypeOf<To>);
  }
}

template <typename From>
void SmallNumbersSurviveFrom() {
  SmallNumbersSurvive<float, From>();
  SmallNumbersSurvive<double, From>();
  SmallNumbersSurvive<std::int32_t, From>();
  SmallNumbersSurvive<std::int64_t, From>();
  SmallNumbersSurvive<Half, From>();
  SmallNumbersSurvive<BFloat16, From>();
}

TEST(CastTest, AllPairs) {
  SKIP_WITHOUT_KERNEL(CastOp(), DType::kFloat32);
  SmallNumbersSurviveFrom<float>();
  SmallNumbersSurviveFrom<double>();
  SmallNumbersSurviveFrom<std::int32_t>();
  SmallNumbersSurviveFrom<std::int64_t>();
  SmallNumbersSurviveFrom<Half>();
  SmallNumbersSurviveFrom<BFloat16>();
}

TEST(CastTest, FloatingToWholeTruncatesAndStaysInRange) {
  SKIP_WITHOUT_KERNEL(CastOp(), DType::kFloat32);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> values = {1.9F, -1.9F, nan, infinity, -infinity, 3e9F, -3e9F, 0x1p31F, -0x1p31F};
  constexpr std::int32_t kMax = std::numeric_limits<std::int32_t>::max();
  constexpr std::int32_t kMin = std::numeric_limits<std::int32_t>::min();
  EXPECT_EQ(Cast<std::int32_t>(values),
            (std::vector<std::int32_t>{1, -1, 0, kMax, kMin, kMax, kMin, kMax, kMin}));
  const std::vector<double> wide = {2147483647.9, -2147483648.9, 0x1p63, -0x1p63, 9007199254740993.0};
  EXPECT_EQ(Cast<std::int32_t>(wide), (std::vector<std::int32_t>{kMax, kMin, kMax, kMin, kMax}));
  EXPECT_EQ(Cast<std::int64_t>(wide),
            (std::vector<std::int64_t>{2147483647, -2147483648, std::numeric_limits<std::int64_t>::max(),
                                       std::numeric_limits<std::int64_t>::min(), 9007199254740992}));
  const std::vector<Half> halves = {Half{0x7c00}, Half{0xfc00}, Half{0x7e00}, Half{0x7bff}};
  EXPECT_EQ(Cast<std::int32_t>(halves), (std::vector<std::int32_t>{kMax, kMin, 0, 65504}));
}

TEST(CastTest, WholeNarrowsByItsLowBits) {
  SKIP_WITHOUT_KERNEL(CastOp(), DType::kFloat32);
  const std::vector<std::int64_t> values = {(std::int64_t{1} << 32) + 5, -1, std::int64_t{1} << 31};
  EXPECT_EQ(Cast<std::int32_t>(values),
            (std::vector<std::int32_t>{5, -1, std::numeric_limits<std::int32_t>::min()}));
}

TEST(CastTest, NarrowFloatsAreRoundedOnce) {
  SKIP_WITHOUT_KERNEL(CastOp(), DType::kFloat32);
  Random random;
  std::vector<double> values;
  for (int i = 0; i < 20000; ++i) {
    // Close to the middle of two halves, where rounding twice goes wrong.
    const double half = HalfToFloat(Half{static_cast<std::uint16_t>(random.Whole(0x0400, 0x7a00))});
    values.push_back(half * (1 + 0x1p-11) + random.Uniform(-1, 1) * half * 0x1p-36);
  }
  const std::vector<Half> cast = Cast<Half>(values);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::uint16_t bits = cast[i].bits;
    const double error = std::fabs(HalfToFloat(cast[i]) - values[i]);
    const double below = std::fabs(HalfToFloat(Half{static_cast<std::uint16_t>(bits - 1)}) - values[i]);
    const double above = std::fabs(HalfToFloat(Half{static_cast<std::uint16_t>(bits + 1)}) - values[i]);
    ASSERT_LE(error, below) << values[i];
    ASSERT_LE(error, above) << values[i];
  }
}

TEST(CastTest, OverflowGoesToInfinityAndNanStays) {
  SKIP_WITHOUT_KERNEL(CastOp(), DType::kFloat32);
  const std::vector<double> values = {1e300, -1e300, std::nan(""), 1e-320};
  const std::vector<float> floats = Cast<float>(values);
  EXPECT_EQ(floats[0], std::numeric_limits<float>::infinity());
  EXPECT_EQ(floats[1], -std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(floats[2]));
  const std::vector<BFloat16> narrow = Cast<BFloat16>(values);
  EXPECT_EQ(narrow[0].bits, 0x7f80);
  EXPECT_EQ(narrow[1].bits, 0xff80);
  EXPECT_TRUE(std::isnan(BFloat16ToFloat(narrow[2])));
  EXPECT_EQ(narrow[3].bits, 0);
}

/// How elements of a type lie in the code that all devices share.
template <typename T>
struct Stored {
  using Type = T;
};
template <>
struct Stored<Half> {
  using Type = code::HalfBits;
};
template <>
struct Stored<BFloat16> {
  using Type = code::BFloat16Bits;
};

/// A number of any size, and sometimes no number; often just beside the middle of two narrow ones.
template <typename T>
T Anything(Random& random) {
  const std::uint64_t bits = random.engine()() | std::uint64_t{random.engine()()} << 32;
  if constexpr (std::is_integral_v<T>) {
    const auto value = static_cast<T>(static_cast<std::int64_t>(bits) >> random.Whole(0, 63));
    return random.Whole(0, 3) != 0 ? value : static_cast<T>(value & ~T{0xff}) | static_cast<T>(bits % 3);
  } else if constexpr (std::is_floating_point_v<T>) {
    using Bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
    if (random.Whole(0, 3) == 0) return code::BitCast<T>(static_cast<Bits>(bits));
    const double narrow = HalfToFloat(Half{static_cast<std::uint16_t>(bits)}) * (1 + 0x1p-11);
    const double beside = narrow * (1 + static_cast<double>(random.Whole(-1, 1)) * 0x1p-40);
    return static_cast<T>(std::ldexp(beside, static_cast<int>(random.Whole(-150, 150))));
  } else {
    return T{static_cast<std::uint16_t>(bits)};
  }
}

template <typename To, typename From>
void SameBitsAsTheCode(const std::vector<From>& values, const testing::Shifts& shifts) {
  using Result = typename Stored<To>::Type;
  const Array<From> input(Shape{static_cast<std::int64_t>(values.size())}, values);
  const std::vector<TensorView> inputs = {input.view()};
  const auto cast = RunOp<To>(CastOp(), inputs, {.cast_to = kDTypeOf<To>}, shifts);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto expected = code::Convert<Result>(code::BitCast<typename Stored<From>::Type>(values[i]));
    const double number = static_cast<double>(code::Widen(expected));
    if (std::isnan(number)) {
      ASSERT_TRUE(std::isnan(testing::ToDouble(cast.values[i])));
    } else {
      ASSERT_EQ(std::memcmp(&cast.values[i], &expected, sizeof(expected)), 0)
          << testing::ToDouble(values[i]) << " to " << DTypeName(kDTypeOf<To>) << " gave "
          << testing::ToDouble(cast.values[i]) << " at " << i;
    }
  }
}

template <typename T>
class AnyCastTest : public ::testing::Test {};
using AllTypes = ::testing::Types<float, double, std::int32_t, std::int64_t, Half, BFloat16>;
TYPED_TEST_SUITE(AnyCastTest, AllTypes);

TYPED_TEST(AnyCastTest, EveryDeviceGivesTheBitsOfTheCode) {
  SKIP_WITHOUT_KERNEL(CastOp(), DType::kFloat32);
  Random random;
  const std::size_t size = sizeof(TypeParam);
  // Tensors that begin at aligned addresses, at ones equally misaligned for some types, and anywhere.
  for (const testing::Shifts& shifts : {testing::Shifts{0}, {size, 8}, {3 * size, 8, 0}}) {
    std::vector<TypeParam> values(static_cast<std::size_t>(random.Whole(1, 4000)));
    for (TypeParam& value : values) value = Anything<TypeParam>(random);
    SameBitsAsTheCode<float>(values, shifts);
    SameBitsAsTheCode<double>(values, shifts);
    SameBitsAsTheCode<std::int32_t>(values, shifts);
    SameBitsAsTheCode<std::int64_t>(values, shifts);
    SameBitsAsTheCode<Half>(values, shifts);
    SameBitsAsTheCode<BFloat16>(values, shifts);
  }
}

// Tensors larger than the caches take another path.
TEST(CastTest, LargeTensorsHaveTheBitsOfTheCode) {
  SKIP_WITHOUT_KERNEL(CastOp(), DType::kFloat32);
  Random random;
  std::vector<float> values((std::size_t{2} << 20) + 5);
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = i % 1000 == 0 ? Anything<float>(random) : static_cast<float>(i) * 1.25F;
  }
  SameBitsAsTheCode<std::int32_t>(values, {0});
  SameBitsAsTheCode<BFloat16>(values, {0});
  SameBitsAsTheCode<Half>(values, {0});
  values.resize((std::size_t{1} << 20) + 3);
  SameBitsAsTheCode<double>(values, {0});
  SameBitsAsTheCode<std::int64_t>(values, {0});
}

template <typename T>
class LargeCastTest : public ::testing::Test {};
TYPED_TEST_SUITE(LargeCastTest, AllTypes);

TYPED_TEST(LargeCastTest, GivesTheBitsOfTheCode) {
  SKIP_WITHOUT_KERNEL(CastOp(), DType::kFloat32);
  Random random;
  std::vector<TypeParam> some(4099);
  for (TypeParam& value : some) value = Anything<TypeParam>(random);
  const auto repeated = [&](std::size_t size) {
    std::vector<TypeParam> values(size);
    for (std::size_t i = 0; i < size; ++i) values[i] = some[i % some.size()];
    return values;
  };
  // Outputs of 8 MiB and a little.
  SameBitsAsTheCode<float>(repeated((std::size_t{2} << 20) + 3), {0});
  if (sizeof(TypeParam) <= 4) SameBitsAsTheCode<Half>(repeated((std::size_t{4} << 20) + 5), {0});
}

}  // namespace
}  // namespace lgpu
