// The elementwise ops, Fill and Transpose: each element is rounded once from the exact result, so the bits
// are known.

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <type_traits>

#include "tests/kernels/kernel_testing.h"

namespace lgpu {
namespace {

using testing::Array;
using testing::FromDouble;
using testing::Random;
using testing::RunOp;
using testing::Shifts;
using testing::ToDouble;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

template <typename T>
class ElementwiseTest : public ::testing::Test {};
using Floating = ::testing::Types<float, double, Half, BFloat16>;
TYPED_TEST_SUITE(ElementwiseTest, Floating);

template <typename T>
Array<T> RandomArray(const Shape& shape, Random& random) {
  Array<T> array(shape);
  for (auto& value : array.values) {
    const std::int64_t special = random.Whole(0, 40);
    value = FromDouble<T>(special == 0   ? kNan
                          : special == 1 ? kInfinity
                          : special == 2 ? -0.0
                                         : random.Uniform(-4, 4));
  }
  return array;
}

template <typename T>
void ExpectSame(T actual, double expected, std::size_t i) {
  const double value = ToDouble(actual);
  const double rounded = ToDouble(FromDouble<T>(expected));
  if (std::isnan(rounded)) {
    ASSERT_TRUE(std::isnan(value)) << i;
  } else {
    ASSERT_EQ(value, rounded) << i;
    ASSERT_EQ(std::signbit(value), std::signbit(rounded)) << i;
  }
}

struct BinaryCase {
  const Op& op;
  std::function<double(double, double)> exact;
};
std::vector<BinaryCase> BinaryCases() {
  return {{AddV2Op(), [](double a, double b) { return a + b; }},
          {SubOp(), [](double a, double b) { return a - b; }},
          {MulOp(), [](double a, double b) { return a * b; }},
          {RealDivOp(), [](double a, double b) { return a / b; }},
          {ReluGradOp(), [](double a, double b) { return b > 0 ? a : 0; }}};
}

/// The position of the operand's element from which element `i` of the output is made.
std::size_t PositionIn(const Shape& operand, const Shape& output, std::size_t i) {
  std::size_t position = 0;
  std::size_t step = 1;
  for (int d = output.rank() - 1; d >= 0; --d) {
    const auto size = static_cast<std::size_t>(output[d]);
    const int own = d - (output.rank() - operand.rank());
    if (own >= 0) {
      if (operand[own] != 1) position += i % size * step;
      step *= static_cast<std::size_t>(operand[own]);
    }
    i /= size;
  }
  return position;
}

template <typename T>
void CheckBinary(const BinaryCase& binary, const Shape& a_shape, const Shape& b_shape, const Shifts& shifts,
                 Random& random) {
  const auto a = RandomArray<T>(a_shape, random);
  const auto b = RandomArray<T>(b_shape, random);
  const std::vector<TensorView> inputs = {a.view(), b.view()};
  const auto result = RunOp<T>(binary.op, inputs, {}, shifts);
  for (std::size_t i = 0; i < result.values.size(); ++i) {
    const double x = ToDouble(a.values[PositionIn(a_shape, result.shape, i)]);
    const double y = ToDouble(b.values[PositionIn(b_shape, result.shape, i)]);
    ExpectSame(result.values[i], binary.exact(x, y), i);
  }
}

TYPED_TEST(ElementwiseTest, TensorsOfOneShape) {
  Random random;
  const std::size_t size = sizeof(TypeParam);
  for (const BinaryCase& binary : BinaryCases()) {
    for (const std::int64_t elements : {1, 3, 64, 1021}) {
      for (const Shifts& shifts : {Shifts{0}, Shifts{size}, Shifts{size, 3 * size, 0}}) {
        CheckBinary<TypeParam>(binary, {elements}, {elements}, shifts, random);
      }
    }
  }
}

TYPED_TEST(ElementwiseTest, Broadcasting) {
  Random random;
  const std::pair<Shape, Shape> shapes[] = {
      {{}, {33}},       {{33}, {}},          {{7, 10}, {10}}, {{10}, {7, 10}},
      {{5, 1}, {1, 6}}, {{4, 1, 3}, {2, 1}}, {{1}, {2, 3}},   {{2, 3, 4}, {1, 3, 1}},
      {{}, {}},         {{1, 1}, {1}},       {{3, 0}, {1, 1}}};
  for (const BinaryCase& binary : BinaryCases()) {
    if (&binary.op == &ReluGradOp()) continue;
    for (const auto& [a, b] : shapes) CheckBinary<TypeParam>(binary, a, b, {0}, random);
  }
}

TYPED_TEST(ElementwiseTest, FunctionsOfOneTensor) {
  Random random;
  for (const std::int64_t elements : {0, 1, 5, 999}) {
    const auto a = RandomArray<TypeParam>({elements}, random);
    const std::vector<TensorView> inputs = {a.view()};
    const auto negative = RunOp<TypeParam>(NegOp(), inputs, {}, {sizeof(TypeParam)});
    const auto relu = RunOp<TypeParam>(ReluOp(), inputs);
    for (std::size_t i = 0; i < a.values.size(); ++i) {
      const double value = ToDouble(a.values[i]);
      ExpectSame(negative.values[i], -value, i);
      ExpectSame(relu.values[i], std::isnan(value) ? kNan : value > 0 ? value : 0.0, i);
    }
  }
}

TYPED_TEST(ElementwiseTest, FillHasTheBitsOfItsValue) {
  const Array<TypeParam> value(Shape{}, {FromDouble<TypeParam>(-0.75)});
  const std::vector<TensorView> inputs = {value.view()};
  for (const Shape& shape : {Shape{}, Shape{0, 3}, Shape{17}, Shape{3, 5, 7}}) {
    const auto filled = RunOp<TypeParam>(FillOp(), inputs, {.shape = shape}, {0, sizeof(TypeParam)});
    EXPECT_EQ(filled.shape, shape);
    for (const TypeParam element : filled.values) EXPECT_EQ(ToDouble(element), -0.75);
  }
}

TYPED_TEST(ElementwiseTest, TransposeMovesElements) {
  Random random;
  const std::pair<Shape, std::vector<int>> cases[] = {{{5, 7}, {1, 0}},
                                                      {{5, 7}, {0, 1}},
                                                      {{2, 3, 4}, {2, 0, 1}},
                                                      {{2, 1, 4}, {1, 2, 0}},
                                                      {{9}, {0}},
                                                      {{}, {}},
                                                      {{0, 3}, {1, 0}},
                                                      {{65, 33}, {1, 0}},
                                                      // By tiles: one that is whole, edges, a batch before,
                                                      // between and behind, columns that were two dimensions.
                                                      {{64, 128}, {1, 0}},
                                                      {{16, 97}, {1, 0}},
                                                      {{3, 70, 35}, {0, 2, 1}},
                                                      {{40, 3, 66}, {2, 1, 0}},
                                                      {{2, 33, 3, 20}, {2, 3, 0, 1}},
                                                      {{2, 3, 17, 2, 18}, {1, 4, 3, 0, 2}},
                                                      {{20, 30, 40}, {1, 2, 0}},
                                                      // More tiles than a launch has blocks.
                                                      {{4100, 16, 17}, {0, 2, 1}}};
  for (const auto& [shape, order] : cases) {
    const auto a = RandomArray<TypeParam>(shape, random);
    AxisList axes;
    for (const int axis : order) axes.values[static_cast<std::size_t>(axes.count++)] = axis;
    const std::vector<TensorView> inputs = {a.view()};
    const auto moved = RunOp<TypeParam>(TransposeOp(), inputs, {.axes = axes});
    ASSERT_EQ(moved.values.size(), a.values.size());
    for (std::size_t i = 0; i < a.values.size(); ++i) {
      // Where element i of the input went.
      std::vector<std::size_t> at(order.size());
      std::size_t rest = i;
      for (int d = shape.rank() - 1; d >= 0; --d) {
        at[static_cast<std::size_t>(d)] = rest % static_cast<std::size_t>(shape[d]);
        rest /= static_cast<std::size_t>(shape[d]);
      }
      std::size_t to = 0;
      for (std::size_t d = 0; d < order.size(); ++d) {
        to = to * static_cast<std::size_t>(moved.shape[static_cast<int>(d)]) +
             at[static_cast<std::size_t>(order[d])];
      }
      ExpectSame(moved.values[to], ToDouble(a.values[i]), i);
    }
  }
}

template <typename T>
void ExpectTransposed(std::int64_t rows, std::int64_t columns, const testing::Shifts& shifts) {
  Array<T> a(Shape{rows, columns});
  for (std::size_t i = 0; i < a.values.size(); ++i) {
    if constexpr (std::is_same_v<T, Half>) a.values[i].bits = static_cast<std::uint16_t>(i * 7);
    if constexpr (!std::is_same_v<T, Half>) a.values[i] = static_cast<T>(i);
  }
  const std::vector<TensorView> inputs = {a.view()};
  const auto moved = RunOp<T>(TransposeOp(), inputs, {.axes = {.all = true}}, shifts);
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < columns; ++c) {
      ASSERT_EQ(moved.values[static_cast<std::size_t>(c * rows + r)],
                a.values[static_cast<std::size_t>(r * columns + c)])
          << r << " " << c;
    }
  }
}

// Tensors larger than the caches take another path on the CPU, where addresses are aligned.
TEST(LargeTransposeTest, MovesElements) {
  ExpectTransposed<Half>(2080, 2051, {0});
  ExpectTransposed<std::int32_t>(1040, 2059, {0});
  ExpectTransposed<std::int32_t>(1040, 2059, {4, 8});
  ExpectTransposed<std::int32_t>(1041, 2080, {0});
  ExpectTransposed<std::int64_t>(1036, 1037, {0});
}

// A GPU has fewer blocks than this has tiles: they go round.
TEST(LargeTransposeTest, MoreTilesThanBlocks) { ExpectTransposed<Half>(16, 64 * 4200 + 3, {0}); }

TEST(WholeElementwiseTest, WrapsAround) {
  constexpr std::int32_t kMax = std::numeric_limits<std::int32_t>::max();
  constexpr std::int32_t kMin = std::numeric_limits<std::int32_t>::min();
  const Array<std::int32_t> a(Shape{3}, {kMax, kMin, 7});
  const Array<std::int32_t> b(Shape{}, {2});
  const std::vector<TensorView> inputs = {a.view(), b.view()};
  using Values = std::vector<std::int32_t>;
  EXPECT_EQ(RunOp<std::int32_t>(AddV2Op(), inputs).values, (Values{kMin + 1, kMin + 2, 9}));
  EXPECT_EQ(RunOp<std::int32_t>(SubOp(), inputs).values, (Values{kMax - 2, kMax - 1, 5}));
  EXPECT_EQ(RunOp<std::int32_t>(MulOp(), inputs).values, (Values{-2, 0, 14}));
  EXPECT_EQ(RunOp<std::int32_t>(NegOp(), {inputs.data(), 1}).values, (Values{-kMax, kMin, -7}));
  EXPECT_FALSE(testing::HasKernel(RealDivOp(), DType::kInt32));
}

TYPED_TEST(ElementwiseTest, TanhAndItsGradient) {
  SKIP_WITHOUT_KERNEL(TanhOp(), kDTypeOf<TypeParam>);
  Random random;
  const Shape shape{1, 257};
  const Array<TypeParam> x = RandomArray<TypeParam>(shape, random);
  const auto tanh = RunOp<TypeParam>(TanhOp(), std::vector<TensorView>{x.view()});
  ASSERT_EQ(tanh.shape, shape);
  // Half and bfloat16 are computed in float.
  const double unit = std::is_same_v<TypeParam, double> ? std::numeric_limits<double>::epsilon()
                                                        : std::numeric_limits<float>::epsilon();
  const auto expect_near = [&](TypeParam actual, double exact, double error, std::size_t i) {
    if (!std::isfinite(exact)) return ExpectSame(actual, exact, i);
    EXPECT_GE(ToDouble(actual), ToDouble(FromDouble<TypeParam>(exact - error))) << i;
    EXPECT_LE(ToDouble(actual), ToDouble(FromDouble<TypeParam>(exact + error))) << i;
  };
  for (std::size_t i = 0; i < x.values.size(); ++i) {
    const double exact = std::tanh(ToDouble(x.values[i]));
    expect_near(tanh.values[i], exact, 2 * unit * std::abs(exact), i);
  }
  const auto to_outputs = RandomArray<TypeParam>(shape, random);
  const std::vector<TensorView> inputs = {tanh.view(), to_outputs.view()};
  const auto gradient = RunOp<TypeParam>(TanhGradOp(), inputs);
  for (std::size_t i = 0; i < x.values.size(); ++i) {
    const double y = ToDouble(tanh.values[i]);
    const double to_output = ToDouble(to_outputs.values[i]);
    expect_near(gradient.values[i], to_output * (1 - y * y), 2 * unit * std::abs(to_output), i);
  }
}

TEST(WholeElementwiseTest, ReluLooksAtTheSign) {
  SKIP_WITHOUT_KERNEL(ReluOp(), DType::kInt32);
  constexpr std::int32_t kMin = std::numeric_limits<std::int32_t>::min();
  const Array<std::int32_t> a(Shape{4}, {kMin, -1, 0, 7});
  const Array<std::int32_t> gradients(Shape{4}, {1, 2, 3, 4});
  using Values = std::vector<std::int32_t>;
  const std::vector<TensorView> inputs = {gradients.view(), a.view()};
  EXPECT_EQ(RunOp<std::int32_t>(ReluOp(), {&inputs[1], 1}).values, (Values{0, 0, 0, 7}));
  EXPECT_EQ(RunOp<std::int32_t>(ReluGradOp(), inputs).values, (Values{0, 0, 0, 4}));
}

}  // namespace
}  // namespace lgpu
