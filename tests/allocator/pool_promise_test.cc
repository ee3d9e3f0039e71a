// The promise of a Pool, for every mix of chunk classes: a request is refused by the limit only because
//
//   bytes in live blocks + bytes asked for > limit, or
//   bytes of chunks that hold a live block + bytes needed > limit, in whole pages
//
// Pools whose GrowthPolicy forbids a step must break it, which shows that the test finds a broken promise.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <ostream>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "allocator/pool/pool_impl.h"
#include "lgpu/pool.h"
#include "lgpu/refusal.h"
#include "tests/support/promise_oracle.h"
#include "tests/support/test_seed.h"

namespace lgpu {
namespace {

constexpr Bytes kPage = 2_MiB;

// The state of a source, which the test checks and changes.
struct Ground {
  Bytes limit;
  Bytes card = Bytes(~std::uint64_t{0});
  std::map<std::uint64_t, std::uint64_t> mapped;  // offset to bytes
  std::map<std::uint64_t, Chunk> chunks;          // granted, by id
  std::map<std::uint64_t, std::uint64_t> places;  // id to offset
  Bytes held;
  std::uint64_t calls = 0;
  std::uint64_t fail_at = 0;
  bool always_refuse = false;
};

// A source of addresses without access, with chunks of any mix of classes.
class MixedSource final : public RegionSource {
 public:
  struct Options {
    Bytes reserved;
    std::vector<Bytes> classes;  // rising; the first is a page
    bool stock = false;          // chunks exist already: all of the largest class
    unsigned seed = 0;
  };
  MixedSource(std::shared_ptr<Ground> ground, const Options& options)
      : ground_(std::move(ground)), options_(options), random_(options.seed) {}

  std::byte* base() const override { return reinterpret_cast<std::byte*>(std::uintptr_t{1} << 45); }
  Bytes reserved() const override { return options_.reserved; }
  Bytes granularity() const override { return kPage; }
  Bytes limit() const override { return ground_->limit; }

  absl::StatusOr<std::vector<Chunk>> Grow(const GrowRequest& request) override {
    if (Fails()) return absl::UnavailableError("injected: Grow");
    const Bytes limit = std::min(RoundUp(ground_->limit, kPage), ground_->card);
    const Bytes room = SaturatingSub(limit, ground_->held);
    if (room < request.at_least || ground_->always_refuse) {
      Refusal refusal;
      refusal.reason =
          limit == ground_->card || ground_->always_refuse ? RefusalReason::kCard : RefusalReason::kLimit;
      return RefusalStatus(refusal);
    }
    std::vector<Chunk> chunks;
    Bytes given;
    const Bytes most = std::min(room, request.wanted);
    while (given < request.at_least || (given < most && random_() % 4 != 0)) {
      Bytes bytes = options_.classes[random_() % options_.classes.size()];
      if (options_.stock) bytes = std::min(options_.classes.back(), room - given);
      while (bytes > most - given && !options_.stock) {
        bytes = options_.classes[random_() % options_.classes.size()];
      }
      chunks.push_back({ChunkId{next_++}, bytes});
      ground_->chunks[chunks.back().id.value] = chunks.back();
      given += bytes;
    }
    ground_->held += given;
    return chunks;
  }
  absl::Status Map(std::span<const ChunkPlacement> placements) override {
    if (Fails()) return absl::InternalError("injected: Map");
    for (const ChunkPlacement& placement : placements) {
      const std::uint64_t bytes = ground_->chunks.at(placement.id.value).bytes.count();
      const std::uint64_t offset = placement.offset.count();
      EXPECT_EQ(offset % kPage.count(), 0u);
      EXPECT_LE(offset + bytes, options_.reserved.count());
      const auto next = ground_->mapped.lower_bound(offset);
      EXPECT_TRUE(next == ground_->mapped.end() || offset + bytes <= next->first);
      EXPECT_TRUE(next == ground_->mapped.begin() ||
                  std::prev(next)->first + std::prev(next)->second <= offset);
      EXPECT_EQ(ground_->places.count(placement.id.value), 0u);
      ground_->mapped[offset] = bytes;
      ground_->places[placement.id.value] = offset;
    }
    return absl::OkStatus();
  }
  absl::Status Unmap(std::span<const ChunkId> chunks) override {
    if (Fails()) return absl::InternalError("injected: Unmap");
    for (const ChunkId id : chunks) {
      ground_->mapped.erase(ground_->places.at(id.value));
      ground_->places.erase(id.value);
    }
    return absl::OkStatus();
  }
  absl::Status Return(std::span<const ChunkId> chunks) override {
    const bool fails = Fails();
    for (const ChunkId id : chunks) {
      EXPECT_EQ(ground_->places.count(id.value), 0u);
      ground_->held -= ground_->chunks.at(id.value).bytes;
      ground_->chunks.erase(id.value);
    }
    return fails ? absl::UnavailableError("injected: Return") : absl::OkStatus();
  }

 private:
  bool Fails() { return ++ground_->calls == ground_->fail_at; }

  const std::shared_ptr<Ground> ground_;
  const Options options_;
  std::mt19937 random_;
  std::uint64_t next_ = 1;
};

struct Case {
  const char* name;
  Bytes limit;
  Bytes growth_step;
  std::vector<Bytes> classes;
  Bytes largest_block;
  bool stock = false;
  friend void PrintTo(const Case& test, std::ostream* out) { *out << test.name; }
};

// A pool with the test's own account of live blocks.
class Bench {
 public:
  Bench(const Case& test, unsigned seed, const GrowthPolicy& policy = {})
      : test_(test), random_(seed), ground_(std::make_shared<Ground>()) {
    ground_->limit = test.limit;
    pool_ = MakePoolWithPolicy(
        std::make_unique<MixedSource>(
            ground_, MixedSource::Options{RoundUp(test.limit, kPage) * 8, test.classes, test.stock, seed}),
        PoolOptions{.device = "/device:GPU:0", .growth_step = test.growth_step}, policy);
  }

  void Allocate() {
    // Sizes of all orders, so that all zones and classes are used.
    const double log = std::uniform_real_distribution<>(
        9, std::log2(static_cast<double>(test_.largest_block.count())))(random_);
    const Bytes bytes(static_cast<std::uint64_t>(std::exp2(log)));
    const Bytes alignment(std::uint64_t{256} << (random_() % 4 == 0 ? random_() % 14 : 0));
    const std::uint64_t hits = pool_->stats().cache_hits;
    const absl::StatusOr<Block> block = pool_->Allocate(bytes, {.alignment = alignment});
    is_fresh_ = pool_->stats().cache_hits == hits;
    if (!block.ok()) {
      ++refusals_;
      ASSERT_TRUE(absl::IsResourceExhausted(block.status())) << block.status();
      if (const std::optional<std::string> broken =
              BrokenPromise(bytes, alignment, *GetRefusal(block.status()))) {
        broken_ = *broken;
      }
      return;
    }
    const std::uint64_t offset = Offset(*block);
    ASSERT_EQ(offset % std::max<std::uint64_t>(alignment.count(), 256), 0u);
    const auto next = world_.live.lower_bound(offset);
    ASSERT_TRUE(next == world_.live.end() || offset + block->bytes.count() <= next->first);
    ASSERT_TRUE(next == world_.live.begin() || std::prev(next)->first + std::prev(next)->second <= offset);
    world_.live[offset] = block->bytes.count();
    blocks_.push_back(*block);
    used_ += block->bytes;
    CheckBacked(offset, block->bytes.count(), alignment);
  }

  void Free(std::size_t i) {
    ASSERT_TRUE(pool_->Free(blocks_[i]).ok());
    world_.live.erase(Offset(blocks_[i]));
    used_ -= blocks_[i].bytes;
    blocks_[i] = blocks_.back();
    blocks_.pop_back();
  }
  void FreeOne() {
    if (!blocks_.empty()) Free(random_() % blocks_.size());
  }
  void FreeAll() {
    while (!blocks_.empty()) ASSERT_NO_FATAL_FAILURE(Free(blocks_.size() - 1));
  }

  void CheckSound() const {
    const absl::Status status = pool_->CheckInvariants();
    ASSERT_TRUE(status.ok()) << status;
    ASSERT_EQ(pool_->stats().held, ground_->held);
    ASSERT_EQ(pool_->stats().used, used_);
  }
  void CheckNothingLeft() {
    ASSERT_NO_FATAL_FAILURE(FreeAll());
    ASSERT_TRUE(pool_->Trim(1_TiB).ok());
    EXPECT_EQ(ground_->held, Bytes());
    EXPECT_TRUE(ground_->mapped.empty());
    CheckSound();
  }

  std::mt19937& random() { return random_; }
  Ground& ground() { return *ground_; }
  Pool& pool() { return *pool_; }
  std::uint64_t refusals() const { return refusals_; }
  /// The last refusal that was not due, in words.
  const std::string& broken() const { return broken_; }
  const std::vector<Block>& blocks() const { return blocks_; }

 private:
  static std::uint64_t Offset(const Block& block) {
    return reinterpret_cast<std::uintptr_t>(block.address) - (std::uintptr_t{1} << 45);
  }

  // A small block lies in a large chunk: without that it would have been refused, by the limit or the card.
  void CheckNoSmallChunkWouldDo(std::uint64_t offset, std::uint64_t bytes, Bytes alignment) const {
    if (ground_->card < ground_->limit || !is_fresh_) return;
    oracle::World before = World();
    before.live.erase(offset);
    const auto needed = oracle::Needed(before, {bytes, alignment.count(), true});
    ASSERT_TRUE(!needed || oracle::Pinned(before) + *needed > RoundUp(ground_->limit, kPage).count())
        << "a small block lies in a large chunk: " << Bytes(bytes) << " at " << alignment << ", "
        << Bytes(oracle::Pinned(before)) << " are pinned, " << Bytes(*needed) << " needed, the limit is "
        << ground_->limit << ", held " << ground_->held << ", used " << used_;
  }
  oracle::World World() const {
    oracle::World world = world_;
    world.page = kPage.count();
    world.reserved = (RoundUp(test_.limit, kPage) * 8).count();
    world.chunks = ground_->mapped;
    return world;
  }

  void CheckBacked(std::uint64_t offset, std::uint64_t bytes, Bytes alignment) const {
    for (std::uint64_t at = offset; at < offset + bytes;) {
      const auto chunk = ground_->mapped.upper_bound(at);
      ASSERT_NE(chunk, ground_->mapped.begin()) << "nothing is mapped under a block";
      const auto& [start, size] = *std::prev(chunk);
      ASSERT_LT(at, start + size) << "nothing is mapped under a block";
      if (bytes <= (1_MiB).count() && !test_.stock && size > kPage.count()) {
        CheckNoSmallChunkWouldDo(offset, bytes, alignment);
      }
      at = start + size;
    }
  }

  // Why a refusal was not due; nothing: it was.
  std::optional<std::string> BrokenPromise(Bytes bytes, Bytes alignment, const Refusal& refusal) const {
    const Bytes rounded = RoundUp(bytes, Bytes(512));
    if (used_ + rounded > ground_->limit || ground_->card < ground_->limit || test_.stock) {
      return std::nullopt;
    }
    const oracle::World world = World();
    const auto needed = oracle::Needed(world, {rounded.count(), alignment.count(), false});
    const std::uint64_t pinned = oracle::Pinned(world);
    const RefusalReason due = needed ? RefusalReason::kLimit : RefusalReason::kAddressRange;
    if (refusal.reason == due && (!needed || pinned + *needed > RoundUp(ground_->limit, kPage).count())) {
      return std::nullopt;
    }
    std::ostringstream text;
    text << bytes << " at " << alignment << " were refused for reason " << static_cast<int>(refusal.reason)
         << ", " << Bytes(pinned) << " are pinned, " << Bytes(needed.value_or(0)) << " needed, the limit is "
         << ground_->limit << ", held " << ground_->held << ", live blocks " << blocks_.size();
    return text.str();
  }

  const Case test_;
  std::mt19937 random_;
  const std::shared_ptr<Ground> ground_;
  std::unique_ptr<Pool> pool_;
  oracle::World world_{};
  std::vector<Block> blocks_;
  Bytes used_;
  std::uint64_t refusals_ = 0;
  std::string broken_;
  bool is_fresh_ = true;  // the last block came from no front cache
};

constexpr int kSteps = 700;

// One step of a random program.
void Step(Bench& bench, const Case& test) {
  std::mt19937& random = bench.random();
  if (random() % 100 < 60) {
    ASSERT_NO_FATAL_FAILURE(bench.Allocate());
  } else {
    ASSERT_NO_FATAL_FAILURE(bench.FreeOne());
  }
  if (random() % 150 == 0) {
    for (std::size_t n = bench.blocks().size() / 2; n > 0; --n) ASSERT_NO_FATAL_FAILURE(bench.FreeOne());
  }
  if (random() % 100 == 0) {
    ASSERT_TRUE(bench.pool().Trim(Bytes(random() % test.limit.count())).ok());
  }
  if (random() % 200 == 0) {
    bench.ground().limit = test.limit - kPage * (random() % 4) - Bytes(random() % 2 * 4096);
  }
}

class PoolPromiseTest : public ::testing::TestWithParam<Case> {};

TEST_P(PoolPromiseTest, EveryRefusalIsDue) {
  const unsigned seed = TestSeed();
  std::uint64_t refusals = 0;
  for (unsigned round = 0; round < 4; ++round) {
    Bench bench(GetParam(), seed + round);
    for (int step = 0; step < kSteps; ++step) {
      ASSERT_NO_FATAL_FAILURE(Step(bench, GetParam()));
      ASSERT_NO_FATAL_FAILURE(bench.CheckSound()) << "step " << step;
      ASSERT_EQ(bench.broken(), "") << "step " << step;
    }
    refusals += bench.refusals();
    ASSERT_NO_FATAL_FAILURE(bench.CheckNothingLeft());
  }
  EXPECT_GT(refusals, 10u) << "the test has to see refusals";
}

TEST_P(PoolPromiseTest, ASourceThatFailsAtAnyCallChangesNothing) {
  const unsigned seed = TestSeed();
  for (std::uint64_t k = 1;; ++k) {
    Bench bench(GetParam(), seed);
    bench.ground().fail_at = k;
    const auto allocate = [&](Bytes bytes) {
      const absl::StatusOr<Block> block = bench.pool().Allocate(bytes);
      return block.ok() ? std::optional(*block) : std::nullopt;
    };
    std::vector<std::optional<Block>> blocks;
    for (int i = 0; i < 12; ++i) blocks.push_back(allocate(GetParam().limit / 14));
    for (std::size_t i = 0; i < blocks.size(); i += 2) {
      if (blocks[i]) {
        ASSERT_TRUE(bench.pool().Free(*blocks[i]).ok());
      }
    }
    blocks.push_back(allocate(GetParam().limit / 4));
    blocks.push_back(allocate(4_KiB));
    (void)bench.pool().Trim(GetParam().limit / 8);
    const bool clean = bench.ground().calls < k;
    bench.ground().fail_at = 0;
    ASSERT_TRUE(bench.pool().CheckInvariants().ok()) << bench.pool().CheckInvariants() << " after call " << k;
    ASSERT_EQ(bench.pool().stats().held, bench.ground().held) << "after call " << k;
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      if (blocks[i] && (i % 2 == 1 || i >= 12)) {
        ASSERT_TRUE(bench.pool().Free(*blocks[i]).ok());
      }
    }
    ASSERT_NO_FATAL_FAILURE(bench.CheckNothingLeft()) << "after call " << k;
    if (clean) {
      std::printf("the sweep saw %llu calls\n", static_cast<unsigned long long>(k - 1));
      break;
    }
  }
}

TEST_P(PoolPromiseTest, ASourceThatAlwaysRefusesIsNoEndlessLoop) {
  Bench bench(GetParam(), 1);
  bench.ground().always_refuse = true;
  for (const std::uint64_t bytes : {1u, 2'559u, 2'560u, 1u << 20, 3u << 20}) {
    const absl::StatusOr<Block> block = bench.pool().Allocate(Bytes(bytes));
    EXPECT_TRUE(absl::IsResourceExhausted(block.status())) << block.status();
  }
  EXPECT_LT(bench.ground().calls, 50u);
  bench.ground().always_refuse = false;
  ASSERT_NO_FATAL_FAILURE(bench.Allocate());
  ASSERT_NO_FATAL_FAILURE(bench.CheckNothingLeft());
}

TEST_P(PoolPromiseTest, AHigherLimitRefusesNothingThatALowerOneGave) {
  const unsigned seed = TestSeed();
  // Only allocations, in pages of one class: then the sizes alone decide whether a request fits.
  for (const std::uint64_t extra : {1u, 3u, 8u}) {
    Case lower = GetParam();
    lower.classes = {kPage};
    lower.stock = false;
    Case higher = lower;
    higher.limit += kPage * extra;
    Bench a(lower, seed);
    Bench b(higher, seed);
    for (int i = 0; i < 300; ++i) {
      ASSERT_NO_FATAL_FAILURE(a.Allocate());
      ASSERT_NO_FATAL_FAILURE(b.Allocate());
      if (a.refusals() > 0) break;
      ASSERT_EQ(b.refusals(), 0u) << "allocation " << i;
    }
  }
}

const Case kMixes[] = {{"Pages", 48_MiB, 2_MiB, {2_MiB}, 16_MiB},
                       {"PagesInSteps", 64_MiB, 16_MiB, {2_MiB}, 32_MiB},
                       {"TwoClasses", 96_MiB, 32_MiB, {2_MiB, 32_MiB}, 48_MiB},
                       {"OddClasses", 64_MiB, 12_MiB, {2_MiB, 6_MiB, 10_MiB}, 24_MiB},
                       {"AllClasses", 800_MiB, 256_MiB, {2_MiB, 32_MiB, 256_MiB}, 300_MiB},
                       {"Stock", 128_MiB, 32_MiB, {2_MiB, 32_MiB}, 32_MiB, true}};

INSTANTIATE_TEST_SUITE_P(Mixes, PoolPromiseTest, ::testing::ValuesIn(kMixes),
                         [](const auto& tested) { return tested.param.name; });

// True once a refusal that was not due is found, within a few runs of every mix.
bool BreaksThePromise(const GrowthPolicy& policy, unsigned seed) {
  for (const Case& test : kMixes) {
    for (unsigned round = 0; round < 4; ++round) {
      Bench bench(test, seed + round, policy);
      for (int step = 0; step < kSteps; ++step) {
        Step(bench, test);
        if (!bench.broken().empty()) {
          std::printf("%s, step %d: %s\n", test.name, step, bench.broken().c_str());
          return true;
        }
      }
    }
  }
  return false;
}

constexpr unsigned kMutantSeed = 7;

TEST(PoolPromiseMutantTest, APoolThatMovesNoIdleChunksIsFound) {
  EXPECT_TRUE(BreaksThePromise({.moves_idle_chunks = false}, kMutantSeed));
}

TEST(PoolPromiseMutantTest, APoolThatLooksAtFewPlacesIsFound) {
  EXPECT_TRUE(BreaksThePromise({.searches_every_place = false}, kMutantSeed));
}

TEST(PoolPromiseMutantTest, APoolThatExchangesNoLargeChunksIsFound) {
  EXPECT_TRUE(BreaksThePromise({.exchanges_large_chunks = false}, kMutantSeed));
}

}  // namespace
}  // namespace lgpu
