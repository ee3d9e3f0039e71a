#include <gtest/gtest.h>

#include <vector>

#include "kernels/registry.h"

namespace lgpu {
namespace {

constexpr DType kF = DType::kFloat32;

std::string MatMulError(const TensorSpec& a, const TensorSpec& b, const OpAttributes& attributes = {}) {
  const std::vector<TensorSpec> inputs = {a, b};
  const auto spec = MatMulOp().Infer(inputs, attributes);
  if (spec.ok()) return "ok";
  EXPECT_EQ(spec.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(spec.status().message());
}

TEST(OpsTest, MatMulHasTensorFlowsErrors) {
  EXPECT_EQ(MatMulError({kF, {4, 6}}, {kF, {4, 7}}), "Matrix size-incompatible: In[0]: [4,6], In[1]: [4,7]");
  EXPECT_EQ(MatMulError({kF, {4}}, {kF, {4}}), "In[0] and In[1] ndims must be == 2: 1");
  EXPECT_EQ(MatMulError({kF, {4, 6}}, {kF, {6}}), "In[0] and In[1] has different ndims: [4,6] vs. [6]");
  EXPECT_EQ(MatMulError({kF, {4, 6}}, {DType::kFloat64, {6, 1}}),
            "cannot compute MatMul as input #1(zero-based) was expected to be a float tensor but is a double "
            "tensor");
  EXPECT_EQ(MatMulError({kF, {4, 0}}, {kF, {std::int64_t{1} << 31, 0}}, {.transpose_b = true}),
            "MatMul takes dimensions up to 2147483647, got a matrix of shape [2147483648,0]; split it");
}

TEST(OpsTest, MatMulInfersTransposedShapes) {
  const std::vector<TensorSpec> inputs = {{kF, {6, 4}}, {kF, {7, 6}}};
  const auto spec = MatMulOp().Infer(inputs, {.transpose_a = true, .transpose_b = true});
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->shape, (Shape{4, 7}));
}

TEST(OpsTest, AddNHasTensorFlowsErrors) {
  const std::vector<TensorSpec> shapes = {{kF, {2, 2}}, {kF, {2, 3}}};
  EXPECT_EQ(
      AddNOp().Infer(shapes, {}).status().message(),
      "Inputs to operation AddN of type AddN must have the same size and shape.  Input 0: [2,2] != input 1: "
      "[2,3]");
  EXPECT_EQ(AddNOp().Infer({}, {}).status().message(),
            "Inputs must be an iterable of at least one Tensor/IndexedSlices with the same dtype and shape.");
  const std::vector<TensorSpec> types = {{kF, {2}}, {kF, {2}}, {DType::kInt32, {2}}};
  EXPECT_EQ(
      AddNOp().Infer(types, {}).status().message(),
      "cannot compute AddN as input #2(zero-based) was expected to be a float tensor but is a int32 tensor");
}

TEST(OpsTest, CastRefusesUnknownTypes) {
  const std::vector<TensorSpec> inputs = {{kF, {2}}};
  EXPECT_EQ(CastOp().Infer(inputs, {}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CastOp().Infer(inputs, {.cast_to = DType::kInt64})->dtype, DType::kInt64);
}

TEST(OpsTest, MetadataOpsSayTheirOutputOrWhy) {
  const std::vector<TensorSpec> matrix = {{kF, {2, 3}}};
  EXPECT_EQ(ShapeOp().Infer(matrix, {})->shape, (Shape{2}));
  EXPECT_EQ(ShapeOp().Infer(matrix, {})->dtype, DType::kInt32);
  EXPECT_EQ(SizeOp().Infer(matrix, {})->shape, Shape{});
  EXPECT_EQ(RankOp().Infer(matrix, {})->shape, Shape{});
  const std::vector<TensorSpec> large = {{kF, {1, std::int64_t{1} << 31}}};
  EXPECT_EQ(ShapeOp().Infer(large, {}).status().message(),
            "Shape output type is 32-bit  but dim 1 is 2147483648");
  EXPECT_EQ(SizeOp().Infer(large, {}).status().message(),
            "Number of elements was larger than representable by 32-bit output type");
  EXPECT_TRUE(RankOp().Infer(large, {}).ok());
  EXPECT_FALSE(ShapeOp().Infer({}, {}).ok());
}

std::string Error(const Op& op, const std::vector<TensorSpec>& inputs, const OpAttributes& attributes = {}) {
  const auto spec = op.Infer(inputs, attributes);
  return spec.ok() ? spec->shape.ToString() : std::string(spec.status().message());
}

TEST(OpsTest, BroadcastingIsTensorFlows) {
  EXPECT_EQ(Error(AddV2Op(), {{kF, {2, 1, 3}}, {kF, {4, 1}}}), "[2,4,3]");
  EXPECT_EQ(Error(MulOp(), {{kF, {}}, {kF, {0}}}), "[0]");
  EXPECT_EQ(Error(SubOp(), {{kF, {2, 3}}, {kF, {2}}}), "Incompatible shapes: [2,3] vs. [2]");
  EXPECT_EQ(Error(RealDivOp(), {{kF, {2}}, {DType::kFloat64, {2}}}),
            "cannot compute RealDiv as input #1(zero-based) was expected to be a float tensor but is a "
            "double tensor");
  EXPECT_EQ(Error(ReluGradOp(), {{kF, {2}}, {kF, {1}}}),
            "Inputs to operation ReluGrad of type ReluGrad must have the same size and shape.  Input 0: [2] "
            "!= input 1: "
            "[1]");
}

TEST(OpsTest, ReductionsInferTheRemainingShape) {
  const std::vector<TensorSpec> input = {{kF, {2, 3, 4}}};
  EXPECT_EQ(Error(SumOp(), input, {.axes = {.values = {1}, .count = 1}}), "[2,4]");
  EXPECT_EQ(Error(SumOp(), input, {.axes = {.values = {-1, 0}, .count = 2}, .keep_dims = true}), "[1,3,1]");
  EXPECT_EQ(Error(MeanOp(), input, {.axes = {.all = true}}), "[]");
  EXPECT_EQ(Error(MeanOp(), input), "[2,3,4]");
  EXPECT_EQ(Error(SumOp(), input, {.axes = {.values = {3}, .count = 1}}),
            "Invalid reduction dimension (3 for input with 3 dimension(s)");
  EXPECT_EQ(Error(SumOp(), input, {.axes = {.values = {0, -3}, .count = 2}}),
            "Invalid reduction arguments: Axes contains duplicate dimension: -3");
}

TEST(OpsTest, TransposeFillAndSoftmaxHaveTensorFlowsErrors) {
  const std::vector<TensorSpec> matrix = {{kF, {2, 3}}};
  EXPECT_EQ(Error(TransposeOp(), matrix, {.axes = {.values = {1, 0}, .count = 2}}), "[3,2]");
  EXPECT_EQ(Error(TransposeOp(), matrix, {.axes = {.values = {1}, .count = 1}}),
            "transpose expects a vector of size 2. But input(1) is a vector of size 1");
  EXPECT_EQ(Error(TransposeOp(), matrix, {.axes = {.values = {1, 2}, .count = 2}}),
            "2 is out of range [0 .. 2)");
  EXPECT_EQ(Error(TransposeOp(), matrix, {.axes = {.values = {1, 1}, .count = 2}}),
            "0 is missing from {1,1}.");
  EXPECT_EQ(Error(FillOp(), matrix, {.shape = {4}}), "value must represent a scalar, got shape [2,3]");
  EXPECT_EQ(Error(FillOp(), {{kF, {}}}, {.shape = {4}}), "[4]");
  const Op& softmax = SoftmaxCrossEntropyOp();
  const TensorSpec labels{DType::kInt32, {2}};
  EXPECT_EQ(Error(softmax, {matrix[0], labels}), "[2]");
  EXPECT_EQ(softmax.infer_second(matrix, {}).shape, (Shape{2, 3}));
  EXPECT_EQ(Error(softmax, {{kF, {2}}, labels}), "logits must be 2-D, but got shape [2]");
  EXPECT_EQ(Error(softmax, {matrix[0], {DType::kInt32, {2, 1}}}), "labels must be 1-D, but got shape [2,1]");
  EXPECT_EQ(
      Error(softmax, {matrix[0], {DType::kInt32, {3}}}),
      "logits and labels must have the same first dimension, got logits shape [2,3] and labels shape [3]");
  EXPECT_EQ(Error(softmax, {{kF, {2, 0}}, labels}),
            "Must have at least one class, but got logits shape [2,0]");
  EXPECT_EQ(Error(softmax, {matrix[0], {kF, {2}}}),
            "cannot compute SparseSoftmaxCrossEntropyWithLogits as input #1(zero-based) was expected to be a "
            "int32 or "
            "int64 tensor but is a float tensor");
}

TEST(OpsTest, IndexIsThePlaceInTheTable) {
  for (std::size_t i = 0; i < AllOps().size(); ++i) {
    EXPECT_EQ(AllOps()[i].index, i);
    EXPECT_EQ(FindOp(AllOps()[i].name), &AllOps()[i]);
  }
  EXPECT_EQ(FindOp("Conv2D"), nullptr);
}

}  // namespace
}  // namespace lgpu
