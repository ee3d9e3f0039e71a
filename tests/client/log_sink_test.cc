#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "tests/client/context_testing.h"

namespace lgpu {
namespace {

using ::testing::HasSubstr;
using testing::Must;

/// A Context that logs each op, and calls `on_line` with the line.
struct LoggingContext {
  LoggingContext() {
    ContextOptions options;
    options.log_device_placement = true;
    options.log_sink = [this](std::string_view line) {
      if (on_line) on_line(line);
    };
    gpu = std::make_unique<Context>(*internal::ContextMaker::Make(
        std::make_unique<testing::FakeLease>(testing::FakeLeaseOptions(), log), options));
  }
  /// What the next line does, and no later one.
  void Once(std::function<void()> what) {
    on_line = [this, what = std::move(what)](std::string_view) {
      const std::function<void()> now = what;
      on_line = nullptr;  // this very function ends here
      now();
    };
  }
  std::shared_ptr<testing::FakeLeaseLog> log = std::make_shared<testing::FakeLeaseLog>();
  std::function<void(std::string_view)> on_line;
  std::unique_ptr<Context> gpu;
};

TEST(LogSinkTest, LetsItsContextGoWhichEndsAfterTheOp) {
  LoggingContext test;
  const Tensor tensor = Must(test.gpu->Constant<float>({1, 2}));
  test.Once([&test] {
    test.gpu.reset();
    EXPECT_EQ(test.log->closes, 0) << "the op is under way";
  });
  EXPECT_TRUE(Add(tensor, tensor).ok());
  EXPECT_EQ(test.log->closes, 1);
  EXPECT_TRUE(absl::IsFailedPrecondition(tensor.ToVector<float>().status()));
  EXPECT_TRUE(absl::IsFailedPrecondition(Add(tensor, tensor).status()));
  EXPECT_EQ(test.log->closes, 1);
}

TEST(LogSinkTest, LetsTheContextGoWhoseConstantIsMade) {
  LoggingContext test;
  test.Once([&test] { test.gpu.reset(); });
  EXPECT_TRUE(test.gpu->Constant<float>({1, 2}).ok());
  EXPECT_EQ(test.log->closes, 1);
}

TEST(LogSinkTest, LetsAnotherContextGoWhichEndsAtOnce) {
  LoggingContext test;
  LoggingContext other;
  const Tensor of_other = Must(other.gpu->Constant<float>({1, 2}));
  test.Once([&other] {
    other.gpu.reset();
    EXPECT_EQ(other.log->closes, 1);
  });
  EXPECT_TRUE(test.gpu->Constant<float>({1, 2}).ok());
  EXPECT_EQ(test.log->closes, 0);
  EXPECT_TRUE(test.gpu->Close().ok());
}

TEST(LogSinkTest, CannotCloseAContext) {
  LoggingContext test;
  test.Once([&test] {
    const absl::Status refused = test.gpu->Close();
    EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("a log_sink runs within an op"));
  });
  EXPECT_TRUE(test.gpu->Constant<float>({1, 2}).ok());
  EXPECT_EQ(test.log->closes, 0);
  EXPECT_TRUE(test.gpu->Close().ok());
}

TEST(LogSinkTest, LetsContextAndLastExportGo) {
  LoggingContext test;
  const Tensor tensor = Must(test.gpu->Constant<float>({1, 2}));
  TensorExport lent = Must(tensor.Export());
  test.Once([&] {
    test.gpu.reset();
    lent = TensorExport();
  });
  EXPECT_TRUE(Add(tensor, tensor).ok());
  EXPECT_EQ(test.log->closes, 1);
}

TEST(LogSinkTest, AContextThatItLetsGoStaysForItsExports) {
  LoggingContext test;
  const Tensor tensor = Must(test.gpu->Constant<float>({1, 2}));
  TensorExport lent = Must(tensor.Export());
  test.Once([&test] { test.gpu.reset(); });
  EXPECT_TRUE(Add(tensor, tensor).ok());
  EXPECT_EQ(test.log->closes, 0);
  EXPECT_EQ(*static_cast<const float*>(lent.data()), 1);
  lent = TensorExport();
  EXPECT_EQ(test.log->closes, 1);
}

TEST(LogSinkTest, OpsOfOtherThreadsEndFirst) {
  LoggingContext test;
  const Tensor tensor = Must(test.gpu->Constant<float>({1, 2}));
  std::atomic<bool> inside{false};
  std::atomic<bool> leave{false};
  test.Once([&] {
    inside.store(true);
    while (!leave.load()) std::this_thread::yield();
  });
  std::thread other([&tensor] { EXPECT_TRUE(Add(tensor, tensor).ok()); });
  while (!inside.load()) std::this_thread::yield();
  test.Once([&test] { test.gpu.reset(); });
  EXPECT_TRUE(Add(tensor, tensor).ok());
  EXPECT_EQ(test.log->closes, 0) << "the other thread's op is under way";
  leave.store(true);
  other.join();
  EXPECT_EQ(test.log->closes, 1);
}

}  // namespace
}  // namespace lgpu
