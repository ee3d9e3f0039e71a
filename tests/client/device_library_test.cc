// A Device gives a library its workspace in the order of the stream.

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "allocator/device/simulated/simulated_backend.h"
#include "client/runtime/device.h"
#include "tests/support/failing_backend.h"
#include "tests/support/fake_region_source.h"

namespace lgpu::internal {
namespace {

class NoLibrary final : public MatMulLibrary {
 public:
  explicit NoLibrary(bool& closed) : closed_(closed) {}
  ~NoLibrary() override { closed_ = !abandoned_; }
  absl::Status Open(const LibraryCall&, std::span<std::byte>) override { return absl::OkStatus(); }
  absl::Status MatMul(const MatMulProblem&, const LibraryCall&) override { return absl::OkStatus(); }

  void Abandon() override { abandoned_ = true; }

 private:
  bool& closed_;
  bool abandoned_ = false;
};

class DeviceLibraryTest : public ::testing::Test {
 protected:
  void Open(Bytes limit) {
    upstream_ = std::make_shared<FakeUpstream>();
    auto source = FakeRegionSource::Make(backend_, {.limit = limit, .upstream = upstream_});
    ASSERT_TRUE(source.ok()) << source.status();
    Device::GpuParts parts;
    parts.backend = &backend_;
    memory_ =
        std::make_unique<DevicePool>(*std::move(source), backend_,
                                     DevicePool::Options{.device = "/device:GPU:0", .lends_workspace = true});
    parts.memory = memory_.get();
    parts.matmul = std::make_shared<NoLibrary>(closed_);
    device_ = *Device::Open(std::move(parts));
  }
  /// A call that queues work with a workspace; nothing: it got none.
  std::optional<absl::Status> Multiply(Bytes at_least,
                                       absl::FunctionRef<absl::Status(std::span<std::byte>)> queue) {
    std::optional<absl::Status> queued;
    EXPECT_TRUE(device_
                    ->CallLibrary([&](const LibraryCall& call) {
                      queued = call.with_workspace(at_least.count(), queue);
                      return absl::OkStatus();
                    })
                    .ok());
    return queued;
  }
  Bytes Held() const { return device_->memory().stats().workspace; }

  bool closed_ = false;
  std::function<void()> before_library_counts_ = [] {};
  FailingBackend backend_{
      MakeSimulatedBackend({.devices = {SimulatedDevice(0, 1_GiB, "test")}, .sparse = true}),
      {.before_library_counts = [this] { before_library_counts_(); }}};
  std::shared_ptr<FakeUpstream> upstream_;
  std::unique_ptr<DevicePool> memory_;
  std::unique_ptr<Device> device_;
};

TEST_F(DeviceLibraryTest, CallsThatUseTheWorkspaceExcludeEachOther) {
  Open(64_MiB);
  std::atomic<int> inside{0};
  std::atomic<int> mixed{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 300; ++round) {
        const auto queued = Multiply(1_MiB, [&](std::span<std::byte> workspace) {
          EXPECT_EQ(workspace.size(), (8_MiB).count());
          if (++inside != 1) ++mixed;
          std::this_thread::yield();
          --inside;
          return absl::OkStatus();
        });
        EXPECT_TRUE(queued.has_value());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(mixed, 0);
}

TEST_F(DeviceLibraryTest, WorkspaceIsThePoolsAgainOnlyAfterItsWorkIsCounted) {
  Open(64_MiB);
  Bytes held;
  before_library_counts_ = [&] {
    ASSERT_TRUE(device_->memory().TrimFor(1_GiB).ok());
    held = Held();
  };
  ASSERT_TRUE(Multiply(1_MiB, [](std::span<std::byte>) { return absl::OkStatus(); }).has_value());
  before_library_counts_ = [] {};  // the device makes another call when it ends
  EXPECT_EQ(held, 8_MiB) << "the trim came before the work was counted";
  EXPECT_EQ(Held(), Bytes());
}

TEST_F(DeviceLibraryTest, LimitThatIsLoweredMeanwhileGivesNoSmallerWorkspace) {
  Open(256_MiB);
  const absl::Status status = device_->CallLibrary([&](const LibraryCall& call) {
    EXPECT_EQ(call.workspace_bytes, (32_MiB).count());
    upstream_->limit = (64_MiB).count();
    const auto queued = call.with_workspace((20_MiB).count(), [](std::span<std::byte>) {
      ADD_FAILURE() << "there is not so much";
      return absl::OkStatus();
    });
    EXPECT_FALSE(queued.has_value());
    return absl::OkStatus();
  });
  EXPECT_TRUE(status.ok());
}

TEST_F(DeviceLibraryTest, TensorsGetTheWorkspacesMemoryWithoutARefusal) {
  Open(16_MiB);
  ASSERT_TRUE(Multiply(1_MiB, [](std::span<std::byte>) { return absl::OkStatus(); }).has_value());
  EXPECT_EQ(Held(), 2_MiB);
  const auto block = device_->Allocate(16_MiB, "Fill", {}, Device::FilledBy::kKernel);
  ASSERT_TRUE(block.ok()) << block.status();
  EXPECT_EQ(Held(), Bytes());
  EXPECT_EQ(device_->memory().stats().num_refusals, 0u);
  EXPECT_EQ(upstream_->waits, 0u);
  device_->Free(*block, 16_MiB);
}

TEST_F(DeviceLibraryTest, TensorsWaitForAWorkspaceThatIsInUse) {
  Open(16_MiB);
  std::atomic<bool> taken{false};
  std::atomic<bool> tried{false};
  std::thread product([&] {
    const auto queued = Multiply(1_MiB, [&](std::span<std::byte>) {
      taken = true;
      while (!tried) std::this_thread::yield();
      for (int i = 0; i < 1000; ++i) std::this_thread::yield();
      return absl::OkStatus();
    });
    EXPECT_TRUE(queued.has_value());
  });
  while (!taken) std::this_thread::yield();
  tried = true;
  const auto block = device_->Allocate(16_MiB, "Fill", {}, Device::FilledBy::kKernel);
  product.join();
  ASSERT_TRUE(block.ok()) << block.status();
  device_->Free(*block, 16_MiB);
}

TEST_F(DeviceLibraryTest, LibraryThatCannotBeClosedInItsContextIsLeftOpen) {
  Open(16_MiB);
  backend_.faults().FailFrom(1);
  EXPECT_FALSE(device_->Shutdown().ok());
  device_.reset();
  EXPECT_FALSE(closed_);
  backend_.faults().Heal();
  Open(16_MiB);
  EXPECT_TRUE(device_->Shutdown().ok());
  EXPECT_TRUE(closed_);
}

}  // namespace
}  // namespace lgpu::internal
