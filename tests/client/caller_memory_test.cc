#include "client/session/caller_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "allocator/device/simulated/simulated_backend.h"
#include "lgpu/refusal.h"
#include "tests/support/child_program.h"
#include "tests/support/fake_region_source.h"

namespace lgpu {
namespace {

using testing::Eventually;
using ::testing::HasSubstr;

/// The memory of a device of 64 MiB for callers whose streams a test holds up.
class CallerMemoryTest : public ::testing::Test {
 protected:
  CallerMemoryTest() {
    auto source = FakeRegionSource::Make(*backend_, {.limit = 64_MiB, .upstream = upstream_});
    EXPECT_TRUE(source.ok()) << source.status();
    pool_ = std::make_unique<DevicePool>(*std::move(source), *backend_,
                                         DevicePool::Options{.device = "/device:GPU:0", .lease = "job"});
    memory_ = std::make_unique<CallerMemory>(*pool_, *backend_, 0, CallerMemory::PoolUse::kAlone);
  }
  ~CallerMemoryTest() override {
    gate_ = true;
    EXPECT_TRUE(memory_->RemoveStreams().ok());
  }

  void* MakeStream() {
    handles_.push_back(*backend_->CreateStream(0, 0));
    return reinterpret_cast<void*>(handles_.back().value);
  }
  /// Work on a stream that ends when the gate opens.
  void HoldUp(void* stream) {
    const std::atomic<bool>* const gate = &gate_;
    KernelLaunch launch;
    launch.host_function = [](const void* data) {
      while (!**static_cast<const std::atomic<bool>* const*>(data)) std::this_thread::yield();
    };
    launch.arguments = &gate;
    launch.argument_bytes = sizeof(gate);
    EXPECT_TRUE(backend_->Launch(StreamHandle{reinterpret_cast<std::uintptr_t>(stream)}, launch).ok());
  }
  Block Must(Bytes bytes, void* stream) {
    const absl::StatusOr<Block> block = memory_->Allocate(bytes, {.stream = stream});
    EXPECT_TRUE(block.ok()) << block.status();
    return block.value_or(Block());
  }

  std::atomic<bool> gate_{false};
  std::shared_ptr<FakeUpstream> upstream_ = std::make_shared<FakeUpstream>();
  std::unique_ptr<DeviceBackend> backend_ = MakeSimulatedBackend(
      {.devices = {SimulatedDevice(0, 1_GiB, "test")}, .sparse = true, .asynchronous = true});
  std::vector<StreamHandle> handles_;
  std::unique_ptr<DevicePool> pool_;
  std::unique_ptr<CallerMemory> memory_;
};

TEST_F(CallerMemoryTest, FreedBlockIsItsOwnStreamsAtOnceAndAnotherStreamsAfterItsWork) {
  for (const bool first_is_freed : {true, false}) {
    gate_ = false;
    void* const first = MakeStream();
    void* const second = MakeStream();
    ASSERT_TRUE(memory_->Free(Must(Bytes(256), first), first).ok())
        << "the first stream of a pool is its home";
    void* const one = first_is_freed ? first : second;
    void* const other = first_is_freed ? second : first;
    const Block block = Must(40_MiB, one);
    HoldUp(one);
    ASSERT_TRUE(memory_->Free(block, one).ok());
    const Block again = Must(40_MiB, one);
    EXPECT_EQ(again.address, block.address);
    ASSERT_TRUE(memory_->Free(again, one).ok());

    std::atomic<bool> has_it = false;
    std::thread waits([&] {
      const Block theirs = Must(40_MiB, other);
      // On the home stream's memory the other stream waits on the device: its work is behind the first one's.
      EXPECT_TRUE(first_is_freed || gate_) << "the memory was handed out while work with it was queued";
      has_it = true;
      EXPECT_TRUE(memory_->Free(theirs, other).ok());
    });
    EXPECT_TRUE(first_is_freed || !has_it);
    gate_ = true;
    waits.join();
    EXPECT_TRUE(memory_->ForgetStream(first).ok());
    EXPECT_TRUE(memory_->ForgetStream(second).ok());
  }
}

TEST_F(CallerMemoryTest, UseOnKeepsABlockFromItsOwnStreamUntilTheOtherIsDone) {
  void* const own = MakeStream();
  void* const other = MakeStream();
  const Block block = Must(8_MiB, own);
  HoldUp(other);
  ASSERT_TRUE(memory_->UseOn(block, other).ok());
  ASSERT_TRUE(memory_->Free(block, own).ok());
  EXPECT_NE(Must(8_MiB, own).address, block.address);
  EXPECT_EQ(pool_->stats().fenced, 8_MiB);
  gate_ = true;
  EXPECT_TRUE(Eventually([&] {
    const Block next = Must(8_MiB, own);
    EXPECT_TRUE(memory_->Free(next, own).ok());
    pool_->Maintain(std::chrono::steady_clock::now());
    return pool_->stats().fenced.is_zero();
  }));
}

TEST_F(CallerMemoryTest, BlockThatIsFreedOnAnotherStreamWaitsForThatStream) {
  void* const own = MakeStream();
  void* const other = MakeStream();
  const Block block = Must(8_MiB, own);
  HoldUp(other);
  ASSERT_TRUE(memory_->Free(block, other).ok());
  EXPECT_NE(Must(8_MiB, own).address, block.address);
  EXPECT_EQ(pool_->stats().fenced, 8_MiB);
  gate_ = true;
}

TEST_F(CallerMemoryTest, ForgetStreamWaitsForItsWork) {
  void* const stream = MakeStream();
  const Block block = Must(8_MiB, stream);
  HoldUp(stream);
  std::atomic<bool> forgotten = false;
  std::thread forgets([&] {
    EXPECT_TRUE(memory_->ForgetStream(stream).ok());
    EXPECT_TRUE(gate_);
    forgotten = true;
  });
  EXPECT_FALSE(forgotten);
  gate_ = true;
  forgets.join();
  EXPECT_TRUE(memory_->Free(block, stream).ok()) << "it is known again";
  EXPECT_TRUE(memory_->ForgetStream(MakeStream()).ok()) << "a stream that was never used";
}

TEST_F(CallerMemoryTest, ThereMayBeMoreStreamsThanNumbers) {
  std::vector<Block> blocks;
  std::vector<void*> streams;
  for (std::size_t i = 0; i < 3 * kMaxStreams; ++i) {
    streams.push_back(reinterpret_cast<void*>(0x10000 + 16 * i));
    blocks.push_back(Must(Bytes(4096), streams.back()));
  }
  EXPECT_EQ(memory_->live().blocks, streams.size());
  for (std::size_t i = 0; i < streams.size(); ++i) ASSERT_TRUE(memory_->Free(blocks[i], streams[i]).ok());
  EXPECT_EQ(memory_->live().blocks, 0u);
  EXPECT_LE(memory_->Streams().size(), kMaxStreams);
}

TEST_F(CallerMemoryTest, DefaultStreamOfEachThreadIsAStreamOfItsOwn) {
  void* const per_thread = reinterpret_cast<void*>(2);
  Must(Bytes(256), per_thread);
  Must(Bytes(256), per_thread);
  EXPECT_EQ(memory_->Streams().size(), 1u);
  std::thread([&] { Must(Bytes(256), per_thread); }).join();
  EXPECT_EQ(memory_->Streams().size(), 2u);
  Must(Bytes(256), nullptr);
  Must(Bytes(256), reinterpret_cast<void*>(1));
  EXPECT_EQ(memory_->Streams().size(), 3u) << "null and 1 are one stream";
}

TEST_F(CallerMemoryTest, ExportedBlockIsFreedByItsOwnerAlone) {
  const Block block = Must(4_MiB, nullptr);
  ASSERT_TRUE(memory_->Export(block, nullptr).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(memory_->Export(block, nullptr)));
  EXPECT_TRUE(absl::IsFailedPrecondition(memory_->Free(block, nullptr)));
  EXPECT_EQ(memory_->live().exported, 1u);
  EXPECT_THAT(std::string(memory_->CheckNoneLive().message()),
              HasSubstr("1 block (4.00MiB) of this memory is still in use, 1 of them exported"));
  memory_->FreeExported(block);
  EXPECT_TRUE(memory_->CheckNoneLive().ok());
  EXPECT_TRUE(absl::IsInvalidArgument(memory_->Export(block, nullptr))) << "it was freed";
}

TEST_F(CallerMemoryTest, ExportedBlockWaitsForItsStreamUntilThatIsForgotten) {
  void* const own = MakeStream();
  void* const other = MakeStream();
  const Block kept = Must(8_MiB, own);
  const Block forgotten = Must(8_MiB, own);
  ASSERT_TRUE(memory_->Export(kept, other).ok());
  ASSERT_TRUE(memory_->ForgetStream(other).ok());
  HoldUp(other);
  memory_->FreeExported(kept);
  EXPECT_EQ(pool_->stats().fenced, Bytes()) << "a stream that was forgotten may be destroyed";
  ASSERT_TRUE(memory_->Export(forgotten, other).ok());
  memory_->FreeExported(forgotten);
  EXPECT_EQ(pool_->stats().fenced, 8_MiB);
  gate_ = true;
}

TEST_F(CallerMemoryTest, ForgottenStreamIsNotUsedByAnExportThatEndsMeanwhile) {
  void* const own = MakeStream();
  void* const other = MakeStream();
  const Block block = Must(8_MiB, own);
  ASSERT_TRUE(memory_->Free(Must(1_MiB, other), other).ok());  // it is known
  ASSERT_TRUE(memory_->Export(block, other).ok());
  HoldUp(other);
  std::thread forgets([&] { EXPECT_TRUE(memory_->ForgetStream(other).ok()); });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // it waits for the stream by now
  std::thread ends([&] { memory_->FreeExported(block); });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  gate_ = true;
  forgets.join();
  ends.join();
  EXPECT_THAT(memory_->Streams(), ::testing::Not(::testing::Contains(other)));
  EXPECT_EQ(memory_->live().blocks, 0u);
}

TEST_F(CallerMemoryTest, ThreadsForgetStreamsWhileExportsEnd) {
  for (std::size_t i = 0; i < 300; ++i) {
    void* const other = reinterpret_cast<void*>(0x10000 + 16 * i);
    const Block block = Must(Bytes(4096), nullptr);
    ASSERT_TRUE(memory_->Export(block, other).ok());
    std::thread ends([&] { memory_->FreeExported(block); });
    EXPECT_TRUE(memory_->ForgetStream(other).ok());
    ends.join();
    ASSERT_THAT(memory_->Streams(), ::testing::Not(::testing::Contains(other))) << "round " << i;
  }
}

TEST_F(CallerMemoryTest, ExportOnTheThreadsDefaultStreamMayEndInAnotherThread) {
  void* const per_thread = reinterpret_cast<void*>(2);
  const Block block = Must(8_MiB, per_thread);
  ASSERT_TRUE(memory_->Export(block, per_thread).ok());
  std::thread([&] { memory_->FreeExported(block); }).join();
  EXPECT_EQ(memory_->live().blocks, 0u);
  EXPECT_THAT(memory_->Streams(), ::testing::ElementsAre(per_thread, nullptr))
      << "its own, and the legacy stream";
}

TEST_F(CallerMemoryTest, SharedPoolFindsAndFreesOnlyItsOwnBlocks) {
  CallerMemory shared(*pool_, *backend_, 0, CallerMemory::PoolUse::kShared);
  const absl::StatusOr<Block> tensor = pool_->Allocate(1_MiB);
  const absl::StatusOr<Block> block = shared.Allocate(1_MiB, {});
  ASSERT_TRUE(tensor.ok() && block.ok());
  EXPECT_TRUE(absl::IsInvalidArgument(shared.Find(tensor->address).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(shared.Free(*tensor, nullptr)));
  EXPECT_TRUE(absl::IsInvalidArgument(shared.UseOn(*tensor, nullptr)));
  const absl::StatusOr<Block> found = shared.Find(block->address);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(*found, *block);
  EXPECT_TRUE(shared.Free(*block, nullptr).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(shared.Free(*block, nullptr)));
  EXPECT_TRUE(pool_->Free(*tensor).ok());
  EXPECT_TRUE(shared.RemoveStreams().ok());
}

TEST_F(CallerMemoryTest, ThreadsWithManyStreamsKeepTheirValues) {
  constexpr int kThreads = 4;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (std::size_t i = 0; i < 400; ++i) {
        // More streams than numbers, some of them shared by all threads.
        void* const stream =
            reinterpret_cast<void*>(0x10000 + 16 * ((i * 7 + static_cast<std::size_t>(t)) % 90));
        const Block block = Must(Bytes(256 << (i % 10)), stream);
        EXPECT_TRUE(i % 3 != 0 || memory_->UseOn(block, nullptr).ok());
        if (i % 5 == 0) {
          EXPECT_TRUE(memory_->Export(block, nullptr).ok());
          memory_->FreeExported(block);
        } else {
          EXPECT_TRUE(memory_->Free(block, i % 2 == 0 ? stream : nullptr).ok());
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(memory_->live().blocks, 0u);
  EXPECT_EQ(pool_->stats().used, Bytes());
}

TEST_F(CallerMemoryTest, RefusalNamesTheTagAndTheOwnersOfTheMemory) {
  const absl::StatusOr<Block> weights = memory_->Allocate(40_MiB, {.tag = "weights"});
  ASSERT_TRUE(weights.ok());
  const absl::StatusOr<Block> refused = memory_->Allocate(32_MiB, {.tag = "activations"});
  ASSERT_TRUE(absl::IsResourceExhausted(refused.status())) << refused.status();
  const std::optional<Refusal> refusal = GetRefusal(refused.status());
  ASSERT_TRUE(refusal);
  EXPECT_EQ(refusal->what, "block of activations");
  ASSERT_EQ(refusal->owners.size(), 1u);
  EXPECT_EQ(refusal->owners[0].op, "weights");
  EXPECT_EQ(refusal->owners[0].bytes, 40_MiB);
  const absl::StatusOr<Block> not_ready = memory_->Allocate(32_MiB, {.only_if_ready = true});
  EXPECT_TRUE(absl::IsResourceExhausted(not_ready.status()));
  EXPECT_FALSE(GetRefusal(not_ready.status()));
  EXPECT_EQ(pool_->stats().num_refusals, 1u);
}

TEST_F(CallerMemoryTest, StreamsOfOtherOriginDoNotKeepMemoryMapped) {
  ASSERT_TRUE(memory_->Free(Must(4_MiB, nullptr), nullptr).ok());
  const absl::StatusOr<Bytes> trimmed = pool_->Trim();
  ASSERT_TRUE(trimmed.ok()) << trimmed.status();
  EXPECT_EQ(pool_->stats().held, Bytes());
}

// Each request that waits for memory keeps the number of its stream.
TEST_F(CallerMemoryTest, BlocksCanBeFreedWhileRequestsThatWaitHaveAllStreamNumbers) {
  const auto stream = [](int i) {
    return reinterpret_cast<void*>(0x1000 + 16 * static_cast<std::uintptr_t>(i));
  };
  const Block exported = Must(60_MiB, stream(0));
  const Block freed = Must(1_KiB, stream(0));
  ASSERT_TRUE(memory_->Export(exported, stream(100)).ok());
  std::vector<std::thread> threads;
  for (std::uint32_t i = 1; i < kMaxStreams; ++i) {
    threads.emplace_back([&, i] {
      const auto block = memory_->Allocate(
          8_MiB, {.stream = stream(static_cast<int>(i)), .timeout = std::chrono::seconds(60)});
      ASSERT_TRUE(block.ok()) << block.status();
      EXPECT_TRUE(memory_->Free(*block, stream(static_cast<int>(i))).ok());
    });
  }
  std::this_thread::sleep_for(
      std::chrono::milliseconds(300));  // they wait by now; if not, the test shows less
  EXPECT_TRUE(memory_->Free(freed, stream(101)).ok());
  memory_->FreeExported(exported);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(memory_->live().blocks, 0u);
}

}  // namespace
}  // namespace lgpu
