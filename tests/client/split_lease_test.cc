// A lease that a program splits into parts of its own.

#include "client/session/split_lease.h"

#include <gmock/gmock.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "client/session/memory_session.h"
#include "lgpu/refusal.h"
#include "tests/client/fake_lease.h"
#include "tests/support/child_program.h"

namespace lgpu {
namespace {

using testing::Eventually;
using testing::FakeLease;
using testing::FakeLeaseLog;
using ::testing::HasSubstr;

constexpr std::uint64_t kMiB = 1 << 20;

/// A lease of two devices of 64 MiB each, on one card.
class SplitLeaseTest : public ::testing::Test {
 protected:
  absl::Status Open(std::vector<SplitLease::Part> parts) {
    absl::StatusOr<std::unique_ptr<Lease>> split = SplitLease::Open(
        std::make_unique<FakeLease>(testing::FakeLeaseOptions{}, log_), std::move(parts), /*timeout=*/{});
    if (!split.ok()) return split.status();
    session_.emplace(*std::move(split));
    for (std::size_t i = 0; i < session_->lease().devices().size(); ++i) {
      EXPECT_TRUE(pool(static_cast<int>(i)).AddStream(*session_->lease().backend().CreateStream(0, 0)).ok());
    }
    return absl::OkStatus();
  }
  DevicePool& pool(int i) { return session_->memory(i); }
  Bytes HeldTogether() {
    Bytes held;
    for (std::size_t i = 0; i < session_->lease().devices().size(); ++i) {
      held += pool(static_cast<int>(i)).stats().held;
    }
    return held;
  }

  const std::shared_ptr<FakeLeaseLog> log_ = std::make_shared<FakeLeaseLog>();
  std::optional<MemorySession> session_;
};

TEST_F(SplitLeaseTest, EachPartIsADeviceWithALimitOfItsOwn) {
  ASSERT_EQ(Open({{.of = 0, .limit = 16_MiB}, {.of = 0, .limit = 48_MiB}, {.of = 1}}), absl::OkStatus());
  const std::vector<LeasedDevice>& devices = session_->lease().devices();
  ASSERT_EQ(devices.size(), 3u);
  EXPECT_EQ(devices[0].memory_limit, 16_MiB);
  EXPECT_EQ(devices[1].memory_limit, 48_MiB);
  EXPECT_EQ(devices[2].memory_limit, 64_MiB);
  EXPECT_EQ(devices[1].lease_index, 0);
  EXPECT_EQ(devices[2].lease_index, 1);

  const absl::StatusOr<Block> small = pool(0).Allocate(16_MiB);
  ASSERT_TRUE(small.ok()) << small.status();
  const absl::Status refused = pool(0).Allocate(2_MiB).status();
  const std::optional<Refusal> refusal = GetRefusal(refused);
  ASSERT_TRUE(refusal.has_value()) << refused;
  EXPECT_EQ(refusal->reason, RefusalReason::kLimit);
  EXPECT_EQ(refusal->limit, 16_MiB);
  EXPECT_EQ(refusal->device, "/device:GPU:0");

  const absl::StatusOr<Block> large = pool(1).Allocate(48_MiB);
  ASSERT_TRUE(large.ok()) << large.status();
  EXPECT_NE(small->address, large->address);
  EXPECT_EQ(HeldTogether(), 64_MiB);
  EXPECT_TRUE(pool(2).Allocate(64_MiB).ok());
  EXPECT_EQ(session_->Close(), absl::OkStatus());
  EXPECT_EQ(log_->closes, 1);
}

TEST_F(SplitLeaseTest, PartsAreWithinTheirDevice) {
  const absl::Status too_much = Open({{.of = 0, .limit = 32_MiB}, {.of = 0, .limit = 34_MiB}});
  EXPECT_TRUE(absl::IsInvalidArgument(too_much)) << too_much;
  EXPECT_THAT(std::string(too_much.message()), HasSubstr("asks for 66.00MiB"));
  EXPECT_THAT(std::string(too_much.message()), HasSubstr("has 64.00MiB"));
  const absl::Status open_ended = Open({{.of = 0}, {.of = 0, .limit = 2_MiB}});
  EXPECT_TRUE(absl::IsInvalidArgument(open_ended)) << open_ended;
}

TEST_F(SplitLeaseTest, APreallocatedPartHasItsMemoryWhateverTheOthersTake) {
  ASSERT_EQ(Open({{.of = 0, .limit = 32_MiB, .preallocate = true}, {.of = 0, .limit = 32_MiB}}),
            absl::OkStatus());
  EXPECT_TRUE(session_->lease().devices()[0].preallocated);
  EXPECT_EQ(session_->lease().devices()[0].guarantee, 32_MiB);
  EXPECT_EQ(pool(0).stats().held, Bytes()) << "nothing of it is the pool's yet";
  ASSERT_TRUE(pool(1).Allocate(32_MiB).ok());
  for (int round = 0; round < 3; ++round) {
    const absl::StatusOr<Block> block = pool(0).Allocate(30_MiB);
    ASSERT_TRUE(block.ok()) << block.status();
    EXPECT_FALSE(pool(0).Allocate(4_MiB).ok());
    ASSERT_TRUE(pool(0).Free(*block, 30_MiB).ok());
    const absl::StatusOr<Bytes> trimmed = pool(0).Trim();
    ASSERT_TRUE(trimmed.ok()) << trimmed.status();
  }
  const absl::Status fixed = session_->lease().Resize(0, 16_MiB, std::nullopt);
  EXPECT_TRUE(absl::IsFailedPrecondition(fixed)) << fixed;
}

TEST_F(SplitLeaseTest, PreallocatedMemoryGoesBackWithTheLease) {
  ASSERT_EQ(Open({{.of = 0, .limit = 64_MiB, .preallocate = true}}), absl::OkStatus());
  session_.reset();
  EXPECT_EQ(log_->closes, 1) << "all of its memory is the lease's again";
}

TEST_F(SplitLeaseTest, ALimitMovesWithinTheDevice) {
  ASSERT_EQ(Open({{.of = 0, .limit = 16_MiB}, {.of = 0, .limit = 48_MiB}}), absl::OkStatus());
  Lease& lease = session_->lease();
  EXPECT_TRUE(absl::IsInvalidArgument(lease.Resize(0, 18_MiB, std::nullopt))) << "66 MiB in all";
  EXPECT_TRUE(absl::IsInvalidArgument(lease.Resize(0, 8_MiB, 4_MiB))) << "no guarantee of its own";
  const absl::StatusOr<Block> block = pool(1).Allocate(40_MiB);
  ASSERT_TRUE(block.ok());
  const absl::Status held = lease.Resize(1, 32_MiB, std::nullopt);
  EXPECT_TRUE(absl::IsFailedPrecondition(held)) << held;
  EXPECT_EQ(pool(1).limit(), 48_MiB) << "nothing has changed";
  ASSERT_TRUE(pool(1).Free(*block, 40_MiB).ok());
  ASSERT_TRUE(pool(1).Trim().ok());
  EXPECT_EQ(lease.Resize(1, 32_MiB, Bytes()), absl::OkStatus());
  EXPECT_EQ(lease.Resize(0, 32_MiB, std::nullopt), absl::OkStatus());
  EXPECT_EQ(pool(0).limit(), 32_MiB);
  EXPECT_TRUE(pool(0).Allocate(32_MiB).ok());
  EXPECT_FALSE(pool(1).Allocate(34_MiB).ok());
}

TEST_F(SplitLeaseTest, ATrimTakesFromAllPartsUntilItHasEnough) {
  ASSERT_EQ(Open({{.of = 0, .limit = 32_MiB}, {.of = 0, .limit = 32_MiB}}), absl::OkStatus());
  for (const int i : {0, 1}) {
    const absl::StatusOr<Block> block = pool(i).Allocate(24_MiB);
    ASSERT_TRUE(block.ok());
    ASSERT_TRUE(pool(i).Free(*block, 24_MiB).ok());
  }
  session_->StartUpkeep();
  {
    const std::lock_guard lock(log_->mutex);
    log_->trims.push_back({.id = TrimId{5}, .device = session_->lease().devices()[0].id, .bytes = 40_MiB});
  }
  session_->lease().WakeMaintenance();
  ASSERT_TRUE(Eventually([&] {
    const std::lock_guard lock(log_->mutex);
    return log_->answers.size() == 1;
  }));
  EXPECT_FALSE(log_->answers[0].pending);
  EXPECT_LE(HeldTogether(), 8_MiB);
}

TEST_F(SplitLeaseTest, ATrimLeavesPreallocatedPartsAlone) {
  ASSERT_EQ(Open({{.of = 0, .limit = 32_MiB, .preallocate = true}, {.of = 0, .limit = 32_MiB}}),
            absl::OkStatus());
  for (const int i : {0, 1}) {
    const absl::StatusOr<Block> block = pool(i).Allocate(24_MiB);
    ASSERT_TRUE(block.ok());
    ASSERT_TRUE(pool(i).Free(*block, 24_MiB).ok());
  }
  const Bytes before = pool(0).stats().held;
  session_->StartUpkeep();
  {
    const std::lock_guard lock(log_->mutex);
    log_->trims.push_back({.id = TrimId{5}, .device = session_->lease().devices()[0].id, .bytes = 16_MiB});
  }
  session_->lease().WakeMaintenance();
  ASSERT_TRUE(Eventually([&] {
    const std::lock_guard lock(log_->mutex);
    return log_->answers.size() == 1;
  }));
  EXPECT_EQ(pool(0).stats().held, before) << "nothing of it would be the daemon's";
  EXPECT_LE(pool(1).stats().held, 8_MiB);
}

TEST_F(SplitLeaseTest, APartHasAllOfALimitThatIsNoWholeNumberOfChunks) {
  ASSERT_EQ(Open({{.of = 0, .limit = 15_MiB}, {.of = 0, .limit = 31_MiB, .preallocate = true}}),
            absl::OkStatus());
  EXPECT_TRUE(pool(0).Allocate(15_MiB).ok());
  EXPECT_TRUE(pool(1).Allocate(31_MiB).ok());
  EXPECT_FALSE(pool(0).Allocate(1_MiB).ok());
  EXPECT_FALSE(pool(1).Allocate(1_MiB).ok());
}

TEST_F(SplitLeaseTest, TheDaemonSeesOneDeviceWithTheBlocksOfAllParts) {
  ASSERT_EQ(Open({{.of = 0, .limit = 32_MiB}, {.of = 0, .limit = 32_MiB}}), absl::OkStatus());
  ASSERT_TRUE(pool(0).Allocate(4_MiB, {.op = "One"}).ok());
  ASSERT_TRUE(pool(1).Allocate(6_MiB, {.op = "Two"}).ok());
  session_->StartUpkeep();
  {
    const std::lock_guard lock(log_->mutex);
    log_->questions.push_back({.snapshot_id = 3, .device_id = 1, .page = 0, .cells = 0});
  }
  session_->lease().WakeMaintenance();
  ASSERT_TRUE(Eventually([&] {
    const std::lock_guard lock(log_->mutex);
    return !log_->pages.empty();
  }));
  session_->StopUpkeep();
  const wire::SnapshotPage& page = log_->pages.front();
  ASSERT_EQ(page.code, 0) << page.message;
  ASSERT_TRUE(page.region.has_value());
  EXPECT_EQ(page.region->limit_bytes, 64 * kMiB);
  EXPECT_EQ(page.region->used_bytes, 10 * kMiB);
  EXPECT_EQ(page.region->live_blocks, 2u);
  EXPECT_THAT(page.op_names, ::testing::UnorderedElementsAre("One", "Two"));

  const ClientPage::Device& counters = session_->lease().page().devices[0];
  EXPECT_EQ(counters.used.load(), 10 * kMiB);
  EXPECT_EQ(counters.peak_used.load(), 10 * kMiB);
  EXPECT_EQ(counters.live_blocks.load(), 2u);
}

// No part has more than its limit, and what one has given back is there for it again.
TEST_F(SplitLeaseTest, ThreadsOfAllPartsStayWithinTheLimits) {
  ASSERT_EQ(Open({{.of = 0, .limit = 24_MiB}, {.of = 0, .limit = 40_MiB, .preallocate = true}}),
            absl::OkStatus());
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (unsigned seed = 1; seed <= 4; ++seed) {
    threads.emplace_back([this, seed, &wrong] {
      const int part = static_cast<int>(seed % 2);
      std::mt19937 random(seed);
      std::vector<std::pair<Block, Bytes>> blocks;
      for (int step = 0; step < 300; ++step) {
        if (!blocks.empty() && random() % 2 == 0) {
          wrong += pool(part).Free(blocks.back().first, blocks.back().second).ok() ? 0 : 1;
          blocks.pop_back();
        } else {
          const Bytes bytes(1 + random() % (6 * kMiB));
          const absl::StatusOr<Block> block = pool(part).Allocate(bytes);
          if (block.ok()) blocks.emplace_back(*block, bytes);
          wrong += block.ok() || absl::IsResourceExhausted(block.status()) ? 0 : 1;
        }
        wrong += pool(part).stats().held <= pool(part).limit() ? 0 : 1;
      }
      for (const auto& [block, bytes] : blocks) wrong += pool(part).Free(block, bytes).ok() ? 0 : 1;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0) << "seeds 1 to 4";
  for (const int i : {0, 1}) {
    ASSERT_TRUE(pool(i).Trim().ok());
    EXPECT_TRUE(pool(i).Allocate(pool(i).limit() - 2_MiB).ok());
  }
}

}  // namespace
}  // namespace lgpu
