// Refusals that come from below: each keeps its reason, gets the pool's numbers, and loses nothing.

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "tests/support/pool_fixture.h"

namespace lgpu {
namespace {

// A source whose next Map is refused for a reason of the test's choice.
class RefusingSource final : public RegionSource {
 public:
  RefusingSource(std::unique_ptr<RegionSource> source, std::shared_ptr<RefusalReason> reason)
      : source_(std::move(source)), reason_(std::move(reason)) {}
  std::byte* base() const override { return source_->base(); }
  Bytes reserved() const override { return source_->reserved(); }
  Bytes granularity() const override { return source_->granularity(); }
  Bytes limit() const override { return source_->limit(); }
  absl::StatusOr<std::vector<Chunk>> Grow(const GrowRequest& request) override {
    return source_->Grow(request);
  }
  absl::Status Map(std::span<const ChunkPlacement> placements) override {
    if (*reason_ == RefusalReason::kUnspecified) return source_->Map(placements);
    Refusal refusal;
    refusal.reason = *reason_;
    refusal.advice = {"raise it"};
    return RefusalStatus(refusal);
  }
  absl::Status Unmap(std::span<const ChunkId> chunks) override { return source_->Unmap(chunks); }
  absl::Status Return(std::span<const ChunkId> chunks) override { return source_->Return(chunks); }

 private:
  const std::unique_ptr<RegionSource> source_;
  const std::shared_ptr<RefusalReason> reason_;
};

class PoolRefusalsTest : public PoolFixture {
 protected:
  void OpenRefusing(Bytes limit) {
    Open({.limit = limit});
    reason_ = std::make_shared<RefusalReason>(RefusalReason::kUnspecified);
    upstream_ = std::make_shared<FakeUpstream>();
    auto source = FakeRegionSource::Make(*backend_, {.limit = limit, .upstream = upstream_});
    ASSERT_TRUE(source.ok()) << source.status();
    pool_ = std::make_unique<Pool>(std::make_unique<RefusingSource>(*std::move(source), reason_),
                                   PoolOptions{.device = "/device:GPU:0"});
  }
  std::shared_ptr<RefusalReason> reason_;
};

TEST_F(PoolRefusalsTest, TheReasonComesThroughWithThePoolsNumbers) {
  OpenRefusing(64_MiB);
  for (const RefusalReason reason : {RefusalReason::kMapCount, RefusalReason::kDescriptors,
                                     RefusalReason::kBackend, RefusalReason::kAddressRange}) {
    const Block keep = Must(3_MiB);
    *reason_ = reason;
    const Refusal refusal = MustRefuse(8_MiB);
    EXPECT_EQ(refusal.reason, reason);
    EXPECT_EQ(refusal.device, "/device:GPU:0");
    EXPECT_EQ(refusal.used, 3_MiB);
    EXPECT_EQ(refusal.asked, 8_MiB);
    EXPECT_EQ(refusal.live_blocks, 1u);
    EXPECT_EQ(refusal.advice, std::vector<std::string>{"raise it"});
    EXPECT_EQ(pool_->stats().last_refusal, reason);
    ExpectSound();
    *reason_ = RefusalReason::kUnspecified;
    MustFree(Must(8_MiB));
    MustFree(keep);
    ExpectEmptyAfterTrim();
  }
  EXPECT_EQ(pool_->stats().num_refusals, 4u);
}

// A program that runs into its limit again and again, with small and large blocks, on two streams of use:
// a refused request really does not fit, and all freed memory can be allocated again.
TEST_F(PoolRefusalsTest, AllThatIsFreeCanBeHad) {
  Open({.limit = 32_MiB});
  for (int round = 0; round < 20; ++round) {
    std::vector<Block> blocks;
    for (;;) {
      const auto block = pool_->Allocate(Bytes(512) * (1 + static_cast<std::uint64_t>(round) * 6));
      if (!block.ok()) break;
      blocks.push_back(*block);
    }
    EXPECT_GT(pool_->stats().used, 32_MiB - 128_KiB);
    for (const Block& block : blocks) MustFree(block);
    const Block all = Must(32_MiB);
    MustFree(all);
    ASSERT_NO_FATAL_FAILURE(ExpectSound());
  }
  ExpectEmptyAfterTrim();
}

// A limit that was raised far over the one that the addresses were reserved for, and a source that has large
// chunks only.
TEST_F(PoolRefusalsTest, ChunksThatFitNowhereAreRefusedAndNotAskedForForEver) {
  Open({.limit = 64_MiB});
  auto source = FakeRegionSource::Make(
      *backend_, {.limit = 64_MiB, .reserved = 64_MiB, .chunk = 32_MiB, .no_smaller = true});
  ASSERT_TRUE(source.ok()) << source.status();
  pool_ = std::make_unique<Pool>(*std::move(source), PoolOptions{.device = "/device:GPU:0"});
  std::vector<Block> blocks;
  for (int i = 0; i < 3; ++i) blocks.push_back(Must(9_MiB));
  EXPECT_EQ(MustRefuse(9_MiB).reason, RefusalReason::kAddressRange);
  blocks.push_back(Must(5_MiB));
  EXPECT_LT(pool_->stats().source_round_trips, 20u);
  for (const Block& block : blocks) MustFree(block);
  MustFree(Must(32_MiB));
  EXPECT_TRUE(pool_->CheckInvariants().ok());
}

}  // namespace
}  // namespace lgpu
