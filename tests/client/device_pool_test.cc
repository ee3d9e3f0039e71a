#include "client/session/device_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>
#include <vector>

#include "allocator/device/simulated/simulated_backend.h"
#include "client/session/memory_session.h"
#include "tests/client/fake_lease.h"
#include "tests/support/child_program.h"
#include "tests/support/fake_region_source.h"
#include "tests/support/sanitizers.h"

namespace lgpu {
namespace {

using testing::Eventually;
using testing::FakeLease;
using testing::FakeLeaseLog;

/// The memory of a device of 64 MiB whose streams a test holds up.
class DevicePoolTest : public ::testing::Test {
 protected:
  DevicePoolTest() {
    auto source = FakeRegionSource::Make(*backend_, {.limit = 64_MiB, .upstream = upstream_});
    EXPECT_TRUE(source.ok()) << source.status();
    memory_ = std::make_unique<DevicePool>(
        *std::move(source), *backend_,
        DevicePool::Options{.device = "/device:GPU:0", .lease = "job", .counters = &counters_});
  }
  ~DevicePoolTest() override { gate_ = true; }

  StreamId AddStream() {
    streams_.push_back(*backend_->CreateStream(0, 0));
    const absl::StatusOr<StreamId> id = memory_->AddStream(streams_.back());
    EXPECT_TRUE(id.ok()) << id.status();
    return id.value_or(kMaxStreams);
  }
  Block Must(Bytes bytes, StreamId stream = 0) {
    const absl::StatusOr<Block> block = memory_->Allocate(bytes, {.stream = stream});
    EXPECT_TRUE(block.ok()) << block.status();
    return block.value_or(Block());
  }
  /// Work on a stream that ends when the gate opens.
  void HoldUp(StreamHandle stream) {
    const std::atomic<bool>* const gate = &gate_;
    KernelLaunch launch;
    launch.host_function = [](const void* data) {
      while (!**static_cast<const std::atomic<bool>* const*>(data)) std::this_thread::yield();
    };
    launch.arguments = &gate;
    launch.argument_bytes = sizeof(gate);
    EXPECT_TRUE(backend_->Launch(stream, launch).ok());
  }

  std::atomic<bool> gate_{false};
  ClientPage::Device counters_{};
  std::shared_ptr<FakeUpstream> upstream_ = std::make_shared<FakeUpstream>();
  std::unique_ptr<DeviceBackend> backend_ = MakeSimulatedBackend(
      {.devices = {SimulatedDevice(0, 1_GiB, "test")}, .sparse = true, .asynchronous = true});
  std::vector<StreamHandle> streams_;
  std::unique_ptr<DevicePool> memory_;
};

TEST_F(DevicePoolTest, CountersFollowEveryAllocationAndFree) {
  AddStream();
  const Block a = Must(3_MiB);
  const Block b = Must(Bytes(1000));
  EXPECT_EQ(counters_.used, (a.bytes + b.bytes).count());
  EXPECT_EQ(counters_.requested, (3_MiB).count() + 1000);
  EXPECT_EQ(counters_.live_blocks, 2u);
  ASSERT_TRUE(memory_->Free(a, 3_MiB).ok());
  EXPECT_EQ(counters_.used, b.bytes.count());
  EXPECT_EQ(counters_.peak_used, (a.bytes + b.bytes).count());
  EXPECT_EQ(memory_->largest_allocation(), a.bytes);
  EXPECT_EQ(memory_->allocations(), 2u);
  EXPECT_TRUE(absl::IsResourceExhausted(memory_->Allocate(1_GiB).status()));
  EXPECT_EQ(counters_.refusals, 1u);
  memory_->ResetStats();
  EXPECT_EQ(counters_.peak_used, b.bytes.count());
  EXPECT_EQ(memory_->allocations(), 0u);
  EXPECT_EQ(memory_->largest_allocation(), Bytes());
  ASSERT_TRUE(memory_->Free(b, Bytes(1000)).ok());
  EXPECT_EQ(counters_.requested, 0u);
  EXPECT_EQ(counters_.allocations, 2u);
}

TEST_F(DevicePoolTest, FreeingABlockTwiceIsRefusedAndCountsNothing) {
  AddStream();
  const Block a = Must(2_MiB);
  const Block b = Must(2_MiB);
  ASSERT_TRUE(memory_->Free(a, 2_MiB).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(memory_->Free(a, 2_MiB)));
  EXPECT_EQ(counters_.used, b.bytes.count());
  EXPECT_EQ(counters_.live_blocks, 1u);
  EXPECT_EQ(counters_.requested, (2_MiB).count());
}

TEST_F(DevicePoolTest, MemoryThatAnotherStreamUsesIsHandedOutWhenItsWorkIsDone) {
  AddStream();
  const StreamId other = AddStream();
  const Block block = Must(64_MiB);
  HoldUp(streams_[other]);
  ASSERT_TRUE(memory_->UseOn(block, other).ok());
  ASSERT_TRUE(memory_->Free(block, 64_MiB).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(memory_->Allocate(64_MiB, {.spare_only = true}).status()));
  std::thread opener([&] { gate_ = true; });
  const Block again = Must(64_MiB);
  EXPECT_TRUE(gate_);
  opener.join();
  EXPECT_TRUE(memory_->Free(again, 64_MiB).ok());
}

TEST_F(DevicePoolTest, EveryStreamNumberCanBeUsedAndUsedAgain) {
  for (StreamId i = 0; i < kMaxStreams; ++i) EXPECT_EQ(AddStream(), i);
  const StreamHandle last = *backend_->CreateStream(0, 0);
  EXPECT_TRUE(absl::IsResourceExhausted(memory_->AddStream(last).status()));
  for (int i = 0; i < 100; ++i) {
    const Block block = Must(1_MiB, 7);
    ASSERT_TRUE(memory_->RemoveStream(7).ok());
    ASSERT_TRUE(backend_->DestroyStream(streams_[7]).ok());
    streams_[7] = *backend_->CreateStream(0, 0);
    EXPECT_EQ(*memory_->AddStream(streams_[7]), 7u);
    ASSERT_TRUE(memory_->Free(block, 1_MiB).ok()) << "a block of an earlier stream of the number";
  }
  EXPECT_TRUE(absl::IsInvalidArgument(memory_->RemoveStream(kMaxStreams)));
  ASSERT_TRUE(memory_->RemoveStream(7).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(memory_->RemoveStream(7)));
  EXPECT_TRUE(memory_->Trim().ok());
  EXPECT_EQ(upstream_->granted, 0u);
  EXPECT_TRUE(backend_->DestroyStream(last).ok());
}

TEST_F(DevicePoolTest, MemoryOfARemovedStreamServesOtherStreams) {
  AddStream();
  const StreamId gone = AddStream();
  const Block block = Must(64_MiB, gone);
  ASSERT_TRUE(memory_->UseOn(block, 0).ok());
  ASSERT_TRUE(memory_->RemoveStream(gone).ok());
  ASSERT_TRUE(backend_->DestroyStream(streams_[gone]).ok());
  ASSERT_TRUE(memory_->Free(block, 64_MiB).ok());
  EXPECT_TRUE(memory_->Free(Must(64_MiB), 64_MiB).ok());
}

TEST_F(DevicePoolTest, RemovingAStreamWaitsForItsWork) {
  AddStream();
  const StreamId busy = AddStream();
  HoldUp(streams_[busy]);
  std::atomic<bool> removed{false};
  std::thread remover([&] {
    EXPECT_TRUE(memory_->RemoveStream(busy).ok());
    removed = true;
  });
  EXPECT_FALSE(removed);
  gate_ = true;
  remover.join();
}

TEST_F(DevicePoolTest, TrimReturnsChunksThatNoBlockTouches) {
  AddStream();
  const Block kept = Must(2_MiB);
  const Block freed = Must(32_MiB);
  ASSERT_TRUE(memory_->Free(freed, 32_MiB).ok());
  EXPECT_GE(*memory_->Trim(), 32_MiB);
  EXPECT_EQ(memory_->stats().held, 2_MiB);
  ASSERT_TRUE(memory_->Free(kept, 2_MiB).ok());
  memory_->Close();
  EXPECT_EQ(upstream_->granted, 0u);
}

/// Two devices of a lease, with their upkeep.
class MemorySessionDevicesTest : public ::testing::Test {
 protected:
  DevicePool& memory(int i = 0) { return session_->memory(i); }
  void TellToTrim(const TrimOrder& order) {
    {
      const std::lock_guard lock(log_->mutex);
      log_->trims.push_back(order);
    }
    session_->lease().WakeMaintenance();
  }
  std::vector<FakeLeaseLog::Answer> Answers() {
    const std::lock_guard lock(log_->mutex);
    return log_->answers;
  }

  std::shared_ptr<FakeLeaseLog> log_ = std::make_shared<FakeLeaseLog>();
  std::unique_ptr<MemorySession> session_ =
      std::make_unique<MemorySession>(std::make_unique<FakeLease>(testing::FakeLeaseOptions{}, log_));
};

TEST_F(MemorySessionDevicesTest, TrimsAreAnsweredByTheirDevice) {
  session_->StartUpkeep();
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(*memory(i).AddStream(*session_->lease().backend().CreateStream(0, 0)), 0u);
    const absl::StatusOr<Block> block = memory(i).Allocate(32_MiB);
    ASSERT_TRUE(block.ok()) << block.status();
    ASSERT_TRUE(memory(i).Free(*block, 32_MiB).ok());
  }
  TellToTrim({.id = TrimId{9}, .device = session_->lease().devices()[1].id, .bytes = 32_MiB});
  ASSERT_TRUE(Eventually([&] { return Answers().size() == 1; }));
  EXPECT_EQ(Answers()[0].id, TrimId{9});
  EXPECT_FALSE(Answers()[0].pending);
  EXPECT_LT(memory(1).stats().held, 32_MiB);
  EXPECT_TRUE(session_->Close().ok());
}

TEST_F(MemorySessionDevicesTest, UpkeepCallsTheOwnersTask) {
  std::atomic<int> calls{0};
  session_->StartUpkeep([&calls](Maintenance::TimePoint now) {
    ++calls;
    return std::optional(now + std::chrono::milliseconds(1));
  });
  EXPECT_TRUE(Eventually([&] { return calls >= 3; }));
  session_->StopUpkeep();
  const int last = calls;
  session_->lease().WakeMaintenance();
  EXPECT_EQ(calls, last);
}

TEST_F(MemorySessionDevicesTest, CloseThatFoundNoDaemonIsRepeatable) {
  log_->close_status = absl::UnavailableError("lgpud is gone");
  EXPECT_TRUE(absl::IsUnavailable(session_->Close()));
  EXPECT_TRUE(session_->Close().ok());
  session_.reset();
  EXPECT_EQ(log_->closes, 2);
}

TEST_F(MemorySessionDevicesTest, DestructorClosesTheLease) {
  session_.reset();
  EXPECT_EQ(log_->closes, 1);
}

TEST_F(MemorySessionDevicesTest, AForkedChildForgetsAndTheParentGoesOn) {
  if (testing::kThreadSanitizer) GTEST_SKIP() << testing::kForkBesideThreads;
  session_->StartUpkeep();
  const absl::StatusOr<Block> block = memory().Allocate(2_MiB);
  ASSERT_TRUE(block.ok());
  const pid_t child = ::fork();
  if (child == 0) {
    const bool dead = !memory().Allocate(2_MiB).ok();
    session_.reset();
    ::_exit(dead && log_->closes == 0 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(memory().Free(*block, 2_MiB).ok());
  EXPECT_TRUE(session_->Close().ok());
}

}  // namespace
}  // namespace lgpu
