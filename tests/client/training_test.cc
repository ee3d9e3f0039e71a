// A classifier of two layers, trained on several logical GPUs at once: all that data parallelism needs.

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <random>
#include <vector>

#include "tests/client/context_testing.h"

namespace lgpu {
namespace {

using testing::Must;
using testing::TestContext;

constexpr std::int64_t kFeatures = 4;
constexpr std::int64_t kHidden = 16;
constexpr std::int64_t kClasses = 3;
constexpr std::int64_t kRows = 24;  // of a batch

struct Layers {
  Tensor w1, b1, w2, b2;
};
struct Step {
  double loss = 0;
  std::array<Tensor, 4> gradients;
};

Tensor RandomTensor(const Context& gpu, const Shape& shape, std::mt19937& random, double scale) {
  std::vector<float> values(static_cast<std::size_t>(shape.elements()));
  std::normal_distribution<float> normal(0, static_cast<float>(scale));
  for (float& value : values) value = normal(random);
  return Must(gpu.Constant<float>(shape, std::span<const float>(values)));
}

/// Forward and backward on the device of this thread's scope; the gradients are those of the mean loss over
/// `all_rows`.
Step ForwardAndBackward(const Layers& layers, const Tensor& x, const Tensor& labels, const Tensor& per_row) {
  const Tensor before = Must(Add(Must(MatMul(x, layers.w1)), layers.b1));
  const Tensor hidden = Must(Relu(before));
  const Tensor logits = Must(Add(Must(MatMul(hidden, layers.w2)), layers.b2));
  const CrossEntropy entropy = Must(SparseSoftmaxCrossEntropyWithLogits(logits, labels));
  Step step;
  step.loss = Must(Must(ReduceSum(Must(Multiply(entropy.loss, per_row)))).ToVector<float>())[0];
  const Tensor error = Must(Multiply(entropy.backprop, per_row));
  const Tensor to_hidden = Must(ReluGrad(Must(MatMul(error, layers.w2, {.transpose_b = true})), before));
  step.gradients = {Must(MatMul(x, to_hidden, {.transpose_a = true})),
                    Must(ReduceSum(to_hidden, {.axes = std::vector<int>{0}})),
                    Must(MatMul(hidden, error, {.transpose_a = true})),
                    Must(ReduceSum(error, {.axes = std::vector<int>{0}}))};
  return step;
}

class TrainingTest : public ::testing::Test {
 protected:
  TrainingTest() : test_({.asynchronous = true}) {
    std::vector<float> features;
    for (std::int64_t row = 0; row < kRows; ++row) {
      const auto label = static_cast<std::int32_t>(row % kClasses);
      labels_.push_back(label);
      for (std::int64_t f = 0; f < kFeatures; ++f) {
        features.push_back(std::normal_distribution<float>(f == label ? 2.0F : 0.0F, 0.5F)(random_));
      }
    }
    features_ = features;
    layers_ = {RandomTensor(gpu(), {kFeatures, kHidden}, random_, 0.5),
               RandomTensor(gpu(), {kHidden}, random_, 0.1),
               RandomTensor(gpu(), {kHidden, kClasses}, random_, 0.5),
               RandomTensor(gpu(), {kClasses}, random_, 0.1)};
  }
  const Context& gpu() const { return *test_.gpu; }

  Step RunRows(std::int64_t first, std::int64_t rows) {
    const std::span<const float> values(features_.data() + first * kFeatures,
                                        static_cast<std::size_t>(rows * kFeatures));
    const Tensor x = Must(gpu().Constant<float>(Shape{rows, kFeatures}, values));
    const Tensor labels = Must(gpu().Constant<std::int32_t>(
        Shape{rows}, std::span<const std::int32_t>(labels_.data() + first, static_cast<std::size_t>(rows))));
    const float share = 1.0F / kRows;
    const Tensor per_row = Must(gpu().Constant<float>(Shape{}, std::span<const float>(&share, 1)));
    return ForwardAndBackward(layers_, x, labels, per_row);
  }
  /// Half of the batch on each device; the gradients are summed on the first one.
  Step RunOnBoth() {
    std::array<Step, 2> steps;
    for (int i = 0; i < 2; ++i) {
      const DeviceScope scope(gpu(), i == 0 ? "/GPU:0" : "/GPU:1");
      steps[static_cast<std::size_t>(i)] = RunRows(i * kRows / 2, kRows / 2);
    }
    const DeviceScope scope(gpu(), "/GPU:0");
    Step sum{steps[0].loss + steps[1].loss, {}};
    for (std::size_t g = 0; g < 4; ++g) {
      sum.gradients[g] = Must(AddN({steps[0].gradients[g], steps[1].gradients[g]}));
    }
    return sum;
  }
  void Apply(const Step& step, float rate) {
    const Tensor lr = Must(gpu().Constant<float>(Shape{}, std::span<const float>(&rate, 1)));
    Tensor* const layers[] = {&layers_.w1, &layers_.b1, &layers_.w2, &layers_.b2};
    for (std::size_t i = 0; i < 4; ++i) {
      *layers[i] = Must(Subtract(*layers[i], Must(Multiply(lr, step.gradients[i]))));
    }
  }

  TestContext test_;
  std::mt19937 random_{7};
  std::vector<float> features_;
  std::vector<std::int32_t> labels_;
  Layers layers_;
};

TEST_F(TrainingTest, GradientsOfHalvesAddUpToThoseOfTheWhole) {
  const Step whole = RunRows(0, kRows);
  const Step both = RunOnBoth();
  EXPECT_NEAR(both.loss, whole.loss, 1e-6);
  for (std::size_t g = 0; g < 4; ++g) {
    const auto expected = Must(whole.gradients[g].ToVector<float>());
    const auto actual = Must(both.gradients[g].ToVector<float>());
    ASSERT_EQ(actual.size(), expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_NEAR(actual[i], expected[i], 1e-6) << g << " " << i;
    }
  }
}

TEST_F(TrainingTest, GradientIsTheSlopeOfTheLoss) {
  const Step step = RunRows(0, kRows);
  const auto slope = Must(step.gradients[2].ToVector<float>());
  auto weights = Must(layers_.w2.ToVector<float>());
  const float delta = 1e-2F;
  const std::size_t at = 5;
  double losses[2] = {};
  for (int i = 0; i < 2; ++i) {
    auto moved = weights;
    moved[at] += i == 0 ? -delta : delta;
    layers_.w2 = Must(gpu().Constant<float>(Shape{kHidden, kClasses}, std::span<const float>(moved)));
    losses[i] = RunRows(0, kRows).loss;
  }
  EXPECT_NEAR((losses[1] - losses[0]) / (2 * static_cast<double>(delta)), slope[at], 1e-3);
}

TEST_F(TrainingTest, LossFalls) {
  const double before = RunOnBoth().loss;
  for (int step = 0; step < 60; ++step) Apply(RunOnBoth(), 0.5F);
  const double after = RunOnBoth().loss;
  EXPECT_LT(after, 0.2 * before) << before;
  EXPECT_EQ(layers_.w1.device(), testing::kGpu0);
}

TEST_F(TrainingTest, FillAndTranspose) {
  const float two = 2;
  const Tensor value = Must(gpu().Constant<float>(Shape{}, std::span<const float>(&two, 1)));
  const Tensor filled = Must(Fill({2, 3}, value));
  EXPECT_EQ(Must(Negative(filled)).shape(), (Shape{2, 3}));
  EXPECT_EQ(Must(Transpose(filled)).shape(), (Shape{3, 2}));
  const std::array<int, 2> same = {0, 1};
  EXPECT_EQ(Must(Transpose(filled, same)).shape(), (Shape{2, 3}));
  EXPECT_EQ(Must(Must(ReduceMean(Must(Divide(filled, value)))).ToVector<float>()), (std::vector<float>{1}));
  const std::array<int, 9> many = {};
  EXPECT_EQ(Transpose(filled, many).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace lgpu
