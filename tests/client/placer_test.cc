#include "client/runtime/placer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/cpu/cpu_kernels.h"
#include "proto/wire/placement_ring.h"

namespace lgpu::internal {
namespace {

using ::testing::HasSubstr;

class PlacerTest : public ::testing::Test {
 protected:
  Placement Place(const Placer& placer, const Op& op, DType dtype, std::string_view name, bool soft) {
    const DeviceRequest request = placer.Resolve(name);
    const auto placement = placer.Place(op, dtype, &request, soft);
    EXPECT_TRUE(placement.ok()) << placement.status();
    return placement.value_or(Placement{});
  }
  absl::Status Error(const Placer& placer, const Op& op, DType dtype, std::string_view name, bool soft) {
    const DeviceRequest request = placer.Resolve(name);
    return placer.Place(op, dtype, &request, soft).status();
  }
  const KernelRegistry registry_ = KernelRegistry::ForSimulatedDevices({});
  const Placer two_{registry_, 2};
};

TEST_F(PlacerTest, DefaultIsTheFirstGpu) {
  const auto placement = two_.Place(MatMulOp(), DType::kFloat32, nullptr, true);
  ASSERT_TRUE(placement.ok());
  EXPECT_EQ(placement->device, 0);
  EXPECT_EQ(placement->kernel->device, DeviceType::kGpu);
  EXPECT_FALSE(placement->soft_placed);
}

TEST_F(PlacerTest, DefaultOfACpuOnlyOpIsTheCpu) {
  EXPECT_EQ(two_.Place(MatMulOp(), DType::kInt32, nullptr, false)->device, two_.cpu());
  EXPECT_EQ(two_.Place(CastOp(), DType::kFloat32, nullptr, false)->device, two_.cpu());
}

TEST_F(PlacerTest, KernelPriorityComesFirst) {
  KernelRegistry registry;
  registry.Add({&AddNOp(), DeviceType::kCpu, DType::kFloat32, 2, RunAddN});
  registry.Add({&AddNOp(), DeviceType::kGpu, DType::kFloat32, 1, RunAddN});
  const Placer placer(registry, 1);
  EXPECT_EQ(placer.Place(AddNOp(), DType::kFloat32, nullptr, true)->device, placer.cpu());
}

TEST_F(PlacerTest, TakesEveryFormOfAName) {
  for (const char* name : {"/device:GPU:1", "/GPU:1", "/gpu:1", "GPU:1", "/job:localhost/device:GPU:1",
                           "/job:localhost/replica:0/task:0/device:GPU:1"}) {
    EXPECT_EQ(Place(two_, MatMulOp(), DType::kFloat32, name, false).device, 1) << name;
  }
  EXPECT_EQ(Place(two_, MatMulOp(), DType::kFloat32, "/device:GPU", false).device, 0);
  EXPECT_EQ(Place(two_, MatMulOp(), DType::kFloat32, "/CPU:0", false).device, two_.cpu());
  EXPECT_EQ(Place(two_, MatMulOp(), DType::kFloat32, "", false).device, 0);
  EXPECT_EQ(Place(two_, MatMulOp(), DType::kInt32, "/job:localhost", false).device, two_.cpu());
}

TEST_F(PlacerTest, HardPlacementHasTensorFlowsErrors) {
  const absl::Status status = Error(two_, MatMulOp(), DType::kFloat32, "/GPU:2", false);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(),
            "Could not satisfy device specification '/job:localhost/replica:0/task:0/device:GPU:2'. "
            "enable_soft_placement=0. Supported device types [GPU, CPU]. All available devices "
            "[/job:localhost/replica:0/task:0/device:GPU:0, /job:localhost/replica:0/task:0/device:GPU:1, "
            "/job:localhost/replica:0/task:0/device:CPU:0].");
  EXPECT_THAT(std::string(Error(two_, MatMulOp(), DType::kInt32, "/GPU:0", false).message()),
              HasSubstr("Supported device types [CPU]."));
}

TEST_F(PlacerTest, SoftPlacementFallsBackWithinTheTask) {
  EXPECT_EQ(Place(two_, MatMulOp(), DType::kFloat32, "/GPU:42", true).device, 0);
  EXPECT_TRUE(Place(two_, MatMulOp(), DType::kFloat32, "/GPU:42", true).soft_placed);
  EXPECT_EQ(Place(two_, MatMulOp(), DType::kInt32, "/GPU:0", true).device, two_.cpu());
  EXPECT_EQ(Error(two_, MatMulOp(), DType::kFloat32, "/job:other/GPU:0", true).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(Place(two_, MatMulOp(), DType::kFloat32, "/GPU:1", true).soft_placed);
}

TEST_F(PlacerTest, MalformedNamesFailEvenSoftly) {
  const absl::Status status = Error(two_, MatMulOp(), DType::kFloat32, "/foo:bar", true);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("Malformed device specification '/foo:bar'"));
}

TEST_F(PlacerTest, OpWithoutKernelIsNotFound) {
  KernelRegistry registry;
  registry.Add({&MatMulOp(), DeviceType::kGpu, DType::kFloat32, 0, RunMatMul});
  const Placer placer(registry, 1);
  const auto placed = placer.Place(MatMulOp(), DType::kInt64, nullptr, true);
  EXPECT_EQ(placed.status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(
      placed.status().message(),
      "Could not find device for node: {{node MatMul}} = MatMul[T=DT_INT64]\nAll kernels registered for op "
      "MatMul:\n  device='GPU'; T in [DT_FLOAT]");
  EXPECT_THAT(std::string(placer.Place(AddNOp(), DType::kInt64, nullptr, true).status().message()),
              HasSubstr("<no registered kernels>"));
}

TEST_F(PlacerTest, OpForGpusWithoutOneHasNoDevice) {
  KernelRegistry registry;
  registry.Add({&MatMulOp(), DeviceType::kGpu, DType::kFloat32, 0, RunMatMul});
  const Placer placer(registry, 0);
  EXPECT_EQ(placer.Place(MatMulOp(), DType::kFloat32, nullptr, false).status().message(),
            "No supported device found in available devices [/job:localhost/replica:0/task:0/device:CPU:0]. "
            "enable_soft_placement=0. Supported devices types [GPU].");
}

TEST_F(PlacerTest, DevicesAreListedByNameAsText) {
  const Placer eleven(registry_, 11);
  const std::string message(Error(eleven, MatMulOp(), DType::kFloat32, "/GPU:11", false).message());
  EXPECT_THAT(message, HasSubstr("device:GPU:1, /job:localhost/replica:0/task:0/device:GPU:10, "
                                 "/job:localhost/replica:0/task:0/device:GPU:2"));
}

TEST_F(PlacerTest, RequestsAreRecordedByDevice) {
  EXPECT_EQ(two_.Resolve("/GPU:7").record_id, 7);
  EXPECT_EQ(two_.Resolve("/CPU:0").record_id, PlacementEntry::kHostDevice);
  EXPECT_EQ(two_.Resolve("").record_id, PlacementEntry::kNoDevice);
  EXPECT_EQ(two_.Resolve("/GPU:2000000000").record_id, PlacementEntry::kNoDevice);
}

TEST_F(PlacerTest, FindOneHasTensorFlowsErrors) {
  EXPECT_EQ(*two_.FindOne("GPU:1"), 1);
  EXPECT_EQ(*two_.FindOne("/device:CPU:0"), two_.cpu());
  for (const char* name : {"GPU", "GPU:", "GPU:CPU"}) {
    EXPECT_THAT(std::string(two_.FindOne(name).status().message()),
                HasSubstr("Failed parsing device name: '"));
  }
  EXPECT_EQ(two_.FindOne("gpu:0").status().message(), "No matching devices found for 'gpu:0'");
  EXPECT_EQ(two_.FindOne("/job:localhost").status().message(),
            "Multiple devices match the provided string '/job:localhost': "
            "'/job:localhost/replica:0/task:0/device:CPU:0' and "
            "'/job:localhost/replica:0/task:0/device:GPU:0'.");
}

}  // namespace
}  // namespace lgpu::internal
