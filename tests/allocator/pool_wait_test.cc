// At the limit: which requests wait for other threads of the program.

#include <atomic>
#include <barrier>
#include <cstring>
#include <thread>
#include <vector>

#include "lgpu/interrupt.h"
#include "tests/support/fake_stream_fences.h"
#include "tests/support/pool_fixture.h"

namespace lgpu {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class PoolWaitTest : public PoolFixture {
 protected:
  /// Another thread of this program uses the pool.
  void UseFromAnotherThread() {
    std::thread([this] { EXPECT_TRUE(pool_->Free(*pool_->Allocate(1_MiB)).ok()); }).join();
  }
};

TEST_F(PoolWaitTest, ThreadsThatNeedMoreThanThereIsAreServedInTurn) {
  Open({.limit = 4_MiB});
  std::vector<std::thread> threads;
  std::barrier start(3);
  std::atomic<int> refused = 0;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      // Each has been there before any is short.
      EXPECT_TRUE(pool_->Free(*pool_->Allocate(1_MiB)).ok());
      start.arrive_and_wait();
      for (int i = 0; i < 20; ++i) {
        const absl::StatusOr<Block> block = pool_->Allocate(3_MiB, {.timeout = seconds(20)});
        if (!block.ok()) {
          ++refused;
          continue;
        }
        std::memset(block->address, 1, block->bytes.count());  // takes a while
        EXPECT_TRUE(pool_->Free(*block).ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(refused, 0);
  EXPECT_EQ(pool_->stats().num_refusals, 0U) << "who got it in the end was not refused";
  EXPECT_TRUE(pool_->CheckInvariants().ok());
}

TEST_F(PoolWaitTest, AWaitForOtherThreadsCanBeInterrupted) {
  Open({.limit = 4_MiB});
  const Block keep = Must(3_MiB);
  UseFromAnotherThread();
  {
    const InterruptScope scope([] { return true; });
    const absl::Status status = pool_->Allocate(2_MiB, {.timeout = std::chrono::hours(1)}).status();
    EXPECT_TRUE(absl::IsCancelled(status)) << status;
  }
  MustFree(keep);
  MustFree(Must(4_MiB));
  EXPECT_TRUE(pool_->CheckInvariants().ok());
}

TEST_F(PoolWaitTest, AThreadOnItsOwnIsRefusedAtOnce) {
  Open({.limit = 4_MiB});
  const Block keep = Must(3_MiB);
  const std::optional<Refusal> refusal =
      GetRefusal(pool_->Allocate(2_MiB, {.timeout = seconds(20)}).status());
  ASSERT_TRUE(refusal.has_value());
  EXPECT_EQ(refusal->reason, RefusalReason::kLimit);
  EXPECT_FALSE(refusal->waited.has_value());
  EXPECT_TRUE(pool_->Free(keep).ok());
}

TEST_F(PoolWaitTest, AThreadThatOnlyFreedOfLateIsWaitedFor) {
  Open({.limit = 4_MiB});
  Block keep;
  std::thread([&] {
    keep = Must(3_MiB);
    const Block last = Must(1_MiB);
    std::this_thread::sleep_for(milliseconds(600));  // longer than the request below may wait
    MustFree(last);
  }).join();
  const std::optional<Refusal> refusal =
      GetRefusal(pool_->Allocate(2_MiB, {.timeout = milliseconds(500)}).status());
  ASSERT_TRUE(refusal.has_value());
  EXPECT_GE(refusal->waited.value_or(milliseconds(0)), milliseconds(500));
  MustFree(keep);
}

TEST_F(PoolWaitTest, AThreadThatOnlyFreesSmallBlocksIsWaitedFor) {
  Open({.limit = 4_MiB});
  std::vector<Block> small;
  for (absl::StatusOr<Block> block; (block = pool_->Allocate(64_KiB)).ok();) small.push_back(*block);
  ASSERT_FALSE(small.empty());
  std::thread([&] { MustFree(small.back()); }).join();
  small.pop_back();
  EXPECT_EQ(pool_->stats().cached, Bytes()) << "close to the limit nothing is cached";
  const std::optional<Refusal> refusal =
      GetRefusal(pool_->Allocate(2_MiB, {.timeout = milliseconds(500)}).status());
  ASSERT_TRUE(refusal.has_value());
  EXPECT_GE(refusal->waited.value_or(milliseconds(0)), milliseconds(500));
  for (const Block& block : small) MustFree(block);
}

TEST_F(PoolWaitTest, AThreadThatUsedThePoolLongAgoIsNotWaitedFor) {
  Open({.limit = 4_MiB});
  Block keep;
  std::thread([&] {
    keep = Must(3_MiB);
    MustFree(Must(512_KiB));
  }).join();
  pool_->Maintain(std::chrono::steady_clock::now());  // dates the free
  std::this_thread::sleep_for(milliseconds(200));
  const std::optional<Refusal> refusal =
      GetRefusal(pool_->Allocate(2_MiB, {.timeout = milliseconds(50)}).status());
  ASSERT_TRUE(refusal.has_value());
  EXPECT_FALSE(refusal->waited.has_value());
  MustFree(keep);
}

TEST_F(PoolWaitTest, AThreadThatOnlyUsesScratchMemoryIsNotWaitedFor) {
  Open({.limit = 4_MiB});
  const Block keep = Must(3_MiB);
  std::thread([&] { MustFree(*pool_->Allocate(1_MiB, {.scratch = true})); }).join();
  const std::optional<Refusal> refusal =
      GetRefusal(pool_->Allocate(2_MiB, {.timeout = seconds(20)}).status());
  ASSERT_TRUE(refusal.has_value());
  EXPECT_FALSE(refusal->waited.has_value());
  MustFree(keep);
}

TEST_F(PoolWaitTest, ARequestAboveTheLimitIsRefusedAtOnce) {
  Open({.limit = 4_MiB});
  UseFromAnotherThread();
  const std::optional<Refusal> refusal =
      GetRefusal(pool_->Allocate(5_MiB, {.timeout = seconds(20)}).status());
  ASSERT_TRUE(refusal.has_value());
  EXPECT_FALSE(refusal->waited.has_value());
}

TEST_F(PoolWaitTest, WithoutATimeoutARequestDoesNotWait) {
  Open({.limit = 4_MiB});
  const Block keep = Must(3_MiB);
  UseFromAnotherThread();
  const std::optional<Refusal> refusal = GetRefusal(pool_->Allocate(2_MiB).status());
  ASSERT_TRUE(refusal.has_value());
  EXPECT_FALSE(refusal->waited.has_value());
  EXPECT_EQ(pool_->stats().num_refusals, 1U);
  EXPECT_TRUE(pool_->Free(keep).ok());
}

TEST_F(PoolWaitTest, ThreadsThatAllWaitForEachOtherAreRefusedInTheEnd) {
  Open({.limit = 4_MiB});
  const Block keep = Must(3_MiB);
  UseFromAnotherThread();
  const std::optional<Refusal> refusal =
      GetRefusal(pool_->Allocate(2_MiB, {.timeout = milliseconds(30)}).status());
  ASSERT_TRUE(refusal.has_value());
  EXPECT_EQ(refusal->reason, RefusalReason::kLimit);
  EXPECT_GE(refusal->waited.value_or(milliseconds(0)), milliseconds(30));
  EXPECT_EQ(pool_->stats().num_refusals, 1U) << "one call, however often it tried";
  EXPECT_EQ(pool_->stats().last_refusal, RefusalReason::kLimit);
  EXPECT_TRUE(pool_->Free(keep).ok());
}

TEST_F(PoolWaitTest, BlocksInAnotherThreadsCacheAreFound) {
  Open({.limit = 64_MiB});
  std::atomic<bool> is_waiting = false;
  std::thread other([&] {
    std::vector<Block> small;
    for (absl::StatusOr<Block> block; (block = pool_->Allocate(64_KiB)).ok();) small.push_back(*block);
    is_waiting.wait(false);
    // Some of it fits into the cache of this thread, which other threads search only when they are short.
    for (const Block& block : small) EXPECT_TRUE(pool_->Free(block).ok());
  });
  while (pool_->stats().used < 64_MiB) std::this_thread::yield();
  is_waiting = true;
  is_waiting.notify_all();
  const absl::StatusOr<Block> all = pool_->Allocate(64_MiB, {.timeout = seconds(20)});
  EXPECT_TRUE(all.ok()) << all.status();
  other.join();
  if (all.ok()) MustFree(*all);
}

/// A source whose refusals to one thread last until the gate opens, as a patient request of a daemon does.
class SlowToRefuse final : public RegionSource {
 public:
  SlowToRefuse(std::unique_ptr<RegionSource> of, std::atomic<bool>& gate) : of_(std::move(of)), gate_(gate) {}
  std::byte* base() const override { return of_->base(); }
  Bytes reserved() const override { return of_->reserved(); }
  Bytes granularity() const override { return of_->granularity(); }
  Bytes limit() const override { return of_->limit(); }
  absl::StatusOr<std::vector<Chunk>> Grow(const GrowRequest& request) override {
    auto answer = of_->Grow(request);
    if (!answer.ok() && is_slow) {
      ++refusing_;
      while (!gate_) std::this_thread::yield();
    }
    return answer;
  }
  absl::Status Map(std::span<const ChunkPlacement> places) override { return of_->Map(places); }
  absl::Status Unmap(std::span<const ChunkId> chunks) override { return of_->Unmap(chunks); }
  absl::Status Return(std::span<const ChunkId> chunks) override { return of_->Return(chunks); }

  int refusing() const { return refusing_; }
  static thread_local bool is_slow;

 private:
  const std::unique_ptr<RegionSource> of_;
  std::atomic<bool>& gate_;
  std::atomic<int> refusing_{0};
};
thread_local bool SlowToRefuse::is_slow = false;

/// Fences that pass when the gate opens.
class GatedFences final : public StreamFences {
 public:
  explicit GatedFences(std::atomic<bool>& gate) : gate_(gate) {}
  absl::StatusOr<std::uint64_t> Record(StreamId) override { return ++last_; }
  absl::StatusOr<bool> HasPassed(StreamId, std::uint64_t) override { return gate_.load(); }
  absl::Status Wait(StreamId, std::uint64_t) override {
    ++waiting_;
    while (!gate_) std::this_thread::yield();
    return absl::OkStatus();
  }
  absl::Status Order(StreamId, StreamId, std::uint64_t) override { return absl::OkStatus(); }
  int waiting() const { return waiting_; }

 private:
  std::atomic<bool>& gate_;
  std::atomic<std::uint64_t> last_{0};
  std::atomic<int> waiting_{0};
};

// One request waits for fences, a patient one sits in the source, and the third waits for the first of them.
// When the first waits as well, only the patient one is left, whose end the third need not await.
TEST_F(PoolWaitTest, AnImpatientRequestDoesNotWaitForThePatientOnes) {
  std::atomic<bool> fences_pass{false}, refusals_end{false};
  backend_ = std::make_unique<FailingBackend>(
      MakeSimulatedBackend({.devices = {SimulatedDevice(0, 64_GiB, "test")}, .sparse = true}));
  upstream_ = std::make_shared<FakeUpstream>();
  auto fake = FakeRegionSource::Make(*backend_, {.limit = 64_MiB, .upstream = upstream_});
  ASSERT_TRUE(fake.ok()) << fake.status();
  auto source = std::make_unique<SlowToRefuse>(*std::move(fake), refusals_end);
  const SlowToRefuse& slow = *source;
  const auto fences = std::make_shared<GatedFences>(fences_pass);
  pool_ = std::make_unique<Pool>(std::move(source), PoolOptions{.fences = fences, .grow_ahead = false});
  upstream_->card = Bytes(4_MiB).count();
  const Block keep = Must(512_KiB);
  MustFree(Must(512_KiB, {.stream = 1}));
  std::thread for_fences([&] { EXPECT_FALSE(pool_->Allocate(16_MiB, {.timeout = seconds(60)}).ok()); });
  while (fences->waiting() == 0) std::this_thread::yield();
  std::thread patient([&] {
    SlowToRefuse::is_slow = true;
    EXPECT_FALSE(pool_->Allocate(16_MiB, {.timeout = seconds(60)}).ok());
  });
  while (slow.refusing() == 0) std::this_thread::yield();
  std::thread impatient([&] { EXPECT_FALSE(pool_->Allocate(16_MiB, {.timeout = seconds(0)}).ok()); });
  std::this_thread::sleep_for(milliseconds(200));  // it waits by now; if not, the test shows less
  fences_pass = true;
  impatient.join();
  EXPECT_FALSE(refusals_end);
  refusals_end = true;
  patient.join();
  for_fences.join();
  MustFree(keep);
}

}  // namespace
}  // namespace lgpu
