// The gradients of training.h against finite differences, on the CPU and on a simulated GPU.

#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <vector>

#include "lgpu/training.h"
#include "tests/client/context_testing.h"

namespace lgpu {
namespace {

using testing::Must;
using testing::TestContext;

class GradientsTest : public ::testing::TestWithParam<const char*> {
 protected:
  GradientsTest() : scope_(gpu(), GetParam()) {}
  const Context& gpu() const { return *test_.gpu; }

  Tensor Make(const Shape& shape, const std::vector<double>& values) {
    return Must(gpu().Constant<double>(shape, std::span<const double>(values)));
  }
  std::vector<double> Random(const Shape& shape) {
    std::vector<double> values(static_cast<std::size_t>(shape.elements()));
    for (double& value : values) value = std::uniform_real_distribution<>(-1, 1)(random_);
    return values;
  }
  /// Compares `gradient` with the change of `loss` when each value of `at` moves a little.
  void Check(const Shape& shape, std::vector<double> at, const Tensor& gradient,
             const std::function<double(const Tensor&)>& loss) {
    constexpr double kStep = 1e-6;
    ASSERT_EQ(gradient.shape(), shape);
    const auto actual = Must(gradient.ToVector<double>());
    for (std::size_t i = 0; i < at.size(); ++i) {
      const double value = at[i];
      at[i] = value + kStep;
      const double above = loss(Make(shape, at));
      at[i] = value - kStep;
      const double below = loss(Make(shape, at));
      at[i] = value;
      EXPECT_NEAR(actual[i], (above - below) / (2 * kStep), 1e-6) << i;
    }
  }
  static double Value(const Tensor& scalar) { return Must(scalar.ToVector<double>()).at(0); }

  TestContext test_;
  DeviceScope scope_;
  std::mt19937 random_{11};
};

TEST_P(GradientsTest, DenseReluAndMeanSquaredError) {
  const Shape x_shape{5, 3};
  const Shape kernel_shape{3, 4};
  const Shape bias_shape{4};
  const auto x = Random(x_shape);
  const auto kernel = Random(kernel_shape);
  const auto bias = Random(bias_shape);
  const Tensor targets = Make(Shape{5, 4}, Random(Shape{5, 4}));
  constexpr double kWeight = 0.375;
  const auto forward = [&](const Tensor& a, const Tensor& w, const Tensor& b) {
    return Value(Must(MeanSquaredError(gpu(), Must(Relu(Must(Dense(a, w, b)))), targets, kWeight)).value);
  };
  const Tensor a = Make(x_shape, x);
  const Tensor w = Make(kernel_shape, kernel);
  const Tensor b = Make(bias_shape, bias);
  const Tensor before = Must(Dense(a, w, b));
  const Loss loss = Must(MeanSquaredError(gpu(), Must(Relu(before)), targets, kWeight));
  const DenseGradients gradients = Must(DenseGrad(a, w, Must(ReluGrad(loss.gradient, before))));
  Check(x_shape, x, gradients.x, [&](const Tensor& t) { return forward(t, w, b); });
  Check(kernel_shape, kernel, gradients.kernel, [&](const Tensor& t) { return forward(a, t, b); });
  Check(bias_shape, bias, gradients.bias, [&](const Tensor& t) { return forward(a, w, t); });
  EXPECT_FALSE(Must(DenseGrad(a, w, loss.gradient, {.of_x = false})).x.has_value());
}

TEST_P(GradientsTest, SparseCategoricalCrossEntropyOfLogits) {
  const Shape shape{6, 5};
  const auto logits = Random(shape);
  const std::vector<std::int32_t> classes = {0, 4, 2, 2, 1, 3};
  const Tensor labels = Must(gpu().Constant<std::int32_t>(Shape{6}, std::span<const std::int32_t>(classes)));
  const Loss loss = Must(SparseCategoricalCrossEntropy(gpu(), Make(shape, logits), labels, 2));
  Check(shape, logits, loss.gradient, [&](const Tensor& t) {
    return Value(Must(SparseCategoricalCrossEntropy(gpu(), t, labels, 2)).value);
  });
}

TEST_P(GradientsTest, WrongShapesAreErrors) {
  const Tensor a = Make(Shape{2, 1}, {1, 2});
  EXPECT_EQ(MeanSquaredError(gpu(), a, Make(Shape{2}, {1, 2})).status().message(),
            "MeanSquaredError of predictions [2,1] and targets [2]; they have the same shape");
  EXPECT_FALSE(MeanSquaredError(gpu(), a, Tensor()).ok());
  EXPECT_FALSE(SparseCategoricalCrossEntropy(gpu(), a, a).ok());
  EXPECT_FALSE(GlorotUniform(gpu(), Shape{3}, 1).ok());
}

TEST_P(GradientsTest, GlorotUniformFillsItsRangeEvenly) {
  const auto values = Must(Must(GlorotUniform(gpu(), Shape{40, 110}, 3)).ToVector<float>());
  double sum = 0;
  for (const float value : values) {
    ASSERT_LE(std::abs(value), 0.2F);  // sqrt(6 / 150)
    sum += value;
  }
  EXPECT_NEAR(sum / static_cast<double>(values.size()), 0, 0.01);
  EXPECT_EQ(values, Must(Must(GlorotUniform(gpu(), Shape{40, 110}, 3)).ToVector<float>()));
  EXPECT_NE(values, Must(Must(GlorotUniform(gpu(), Shape{40, 110}, 4)).ToVector<float>()));
}

INSTANTIATE_TEST_SUITE_P(Devices, GradientsTest, ::testing::Values("/CPU:0", "/GPU:0"),
                         [](const auto& device) { return device.index == 0 ? "Cpu" : "Gpu"; });

}  // namespace
}  // namespace lgpu
