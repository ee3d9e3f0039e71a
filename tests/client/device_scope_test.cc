#include "lgpu/device_scope.h"

#include <memory>
#include <optional>
#include <thread>

#include "tests/client/context_testing.h"

namespace lgpu {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::kCpu0;
using testing::kGpu0;
using testing::kGpu1;
using testing::Must;
using testing::TestContext;

std::string Where(const TestContext& test) { return Must(test.gpu->Constant<float>({1})).device(); }

TEST(DeviceScopeTest, InnermostCounts) {
  const TestContext test;
  EXPECT_EQ(Where(test), kGpu0);
  {
    const DeviceScope outer(*test.gpu, "/GPU:1");
    EXPECT_EQ(Where(test), kGpu1);
    {
      const DeviceScope inner(*test.gpu, "/CPU:0");
      EXPECT_EQ(Where(test), kCpu0);
      const DeviceScope none(*test.gpu, "");
      EXPECT_EQ(Where(test), kGpu0);
    }
    EXPECT_EQ(Where(test), kGpu1);
  }
  EXPECT_EQ(Where(test), kGpu0);
}

TEST(DeviceScopeTest, IsOfOneThreadAndOneContext) {
  const TestContext test;
  const TestContext other;
  const DeviceScope scope(*test.gpu, "/CPU:0");
  EXPECT_EQ(Where(other), kGpu0);
  std::thread([&test] { EXPECT_EQ(Where(test), kGpu0); }).join();
  const DeviceScope second(*other.gpu, "/GPU:1");
  EXPECT_EQ(Where(test), kCpu0);
  EXPECT_EQ(Where(other), kGpu1);
}

TEST(DeviceScopeTest, EndsInAnyOrderWithoutHarm) {
  const TestContext test;
  std::optional<DeviceScope> first;
  std::optional<DeviceScope> second;
  first.emplace(*test.gpu, "/GPU:1");
  second.emplace(*test.gpu, "/CPU:0");
  first.reset();
  EXPECT_EQ(Where(test), kCpu0);
  second.reset();
  EXPECT_EQ(Where(test), kGpu0);
}

TEST(DeviceScopeTest, EndsOnAnotherThreadWithoutHarm) {
  const TestContext test;
  auto scope = std::make_unique<DeviceScope>(*test.gpu, "/CPU:0");
  EXPECT_EQ(Where(test), kCpu0);
  std::thread([&scope] { scope.reset(); }).join();
  EXPECT_EQ(Where(test), kGpu0);
  const DeviceScope next(*test.gpu, "/GPU:1");
  EXPECT_EQ(Where(test), kGpu1);
}

TEST(DeviceScopeTest, WrongNameFailsTheNextOp) {
  const TestContext test;
  const Tensor tensor = Must(test.gpu->Constant<float>({{1}}));
  const DeviceScope scope(*test.gpu, "/foo:bar");
  const absl::Status status = MatMul(tensor, tensor).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("Malformed device specification '/foo:bar' in eager op: MatMul"));
  EXPECT_FALSE(test.gpu->Constant<float>({1}).ok());
}

TEST(DeviceScopeTest, SoftPlacementSaysSoOnce) {
  const TestContext test;
  const Tensor tensor = Must(test.gpu->Constant<float>({{1}}));
  const Tensor whole = Must(test.gpu->Constant<std::int32_t>({{1}}));
  {
    const DeviceScope scope(*test.gpu, "/GPU:2");
    for (int i = 0; i < 3; ++i) Must(MatMul(tensor, tensor));
  }
  const DeviceScope scope(*test.gpu, "/GPU:1");
  EXPECT_EQ(Must(MatMul(whole, whole)).device(), kCpu0);
  EXPECT_THAT(
      *test.lines,
      ElementsAre("lgpu: note: op MatMul asked for /device:GPU:2 (unknown), runs on /device:GPU:0 (soft "
                  "placement). Later ones are only counted.",
                  "lgpu: note: op MatMul asked for /device:GPU:1 (no kernel for int32 there), runs on "
                  "/device:CPU:0 (soft placement). Later ones are only counted."));
  EXPECT_EQ(test.gpu->OpCounts()[0].soft_placed, 3U);
}

TEST(DeviceScopeTest, HardPlacementFails) {
  const TestContext test;
  const Tensor tensor = Must(test.gpu->Constant<float>({{1}}));
  test.gpu->SetSoftDevicePlacement(false);
  const DeviceScope scope(*test.gpu, "/GPU:2");
  EXPECT_THAT(std::string(MatMul(tensor, tensor).status().message()),
              HasSubstr("Could not satisfy device specification "
                        "'/job:localhost/replica:0/task:0/device:GPU:2'. enable_soft_placement=0."));
}

TEST(DeviceScopeTest, MayOutliveItsContext) {
  auto test = std::make_optional<TestContext>();
  const DeviceScope scope(*test->gpu, "/GPU:1");
  test.reset();
  const TestContext other;
  EXPECT_EQ(Where(other), kGpu0);
}

}  // namespace
}  // namespace lgpu
