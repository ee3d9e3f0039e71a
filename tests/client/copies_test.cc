#include "client/runtime/copies.h"

#include "tests/client/context_testing.h"

namespace lgpu {
namespace {

using ::testing::ElementsAre;
using testing::FakeLeaseOptions;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::kCpu0;
using testing::kGpu0;
using testing::kGpu1;
using testing::Must;
using testing::TestContext;

Tensor On(const TestContext& test, const char* device, const Tensor& tensor) {
  const DeviceScope scope(*test.gpu, device);
  return Must(Identity(tensor));
}

class CopiesTest : public ::testing::TestWithParam<FakeLeaseOptions> {};
INSTANTIATE_TEST_SUITE_P(
    Modes, CopiesTest,
    ::testing::Values(FakeLeaseOptions{.cards = 1, .devices_per_card = 2},
                      FakeLeaseOptions{.cards = 2, .devices_per_card = 1},
                      FakeLeaseOptions{.cards = 1, .devices_per_card = 2, .asynchronous = true},
                      FakeLeaseOptions{.cards = 2, .devices_per_card = 1, .asynchronous = true}));

TEST_P(CopiesTest, EveryDirectionKeepsTheValues) {
  const TestContext test(GetParam());
  std::vector<float> values(3'000'001);  // more than one piece of staging
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  Tensor tensor = Must(test.gpu->Constant<float>({3'000'001}, values));
  for (const char* device : {"GPU:1", "GPU:0", "CPU:0", "GPU:1", "CPU:0", "CPU:0", "GPU:0", "GPU:0"}) {
    tensor = On(test, device, tensor);
    EXPECT_THAT(tensor.device(), ::testing::EndsWith(device));
  }
  EXPECT_EQ(Must(tensor.ToVector<float>()), values);
}

// The source's memory goes back while the copy may still be queued; its next owner must not reach it first.
TEST_P(CopiesTest, SourceMayGoAtOnce) {
  const TestContext test(GetParam());
  const std::vector<float> ones(50000, 1);
  const std::vector<float> twos(50000, 2);
  for (int i = 0; i < 50; ++i) {
    Tensor source = Must(test.gpu->Constant<float>({50000}, ones));
    const Tensor copy = On(test, "/GPU:1", source);
    source = Tensor();
    const Tensor next = Must(test.gpu->Constant<float>({50000}, twos));
    ASSERT_EQ(Must(copy.ToVector<float>()), ones);
  }
}

TEST_P(CopiesTest, InputsComeToTheOp) {
  const TestContext test(GetParam());
  const Tensor a = Must(test.gpu->Constant<float>({1, 2}));
  const Tensor b = On(test, "/GPU:1", a);
  const Tensor c = On(test, "/CPU:0", a);
  const std::uint64_t before = test.gpu->CopyCounts().copies;
  const DeviceScope scope(*test.gpu, "/GPU:1");
  const Tensor sum = Must(AddN({a, b, c}));
  EXPECT_EQ(sum.device(), kGpu1);
  EXPECT_THAT(Must(sum.ToVector<float>()), ElementsAre(3, 6));
  EXPECT_EQ(test.gpu->CopyCounts().copies, before + 2);
  EXPECT_EQ(test.gpu->CopyCounts().bytes, Bytes((before + 2) * 8));
}

TEST(DevicePolicyTest, WarnHasTensorFlowsText) {
  const TestContext test({}, {.device_policy = DevicePolicy::kWarn});
  const Tensor a = Must(test.gpu->Constant<float>({1, 2}));
  const DeviceScope scope(*test.gpu, "/CPU:0");
  EXPECT_TRUE(AddN({a, a}).ok());
  ASSERT_EQ(test.lines->size(), 2U);
  EXPECT_EQ(test.lines->at(1),
            "before computing AddN input #1 was expected to be on "
            "/job:localhost/replica:0/task:0/device:CPU:0 but is actually on "
            "/job:localhost/replica:0/task:0/device:GPU:0 (operation running on "
            "/job:localhost/replica:0/task:0/device:CPU:0). This triggers a copy which can be a performance "
            "bottleneck.");
}

TEST(DevicePolicyTest, ExplicitRefusesAllButIdentity) {
  const TestContext test({}, {.device_policy = DevicePolicy::kExplicit});
  const Tensor a = Must(test.gpu->Constant<float>({1, 2}));
  const DeviceScope scope(*test.gpu, "/CPU:0");
  const absl::Status status = AddN({a, a}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(
      std::string(status.message()),
      HasSubstr("Tensors on conflicting devices: cannot compute AddN as input #0 was expected to be on "
                "/job:localhost/replica:0/task:0/device:CPU:0 but is actually on "
                "/job:localhost/replica:0/task:0/device:GPU:0 (operation running on "
                "/job:localhost/replica:0/task:0/device:CPU:0) Tensors can be copied explicitly using: "));
  EXPECT_EQ(Must(Identity(a)).device(), kCpu0);
  EXPECT_THAT(*test.lines, IsEmpty());
}

TEST(DevicePolicyTest, SilentForInt32CopiesInt32Only) {
  const TestContext test({}, {.device_policy = DevicePolicy::kSilentForInt32});
  const Tensor whole = Must(test.gpu->Constant<std::int32_t>({1, 2}));
  const Tensor real = Must(test.gpu->Constant<float>({1, 2}));
  const DeviceScope scope(*test.gpu, "/CPU:0");
  EXPECT_TRUE(AddN({whole, whole}).ok());
  EXPECT_EQ(AddN({real, real}).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace lgpu
