#include "allocator/device/backend_fences.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>

#include "allocator/device/simulated/simulated_backend.h"

namespace lgpu {
namespace {

class BackendFencesTest : public ::testing::Test {
 protected:
  StreamHandle MakeStream() { return *backend_->CreateStream(0, 0); }

  const std::unique_ptr<DeviceBackend> backend_ = MakeSimulatedBackend(
      {.devices = {SimulatedDevice(0, 1_GiB, "test")}, .sparse = true, .asynchronous = true});
  BackendFences fences_{*backend_};
};

TEST_F(BackendFencesTest, FencesOfARemovedStreamHavePassed) {
  const StreamHandle first = MakeStream();
  ASSERT_EQ(*fences_.Add(first), 0u);
  const std::uint64_t value = *fences_.Record(0);
  ASSERT_TRUE(fences_.Remove(0).ok());
  EXPECT_TRUE(*fences_.HasPassed(0, value));
  EXPECT_TRUE(*fences_.HasPassed(0, *fences_.Record(0))) << "a number without a stream";
  ASSERT_EQ(*fences_.Add(MakeStream()), 0u);
  EXPECT_TRUE(*fences_.HasPassed(0, value));
  EXPECT_TRUE(fences_.Wait(0, value).ok());
  EXPECT_GT(*fences_.Record(0), value);
  EXPECT_TRUE(backend_->DestroyStream(first).ok());
}

// Every second stream records nothing before it loses the number, unless the other thread records for it.
TEST_F(BackendFencesTest, StreamsMayChangeWhileAnotherThreadRecordsForTheirNumber) {
  StreamHandle stream = MakeStream();
  ASSERT_EQ(*fences_.Add(stream), 0u);
  std::atomic<bool> done{false};
  std::thread recorder([&] {
    while (!done) {
      const absl::StatusOr<std::uint64_t> value = fences_.Record(0);
      ASSERT_TRUE(value.ok()) << value.status();
      const absl::StatusOr<bool> passed = fences_.HasPassed(0, *value);
      ASSERT_TRUE(passed.ok()) << passed.status();
      const absl::Status waited = fences_.Wait(0, *value);
      ASSERT_TRUE(waited.ok()) << waited;
    }
  });
  for (int i = 0; i < 5000; ++i) {
    EXPECT_TRUE(fences_.Remove(0).ok());
    EXPECT_TRUE(backend_->DestroyStream(stream).ok());
    stream = MakeStream();
    EXPECT_EQ(*fences_.Add(stream), 0u);
    if (i % 2 == 0) std::this_thread::yield();
  }
  done = true;
  recorder.join();
}

}  // namespace
}  // namespace lgpu
