#include "kernels/registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/cpu/cpu_kernels.h"

namespace lgpu {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(KernelRegistryTest, WholeMatMulIsOnTheCpuOnly) {
  const KernelRegistry registry = KernelRegistry::ForSimulatedDevices({});
  EXPECT_THAT(registry.SupportedDevices(MatMulOp(), DType::kInt32), ElementsAre(DeviceType::kCpu));
  EXPECT_THAT(registry.SupportedDevices(MatMulOp(), DType::kFloat32),
              ElementsAre(DeviceType::kGpu, DeviceType::kCpu));
}

TEST(KernelRegistryTest, WholeReluAndMeanAreOnTheCpuOnly) {
  const KernelRegistry registry = KernelRegistry::ForSimulatedDevices({});
  for (const Op* op : {&ReluOp(), &ReluGradOp(), &MeanOp()}) {
    EXPECT_THAT(registry.SupportedDevices(*op, DType::kInt64), ElementsAre(DeviceType::kCpu)) << op->name;
  }
}

TEST(KernelRegistryTest, CastIsOnGpusOnlyWhenAskedFor) {
  EXPECT_EQ(KernelRegistry::ForSimulatedDevices({}).Find(CastOp(), DeviceType::kGpu, DType::kFloat32),
            nullptr);
  const KernelRegistry registry = KernelRegistry::ForSimulatedDevices({.cast_on_gpu = true});
  EXPECT_NE(registry.Find(CastOp(), DeviceType::kGpu, DType::kFloat32), nullptr);
}

TEST(KernelRegistryTest, TanhIsOfFloatingTypes) {
  const KernelRegistry registry = KernelRegistry::ForSimulatedDevices({});
  for (const Op* op : {&TanhOp(), &TanhGradOp()}) {
    EXPECT_EQ(registry.SupportedDevices(*op, DType::kBFloat16).size(), 2U) << op->name;
    EXPECT_TRUE(registry.SupportedDevices(*op, DType::kInt32).empty()) << op->name;
  }
}

TEST(KernelRegistryTest, AnOpIsFoundByItsIndexAndItsName) {
  std::size_t index = 0;
  for (const Op& op : AllOps()) {
    EXPECT_EQ(op.index, index++) << op.name;
    EXPECT_EQ(FindOp(op.name), &op);
  }
}

TEST(KernelRegistryTest, WithoutCodeTheSameOpsAreSupported) {
  const KernelRegistry real = KernelRegistry::ForCudaDevices({.cast_on_gpu = true});
  if (real.Find(AddNOp(), DeviceType::kGpu, DType::kFloat32) == nullptr) {
    GTEST_SKIP() << "this build has no kernels for real GPUs";
  }
  const KernelRegistry said = KernelRegistry::WithoutCode({.cast_on_gpu = true});
  for (const Op& op : AllOps()) {
    for (int dtype = 0; dtype < 32; ++dtype) {
      EXPECT_EQ(real.SupportedDevices(op, static_cast<DType>(dtype)),
                said.SupportedDevices(op, static_cast<DType>(dtype)))
          << op.name << " " << dtype;
    }
  }
}

TEST(KernelRegistryTest, PriorityComesBeforeTheDeviceType) {
  KernelRegistry registry;
  registry.Add({&AddNOp(), DeviceType::kGpu, DType::kFloat32, 1, RunAddN});
  registry.Add({&AddNOp(), DeviceType::kCpu, DType::kFloat32, 2, RunAddN});
  EXPECT_THAT(registry.SupportedDevices(AddNOp(), DType::kFloat32),
              ElementsAre(DeviceType::kCpu, DeviceType::kGpu));
  EXPECT_THAT(registry.SupportedDevices(AddNOp(), DType::kInt64), IsEmpty());
}

TEST(KernelRegistryTest, DescribesKernelsAsTensorFlowDoes) {
  const KernelRegistry empty;
  EXPECT_EQ(empty.DescribeKernels(MatMulOp()), "  <no registered kernels>");
  EXPECT_EQ(empty.Find(MatMulOp(), DeviceType::kCpu, DType::kFloat32), nullptr);
  KernelRegistry registry;
  registry.Add({&MatMulOp(), DeviceType::kGpu, DType::kFloat32, 0, RunMatMul});
  registry.Add({&MatMulOp(), DeviceType::kCpu, DType::kInt32, 0, RunMatMul});
  EXPECT_EQ(registry.DescribeKernels(MatMulOp()),
            "  device='GPU'; T in [DT_FLOAT]\n  device='CPU'; T in [DT_INT32]");
}

}  // namespace
}  // namespace lgpu
