// A Context whose tensors are in host memory for some time.

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <thread>
#include <vector>

#include "client/runtime/tensor_buffer.h"
#include "lgpu/tensor_export.h"
#include "tests/client/context_testing.h"
#include "tests/support/sanitizers.h"

namespace lgpu {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::Must;
using testing::TestContext;

constexpr auto kFailedPrecondition = absl::StatusCode::kFailedPrecondition;

std::vector<float> SomeValues(std::size_t count) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<float>(i % 1021) * 0.25F;
  return values;
}

Tensor MakeTensor(const Context& gpu, std::size_t count) {
  const std::vector<float> values = SomeValues(count);
  return Must(gpu.Constant<float>(std::span<const float>(values)));
}

const std::byte* AddressOf(const Tensor& tensor) { return internal::TensorBuffer::Of(tensor)->data(); }

TEST(ContextSuspensionTest, ValuesAndAddressesAreTheSameAfterwards) {
  for (const bool asynchronous : {false, true}) {
    TestContext test({.asynchronous = asynchronous});
    const std::size_t sizes[] = {1, 1000, 100'000, 3'000'000};
    std::vector<Tensor> tensors;
    std::vector<const std::byte*> addresses;
    for (const char* const device : {"/GPU:0", "/GPU:1", "/CPU:0"}) {
      const DeviceScope scope(*test.gpu, device);
      for (const std::size_t size : sizes) {
        tensors.push_back(MakeTensor(*test.gpu, size));
        addresses.push_back(AddressOf(tensors.back()));
      }
    }
    ASSERT_TRUE(test.gpu->Suspend().ok());
    ASSERT_TRUE(test.gpu->Resume().ok());
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      EXPECT_EQ(AddressOf(tensors[i]), addresses[i]);
      EXPECT_EQ(Must(tensors[i].ToVector<float>()), SomeValues(sizes[i % 4]));
    }
    EXPECT_TRUE(AddN({tensors[3], tensors[3]}).ok());
    EXPECT_TRUE(test.gpu->Close().ok());
  }
}

TEST(ContextSuspensionTest, CallsThatNeedTheDevicesNameResume) {
  TestContext test;
  const Tensor tensor = MakeTensor(*test.gpu, 10);
  const LogicalMemory memory = *test.gpu->Memory("GPU:0");
  ASSERT_TRUE(test.gpu->Suspend().ok());
  EXPECT_TRUE(test.gpu->Suspend().ok()) << "a repeated one does nothing";
  for (const absl::Status& status :
       {AddN({tensor, tensor}).status(), tensor.ToVector<float>().status(), test.gpu->Trim().status(),
        test.gpu->Constant<float>({1}).status(), test.gpu->ResizeDevice("GPU:0", {.memory_limit = 32_MiB}),
        tensor.Export({}).status(), memory.Allocate(1_MiB).status()}) {
    EXPECT_EQ(status.code(), kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("suspended"), HasSubstr("try: Resume")));
  }
  EXPECT_TRUE(test.gpu->GetMemoryInfo("GPU:0").ok()) << "statistics need no memory";
  EXPECT_TRUE(test.log->resizes.empty());
  EXPECT_EQ(test.gpu->logical_devices().size(), 2u);
  ASSERT_TRUE(test.gpu->Resume().ok());
  EXPECT_TRUE(test.gpu->Resume().ok()) << "a repeated one does nothing";
  EXPECT_TRUE(AddN({tensor, tensor}).ok());
  EXPECT_TRUE(memory.Free(*memory.Allocate(1_MiB), nullptr).ok());
}

TEST(ContextSuspensionTest, TensorsThatGoMeanwhileDoNotComeBack) {
  TestContext test;
  const std::atomic<std::uint64_t>& used = test.page->devices[0].used;
  const Tensor stays = MakeTensor(*test.gpu, 1000);
  std::optional<Tensor> small = MakeTensor(*test.gpu, 1000);
  std::optional<Tensor> large = MakeTensor(*test.gpu, 4'000'000);
  ASSERT_TRUE(test.gpu->Suspend().ok());
  small.reset();
  large.reset();
  EXPECT_EQ(used.load(), 4096u) << "the ledger of the program has them no more";
  ASSERT_TRUE(test.gpu->Resume().ok());
  EXPECT_EQ(Must(test.gpu->GetMemoryStats("GPU:0")).held, 2_MiB);
  EXPECT_EQ(Must(stays.ToVector<float>()), SomeValues(1000));
}

TEST(ContextSuspensionTest, BlocksExportsAndStreamsOfTheProgramRefuse) {
  TestContext test;
  const Tensor tensor = MakeTensor(*test.gpu, 1000);
  const LogicalMemory memory = *test.gpu->Memory("GPU:1");
  int stream = 0;
  const Block block = *memory.Allocate(1_MiB, {.stream = &stream});
  const absl::Status blocks = test.gpu->Suspend();
  EXPECT_EQ(blocks.code(), kFailedPrecondition);
  EXPECT_TRUE(IsMemoryInUse(blocks));
  EXPECT_THAT(std::string(blocks.message()), HasSubstr("cannot be suspended: 1 block (1.00MiB)"));
  ASSERT_TRUE(memory.Free(block, &stream).ok());
  EXPECT_THAT(std::string(test.gpu->Suspend().message()), HasSubstr("1 stream of the program's own"));
  ASSERT_TRUE(memory.ForgetStream(&stream).ok());
  std::optional<TensorExport> lent = *tensor.Export({});
  EXPECT_THAT(std::string(test.gpu->Suspend().message()), HasSubstr("1 array (3.9KiB) still uses memory"));
  EXPECT_TRUE(AddN({tensor, tensor}).ok()) << "nothing has changed";
  lent.reset();
  ASSERT_TRUE(memory.Free(*memory.Allocate(1_MiB), nullptr).ok())
      << "the program does not own the default streams";
  EXPECT_TRUE(test.gpu->Suspend().ok());
}

TEST(ContextSuspensionTest, CloseEndsASuspendedContext) {
  TestContext test;
  const Tensor tensor = MakeTensor(*test.gpu, 1000);
  ASSERT_TRUE(test.gpu->Suspend().ok());
  EXPECT_TRUE(test.gpu->Close().ok());
  EXPECT_EQ(test.log->closes, 1);
  EXPECT_THAT(std::string(tensor.ToVector<float>().status().message()), HasSubstr("closed"));
  EXPECT_EQ(test.gpu->Resume().code(), kFailedPrecondition);
  EXPECT_EQ(test.gpu->Suspend().code(), kFailedPrecondition);
  EXPECT_TRUE(test.gpu->Close().ok());
}

TEST(ContextSuspensionTest, ASuspendedContextMayGoBeforeItsTensors) {
  auto test = std::make_optional<TestContext>();
  const Tensor tensor = MakeTensor(*test->gpu, 1000);
  ASSERT_TRUE(test->gpu->Suspend().ok());
  const auto log = test->log;
  test.reset();
  EXPECT_EQ(log->closes, 1);
  EXPECT_EQ(tensor.ToVector<float>().status().code(), kFailedPrecondition);
  TestContext moved;
  const Context other = std::move(*moved.gpu);
  EXPECT_EQ(moved.gpu->Suspend().code(), kFailedPrecondition);
  EXPECT_EQ(moved.gpu->Resume().code(), kFailedPrecondition);
}

// The sink runs on the thread that Suspend would wait for.
TEST(ContextSuspensionTest, ASinkCannotSuspend) {
  Context* context = nullptr;
  absl::Status inside;
  auto lease = std::make_unique<testing::FakeLease>(testing::FakeLeaseOptions(),
                                                    std::make_shared<testing::FakeLeaseLog>());
  auto made = internal::ContextMaker::Make(std::move(lease),
                                           {.log_device_placement = true, .log_sink = [&](std::string_view) {
                                              if (context != nullptr) inside = context->Suspend();
                                            }});
  ASSERT_TRUE(made.ok());
  context = &*made;
  EXPECT_TRUE(made->Constant<float>({1}).ok());
  EXPECT_EQ(inside.code(), kFailedPrecondition);
  EXPECT_THAT(std::string(inside.message()), HasSubstr("log_sink"));
  EXPECT_TRUE(made->Suspend().ok());
  EXPECT_TRUE(made->Resume().ok());
  context = nullptr;
}

TEST(ContextSuspensionTest, OtherThreadsComputeAndFreeMeanwhile) {
  for (const bool asynchronous : {false, true}) {
    TestContext test({.asynchronous = asynchronous});
    const Tensor tensor = MakeTensor(*test.gpu, 5000);
    std::vector<float> twice = SomeValues(5000);
    for (float& value : twice) value *= 2;
    std::atomic<bool> done{false};
    std::atomic<int> computed{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; ++i) {
      threads.emplace_back([&] {
        std::vector<Tensor> made;
        while (!done.load()) {
          const absl::StatusOr<Tensor> sum = AddN({tensor, tensor});
          if (!sum.ok()) {
            EXPECT_EQ(sum.status().code(), kFailedPrecondition) << sum.status();
            made.clear();  // while the Context is suspended, often
            continue;
          }
          made.push_back(*sum);
          if (made.size() > 20) made.erase(made.begin());
          const absl::StatusOr<std::vector<float>> values = made.front().ToVector<float>();
          if (values.ok()) {
            EXPECT_EQ(*values, twice);
            computed.fetch_add(1);
          }
        }
      });
    }
    for (int round = 0; round < 20; ++round) {
      EXPECT_TRUE(test.gpu->Suspend().ok());
      EXPECT_TRUE(test.gpu->Resume().ok());
      const int before = computed.load();
      while (computed.load() == before) std::this_thread::yield();
    }
    done.store(true);
    for (std::thread& thread : threads) thread.join();
    EXPECT_TRUE(test.gpu->Close().ok());
  }
}

TEST(ContextSuspensionTest, AForkedChildHasNothingToResume) {
  if (testing::kThreadSanitizer) GTEST_SKIP() << testing::kForkBesideThreads;
  TestContext test;
  const Tensor tensor = MakeTensor(*test.gpu, 1000);
  ASSERT_TRUE(test.gpu->Suspend().ok());
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::_exit(test.gpu->Resume().code() == kFailedPrecondition &&
                    test.gpu->Suspend().code() == kFailedPrecondition
                ? 0
                : 1);
  }
  int state = -1;
  ASSERT_EQ(::waitpid(child, &state, 0), child);
  EXPECT_EQ(state, 0);
  EXPECT_TRUE(test.gpu->Resume().ok());
  EXPECT_EQ(Must(tensor.ToVector<float>()), SomeValues(1000));
}

}  // namespace
}  // namespace lgpu
