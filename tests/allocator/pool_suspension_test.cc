// A pool without memory under its blocks, and with memory again.

#include <vector>

#include "tests/support/pool_fixture.h"

namespace lgpu {
namespace {

using std::chrono::nanoseconds;

class PoolSuspensionTest : public PoolFixture {
 protected:
  void MustSuspend() {
    const absl::Status status = pool_->Suspend();
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_TRUE(pool_->is_suspended());
    EXPECT_EQ(upstream_->granted, 0u);
    EXPECT_EQ(upstream_->mapped, 0u);
    ExpectSound();
  }
  void MustResume() {
    const absl::Status status = pool_->Resume(nanoseconds(0));
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_FALSE(pool_->is_suspended());
    ExpectSound();
  }
  // Device memory of a simulated card can be written where it is mapped.
  static void ExpectMapped(const Block& block) {
    block.address[0] = std::byte{1};
    block.address[block.bytes.count() - 1] = std::byte{2};
  }
};

TEST_F(PoolSuspensionTest, BlocksStayAtTheirAddressesWithoutMemory) {
  Open({.limit = 64_MiB, .chunk = 16_MiB});
  const Block large = Must(20_MiB);
  const Block small = Must(1_KiB);
  const Bytes held = pool_->stats().held;
  MustSuspend();
  EXPECT_EQ(pool_->stats().held, Bytes());
  EXPECT_EQ(pool_->stats().idle, Bytes());
  EXPECT_EQ(pool_->stats().used, large.bytes + small.bytes);
  EXPECT_EQ(pool_->Snapshot().blocks.size(), 2u);
  MustResume();
  EXPECT_LE(pool_->stats().held, held);
  ExpectMapped(large);
  ExpectMapped(small);
  const Block more = Must(4_MiB);
  EXPECT_NE(more.address, large.address);
  for (const Block& block : {large, small, more}) MustFree(block);
  ExpectEmptyAfterTrim();
}

TEST_F(PoolSuspensionTest, BlocksThatAreFreedMeanwhileGetNoMemory) {
  Open({.limit = 64_MiB});
  const Block gone = Must(20_MiB);
  const Block stays = Must(4_MiB);
  const Block small = Must(1_KiB);
  MustSuspend();
  MustFree(gone);
  MustFree(small);
  EXPECT_EQ(pool_->stats().live_blocks, 1u);
  EXPECT_TRUE(absl::IsInvalidArgument(pool_->Free(gone)));
  MustResume();
  EXPECT_EQ(pool_->stats().held, 4_MiB);
  ExpectMapped(stays);
  MustFree(stays);
  ExpectEmptyAfterTrim();
}

TEST_F(PoolSuspensionTest, WithoutRoomThePoolStaysSuspendedAndTheRefusalNamesAllOfIt) {
  Open({.limit = 64_MiB, .chunk = 16_MiB});
  const Block large = Must(32_MiB);
  const Block small = Must(1_KiB);
  MustSuspend();
  upstream_->card = (32_MiB).count();  // enough for the large block alone
  const absl::Status refused = pool_->Resume(nanoseconds(0));
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  const std::optional<Refusal> refusal = GetRefusal(refused);
  ASSERT_TRUE(refusal.has_value());
  EXPECT_EQ(refusal->asked, 34_MiB);
  EXPECT_EQ(refusal->what, "contents of suspended tensors");
  EXPECT_TRUE(pool_->is_suspended());
  EXPECT_EQ(upstream_->granted, 0u);
  upstream_->card = (64_MiB).count();
  MustResume();
  ExpectMapped(large);
  ExpectMapped(small);
}

// Two places of 6 MiB in different parts of the region, and a source that answers with 8 MiB and 4 MiB.
TEST_F(PoolSuspensionTest, ChunksOfOtherSizesFillTheSamePlaces) {
  Open({.limit = 64_MiB, .chunk = 8_MiB});
  const Block first = Must(6_MiB);
  const Block between = Must(6_MiB);
  const Block last = Must(6_MiB);
  MustFree(between);
  EXPECT_TRUE(pool_->Trim(1_TiB).ok());
  const Bytes held = pool_->stats().held;
  MustSuspend();
  MustResume();
  EXPECT_EQ(pool_->stats().held, held);
  ExpectMapped(first);
  ExpectMapped(last);
  MustFree(first);
  MustFree(last);
  ExpectEmptyAfterTrim();
}

TEST_F(PoolSuspensionTest, NothingIsLostWhereTheSourceFails) {
  Open({.limit = 64_MiB, .chunk = 8_MiB});
  const Block large = Must(20_MiB);
  const Block small = Must(1_KiB);
  const MemoryStats before = pool_->stats();
  upstream_->faults.FailCall(1);
  EXPECT_FALSE(pool_->Suspend().ok()) << "Unmap failed";
  EXPECT_FALSE(pool_->is_suspended());
  EXPECT_EQ(pool_->stats().held, before.held);
  ExpectSound();
  MustSuspend();
  for (std::uint64_t call = 1; pool_->is_suspended(); ++call) {
    upstream_->faults.FailCall(call);
    if (pool_->Resume(nanoseconds(0)).ok()) {
      EXPECT_GT(call, 3u) << "two calls of Grow and one of Map fail";
      break;
    }
    EXPECT_TRUE(pool_->is_suspended());
    EXPECT_EQ(upstream_->granted, 0u) << "call " << call;
    ExpectSound();
  }
  ExpectMapped(large);
  ExpectMapped(small);
}

TEST_F(PoolSuspensionTest, UpkeepLeavesASuspendedPoolAlone) {
  Open({.limit = 64_MiB});
  const Block block = Must(20_MiB);
  MustSuspend();
  EXPECT_EQ(pool_->Maintain(std::chrono::steady_clock::time_point(std::chrono::hours(1))), std::nullopt);
  MustFree(block);
  EXPECT_EQ(pool_->Trim(1_TiB).value(), Bytes());
  EXPECT_EQ(pool_->TrimFor(1_TiB).value().pending, Bytes());
  EXPECT_TRUE(absl::IsFailedPrecondition(pool_->Suspend()));
  EXPECT_EQ(upstream_->granted, 0u);
  MustResume();
  EXPECT_TRUE(absl::IsFailedPrecondition(pool_->Resume(nanoseconds(0))));
  ExpectEmptyAfterTrim();
}

TEST_F(PoolSuspensionTest, ASuspendedPoolMayEnd) {
  Open({.limit = 64_MiB});
  (void)Must(20_MiB);
  MustSuspend();
  pool_.reset();
  EXPECT_EQ(upstream_->granted, 0u);
}

}  // namespace
}  // namespace lgpu
