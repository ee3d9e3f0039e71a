#include "lgpu/context.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <optional>
#include <set>
#include <thread>
#include <tuple>
#include <vector>

#include "proto/wire/pages.h"
#include "tests/client/context_testing.h"
#include "tests/support/sanitizers.h"

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

TEST(ContextTest, ConstantsOfOneAndTwoDimensions) {
  const TestContext test;
  EXPECT_EQ(Must(test.gpu->Constant<float>({1, 2, 3})).shape(), (Shape{3}));
  EXPECT_EQ(Must(test.gpu->Constant<float>({{1, 2, 3}, {4, 5, 6}})).shape(), (Shape{2, 3}));
  EXPECT_EQ(Must(test.gpu->Constant<float>({{5}})).shape(), (Shape{1, 1}));
  EXPECT_EQ(Must(test.gpu->Constant<float>({{5}, {6}})).shape(), (Shape{2, 1}));
  EXPECT_EQ(Must(test.gpu->Constant<std::int32_t>({7})).device(), kGpu0);
  EXPECT_EQ(test.gpu->Constant<float>({{1, 2}, {3}}).status().code(), absl::StatusCode::kInvalidArgument);
}

template <typename T, typename V>
concept MakesAConstant = requires(const Context& gpu, V value) {
  gpu.Constant<T>(value);
};
static_assert(MakesAConstant<float, int> && MakesAConstant<std::int32_t, std::int64_t>);
static_assert(!MakesAConstant<std::int32_t, double> && !MakesAConstant<float, const char*>);

TEST(ContextTest, ScalarsBecomeConstantsAndFillShapes) {
  const TestContext test;
  const Tensor scalar = Must(test.gpu->Constant<float>(3));
  EXPECT_EQ(scalar.shape(), Shape{});
  EXPECT_EQ(Must(scalar.ToVector<float>()), std::vector<float>{3});
  const Tensor filled = Must(test.gpu->Fill<float>({2, 3}, 0.5));
  EXPECT_EQ(filled.shape(), Shape({2, 3}));
  EXPECT_EQ(filled.device(), kGpu0);
  EXPECT_EQ(Must(filled.ToVector<float>()), std::vector<float>(6, 0.5F));
  EXPECT_EQ(Must(test.gpu->Constant<float>({5})).shape(), Shape({1}));
  EXPECT_TRUE(test.gpu->Close().ok());
  EXPECT_EQ(test.gpu->Fill<float>({2}, 1).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(ContextTest, ConstantsMustFitTheirShape) {
  const TestContext test;
  const std::vector<float> values(6);
  EXPECT_TRUE(test.gpu->Constant<float>({2, 3}, values).ok());
  EXPECT_EQ(test.gpu->Constant<float>({2, 2}, values).status().code(), absl::StatusCode::kInvalidArgument);
  // 2^61 elements of 8 bytes: a size that would wrap around to zero.
  const absl::Status huge = test.gpu->ConstantBytes(DType::kFloat64, {std::int64_t{1} << 61}, {}).status();
  EXPECT_EQ(huge.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(test.gpu->ConstantBytes(DType::kInvalid, {0}, {}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(ContextTest, AttributesDescribeTheDevice) {
  const TestContext test({.cards = 2, .devices_per_card = 2});
  const std::vector<DeviceAttributes> devices = test.gpu->ListDeviceAttributes();
  ASSERT_EQ(devices.size(), 5U);
  EXPECT_EQ(devices[0].name, kCpu0);
  EXPECT_EQ(devices[0].device_type, "CPU");
  EXPECT_EQ(devices[0].memory_limit, 256_MiB);
  EXPECT_EQ(devices[0].physical_device_desc, "");
  EXPECT_THAT(devices[0].links, IsEmpty());
  EXPECT_EQ(devices[2].name, kGpu1);
  EXPECT_EQ(devices[2].memory_limit, 64_MiB);
  EXPECT_THAT(devices[2].physical_device_desc, HasSubstr("device: 0, name: "));
  EXPECT_FALSE(devices[2].numa_node.has_value());  // simulated
  const std::vector<int> neighbours = {1, 0, 3, 2};
  std::set<std::uint64_t> incarnations;
  for (std::size_t i = 0; i < devices.size(); ++i) {
    EXPECT_NE(devices[i].incarnation, 0U);
    incarnations.insert(devices[i].incarnation);
    if (i == 0) continue;
    ASSERT_EQ(devices[i].links.size(), 1U);
    EXPECT_EQ(devices[i].links[0].device_id, neighbours[i - 1]);
    EXPECT_EQ(devices[i].links[0].type, "SAME_DEVICE");
    EXPECT_EQ(devices[i].links[0].strength, 1000);
  }
  EXPECT_EQ(incarnations.size(), 5U);
  test.gpu->Close().IgnoreError();
  EXPECT_THAT(test.gpu->ListDeviceAttributes(), IsEmpty());
}

TEST(ContextTest, TheVariableOfTensorFlowPinsSmallOps) {
  constexpr const char* kName = "TF_EAGER_ENABLE_SMALL_TENSOR_CPU_PINNING";
  for (const auto& [value, device, lines] : std::vector<std::tuple<const char*, const char*, std::size_t>>{
           {"True", kCpu0, 0}, {"1", kCpu0, 0}, {"0", kGpu0, 0}, {"FALSE", kGpu0, 0}, {"yes", kGpu0, 1}}) {
    ::setenv(kName, value, 1);
    const TestContext test;
    ::unsetenv(kName);
    EXPECT_EQ(test.lines->size(), lines) << value;
    if (lines > 0) {
      EXPECT_EQ(
          test.lines->back(),
          "E Failed to parse the env-var ${TF_EAGER_ENABLE_SMALL_TENSOR_CPU_PINNING} into bool: yes. Use "
          "the default value: 0");
    }
    const Tensor whole = Must(CopyToDevice(Must(test.gpu->Constant<std::int32_t>({1, 2})), "CPU:0"));
    EXPECT_EQ(Must(AddN({whole, whole})).device(), device) << value;
  }
}

TEST(ContextTest, ClosedContextFailsEveryUse) {
  TestContext test;
  const Tensor gpu_tensor = Must(test.gpu->Constant<float>({{1, 2}, {3, 4}}));
  std::optional<Tensor> cpu_tensor;
  {
    const DeviceScope cpu(*test.gpu, "/CPU:0");
    cpu_tensor = Must(test.gpu->Constant<float>({1, 2}));
  }
  EXPECT_TRUE(test.gpu->Close().ok());
  EXPECT_TRUE(test.gpu->Close().ok());
  EXPECT_EQ(test.log->closes, 1);
  constexpr auto kFailed = absl::StatusCode::kFailedPrecondition;
  EXPECT_EQ(gpu_tensor.ToVector<float>().status().code(), kFailed);
  EXPECT_EQ(cpu_tensor->ToVector<float>().status().code(), kFailed);
  EXPECT_EQ(MatMul(gpu_tensor, gpu_tensor).status().code(), kFailed);
  EXPECT_EQ(test.gpu->Constant<float>({1}).status().code(), kFailed);
  EXPECT_EQ(test.gpu->GetMemoryInfo("GPU:0").status().code(), kFailed);
  EXPECT_EQ(test.gpu->Trim().status().code(), kFailed);
  EXPECT_EQ(gpu_tensor.shape(), (Shape{2, 2}));
  EXPECT_EQ(gpu_tensor.device(), kGpu0);
  EXPECT_EQ(test.gpu->logical_devices().size(), 2U);
}

TEST(ContextTest, TensorsMayOutliveTheirContext) {
  auto test = std::make_optional<TestContext>();
  const auto log = test->log;
  const Tensor tensor = Must(test->gpu->Constant<float>({1, 2}));
  test.reset();
  EXPECT_EQ(log->closes, 1);
  EXPECT_EQ(tensor.ToVector<float>().status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(ContextTest, MovedFromContextIsClosed) {
  TestContext test;
  const Context moved = std::move(*test.gpu);
  EXPECT_TRUE(moved.Constant<float>({1}).ok());
  EXPECT_EQ(test.gpu->Constant<float>({1}).status().code(),  // NOLINT(bugprone-use-after-move)
            absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(test.gpu->Close().ok());
  EXPECT_THAT(test.gpu->logical_devices(), IsEmpty());
}

TEST(ContextTest, MemoryInfoFollowsTensors) {
  const TestContext test;
  const std::vector<float> values(1 << 18);
  Tensor tensor = Must(test.gpu->Constant<float>({1 << 18}, values));
  const MemoryInfo with = Must(test.gpu->GetMemoryInfo("GPU:0"));
  EXPECT_GE(with.current, 1_MiB);
  tensor = Tensor();
  const MemoryInfo without = Must(test.gpu->GetMemoryInfo("GPU:0"));
  EXPECT_EQ(without.current, Bytes(0));
  EXPECT_EQ(without.peak, with.peak);
  EXPECT_TRUE(test.gpu->ResetMemoryStats("/device:GPU:0").ok());
  EXPECT_EQ(Must(test.gpu->GetMemoryInfo("GPU:0")).peak, Bytes(0));
  EXPECT_EQ(Must(test.gpu->GetMemoryInfo("CPU:0")).peak, Bytes(0));
  EXPECT_TRUE(test.gpu->ResetMemoryStats("CPU:0").ok());
  EXPECT_EQ(test.gpu->GetAllocatorStats("CPU:0").status().message(),
            "Allocator stats not available for device 'CPU:0'");
}

TEST(ContextTest, CountersOfTheClientPageFollowTensors) {
  const TestContext test;
  const ClientPage::Device& counters = test.page->devices[0];
  Tensor tensor = Must(test.gpu->Constant<float>({1, 2, 3}));
  EXPECT_EQ(counters.requested, 12U);
  EXPECT_GE(counters.used, 12U);
  EXPECT_EQ(counters.live_blocks, 1U);
  EXPECT_EQ(counters.ops, 1U);
  tensor = Tensor();
  EXPECT_EQ(counters.requested, 0U);
  EXPECT_EQ(counters.used, 0U);
  EXPECT_EQ(counters.live_blocks, 0U);
  EXPECT_EQ(counters.allocations, 1U);
  EXPECT_GE(counters.peak_used, 12U);
}

TEST(ContextTest, RefusalNamesTheOpAndTheTensor) {
  const TestContext test({.limit = 4_MiB});
  const std::vector<float> values(1 << 19);
  const Tensor column = Must(test.gpu->Constant<float>({1 << 19, 1}, values));
  const absl::Status refused = MatMul(column, column, {.transpose_b = true}).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  const std::optional<Refusal> refusal = GetRefusal(refused);
  ASSERT_TRUE(refusal.has_value());
  EXPECT_EQ(refusal->what, "output of op MatMul, shape [524288,524288], float");
  EXPECT_EQ(test.page->devices[0].refusals, 1U);
  EXPECT_TRUE(column.ToVector<float>().ok());
}

TEST(ContextTest, TrimGivesIdleMemoryBack) {
  const TestContext test;
  Tensor tensor = Must(test.gpu->Constant<float>({1 << 20}, std::vector<float>(1 << 20)));
  tensor = Tensor();
  EXPECT_GE(Must(test.gpu->Trim()), 4_MiB);
  EXPECT_EQ(Must(test.gpu->GetMemoryStats("GPU:0")).held, Bytes(0));
}

TEST(ContextTest, SwitchesComeFromTheEnvironment) {
  ::setenv("LGPU_LOG_DEVICE_PLACEMENT", "1", 1);
  ::setenv("LGPU_SOFT_PLACEMENT", "yes", 1);
  {
    const TestContext test;
    EXPECT_THAT(*test.lines, ElementsAre(HasSubstr("LGPU_SOFT_PLACEMENT is \"yes\"; it may be 1 or 0"),
                                         HasSubstr("Created device"), HasSubstr("Created device")));
    test.lines->clear();
    Must(test.gpu->Constant<float>({1}));
    EXPECT_THAT(*test.lines, ElementsAre("Executing op _EagerConst in device "
                                         "/job:localhost/replica:0/task:0/device:GPU:0"));
  }
  {
    const TestContext test({}, {.log_device_placement = false, .soft_device_placement = true});
    Must(test.gpu->Constant<float>({1}));
    EXPECT_THAT(*test.lines, IsEmpty());
  }
  ::unsetenv("LGPU_LOG_DEVICE_PLACEMENT");
  ::unsetenv("LGPU_SOFT_PLACEMENT");
}

TEST(ContextTest, CloseWaitsForOpsOfOtherThreads) {
  for (int round = 0; round < 20; ++round) {
    TestContext test({.asynchronous = round % 2 == 0});
    const Tensor tensor = Must(test.gpu->Constant<float>({{1, 2}, {3, 4}}));
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; ++i) {
      threads.emplace_back([&tensor] {
        Tensor last = tensor;
        while (true) {
          absl::StatusOr<Tensor> next = AddN({last, tensor});
          if (!next.ok()) {
            EXPECT_EQ(next.status().code(), absl::StatusCode::kFailedPrecondition);
            return;
          }
          last = *std::move(next);
        }
      });
    }
    EXPECT_TRUE(test.gpu->Close().ok());
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(test.log->closes, 1);
  }
}

// The child touches every kind of handle and lets all of them go; it must neither fault nor hang, and the
// parent must not notice.
TEST(ContextTest, ForkedChildHasDeadHandles) {
  if (testing::kThreadSanitizer) GTEST_SKIP() << testing::kForkBesideThreads;
  for (const bool asynchronous : {false, true}) {
    auto test = std::make_optional<TestContext>(FakeLeaseOptions{.asynchronous = asynchronous});
    Tensor tensor = Must(test->gpu->Constant<float>({{1, 2}, {3, 4}}));
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      constexpr auto kFailed = absl::StatusCode::kFailedPrecondition;
      const bool dead = MatMul(tensor, tensor).status().code() == kFailed &&
                        tensor.ToVector<float>().status().code() == kFailed &&
                        test->gpu->Constant<float>({1}).status().code() == kFailed &&
                        test->gpu->Explain("MatMul", {{tensor, tensor}}).status().code() == kFailed &&
                        test->gpu->CopyRoutes().empty() && test->gpu->Close().code() == kFailed;
      tensor = Tensor();
      test.reset();
      ::_exit(dead ? 0 : 1);
    }
    int state = -1;
    ASSERT_EQ(::waitpid(child, &state, 0), child);
    EXPECT_EQ(state, 0);
    EXPECT_TRUE(MatMul(tensor, tensor).ok());
  }
}

TEST(ContextTest, OpCountsAreByDevice) {
  const TestContext test;
  const Tensor tensor = Must(test.gpu->Constant<float>({1}));
  const DeviceScope scope(*test.gpu, "/GPU:9");
  Must(AddN({tensor, tensor}));
  const auto counts = test.gpu->OpCounts();
  ASSERT_EQ(counts.size(), 3U);
  EXPECT_EQ(counts[0].device, kGpu0);
  EXPECT_EQ(counts[0].ops, 2U);
  EXPECT_EQ(counts[0].soft_placed, 1U);
  EXPECT_EQ(counts[1].device, kGpu1);
  EXPECT_EQ(counts[2].device, kCpu0);
}

}  // namespace
}  // namespace lgpu
