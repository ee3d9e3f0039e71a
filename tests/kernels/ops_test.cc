#include <gtest/gtest.h>

#include <vector>

#include "kernels/registry.h"

namespace lgpu {
namespace {

constexpr DType kF = DType::kFloat32;

std::string MatMulError(const TensorSpec& a, const TensorSpec& b, const OpAttributes& attributes = {}) {
  const std::vector<TensorSpec> inputs = {a, b};
  const auto spec = MatMulOp().infer(inputs, attributes);
  if (spec.ok()) return "ok";
  EXPECT_EQ(spec.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(spec.status().message());
}

TEST(OpsTest, MatMulSaysWhatTensorFlowSays) {
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
  const auto spec = MatMulOp().infer(inputs, {.transpose_a = true, .transpose_b = true});
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->shape, (Shape{4, 7}));
}

TEST(OpsTest, AddNSaysWhatTensorFlowSays) {
  const std::vector<TensorSpec> shapes = {{kF, {2, 2}}, {kF, {2, 3}}};
  EXPECT_EQ(
      AddNOp().infer(shapes, {}).status().message(),
      "Inputs to operation AddN of type AddN must have the same size and shape.  Input 0: [2,2] != input 1: "
      "[2,3]");
  EXPECT_EQ(AddNOp().infer({}, {}).status().message(),
            "inputs must be an iterable of at least one Tensor/IndexedSlices with the same dtype and shape");
  const std::vector<TensorSpec> types = {{kF, {2}}, {kF, {2}}, {DType::kInt32, {2}}};
  EXPECT_EQ(
      AddNOp().infer(types, {}).status().message(),
      "cannot compute AddN as input #2(zero-based) was expected to be a float tensor but is a int32 tensor");
}

TEST(OpsTest, CastRefusesUnknownTypes) {
  const std::vector<TensorSpec> inputs = {{kF, {2}}};
  EXPECT_EQ(CastOp().infer(inputs, {}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CastOp().infer(inputs, {.cast_to = DType::kInt64})->dtype, DType::kInt64);
}

TEST(OpsTest, MetadataOpsSayTheirOutputOrWhy) {
  const std::vector<TensorSpec> matrix = {{kF, {2, 3}}};
  EXPECT_EQ(ShapeOp().infer(matrix, {})->shape, (Shape{2}));
  EXPECT_EQ(ShapeOp().infer(matrix, {})->dtype, DType::kInt32);
  EXPECT_EQ(SizeOp().infer(matrix, {})->shape, Shape{});
  EXPECT_EQ(RankOp().infer(matrix, {})->shape, Shape{});
  const std::vector<TensorSpec> large = {{kF, {1, std::int64_t{1} << 31}}};
  EXPECT_EQ(ShapeOp().infer(large, {}).status().message(),
            "Shape output type is 32-bit  but dim 1 is 2147483648");
  EXPECT_EQ(SizeOp().infer(large, {}).status().message(),
            "Number of elements was larger than representable by 32-bit output type");
  EXPECT_TRUE(RankOp().infer(large, {}).ok());
  EXPECT_FALSE(ShapeOp().infer({}, {}).ok());
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
