#ifndef LGPU_TESTS_SUPPORT_POOL_FIXTURE_H_
#define LGPU_TESTS_SUPPORT_POOL_FIXTURE_H_

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <random>
#include <utility>

#include "allocator/device/simulated/simulated_backend.h"
#include "lgpu/pool.h"
#include "tests/support/failing_backend.h"
#include "tests/support/fake_region_source.h"

namespace lgpu {

/// A Pool over a simulated card and a source of its own process.
class PoolFixture : public ::testing::Test {
 protected:
  struct Shape {
    Bytes limit = 16_MiB;
    Bytes chunk = 2_MiB;
    bool asynchronous = false;
    PoolOptions options{};
  };

  void Open(const Shape& shape) {
    pool_.reset();
    backend_ = std::make_unique<FailingBackend>(
        MakeSimulatedBackend({.devices = {SimulatedDevice(0, 64_GiB, "test")},
                              .sparse = true,
                              .asynchronous = shape.asynchronous}));
    upstream_ = std::make_shared<FakeUpstream>();
    auto source = FakeRegionSource::Make(*backend_,
                                         {.limit = shape.limit, .chunk = shape.chunk, .upstream = upstream_});
    ASSERT_TRUE(source.ok()) << source.status();
    PoolOptions options = shape.options;
    options.device = "/device:GPU:0";
    pool_ = std::make_unique<Pool>(*std::move(source), std::move(options));
  }
  Block Must(Bytes bytes, const AllocateOptions& options = {}) {
    const absl::StatusOr<Block> block = pool_->Allocate(bytes, options);
    EXPECT_TRUE(block.ok()) << block.status();
    return block.ok() ? *block : Block{};
  }
  void MustFree(const Block& block) {
    const absl::Status status = pool_->Free(block);
    EXPECT_TRUE(status.ok()) << status;
  }
  Refusal MustRefuse(Bytes bytes) {
    const absl::StatusOr<Block> block = pool_->Allocate(bytes);
    EXPECT_TRUE(absl::IsResourceExhausted(block.status())) << block.status();
    return GetRefusal(block.status()).value_or(Refusal{});
  }
  void ExpectSound() const {
    const absl::Status status = pool_->CheckInvariants();
    ASSERT_TRUE(status.ok()) << status;
    ASSERT_EQ(pool_->stats().held, Bytes(upstream_->granted));
  }
  void ExpectEmptyAfterTrim() {
    const absl::StatusOr<Bytes> trimmed = pool_->Trim(1_TiB);
    EXPECT_TRUE(trimmed.ok()) << trimmed.status();
    const MemoryStats stats = pool_->stats();
    EXPECT_EQ(stats.used, Bytes());
    EXPECT_EQ(stats.requested, Bytes());
    EXPECT_EQ(stats.live_blocks, 0u);
    EXPECT_EQ(stats.cached, Bytes());
    EXPECT_EQ(stats.held, Bytes());
    EXPECT_EQ(upstream_->granted, 0u);
    EXPECT_EQ(upstream_->mapped, 0u);
    ExpectSound();
  }

  std::unique_ptr<FailingBackend> backend_;
  std::shared_ptr<FakeUpstream> upstream_;
  std::unique_ptr<Pool> pool_;
};

}  // namespace lgpu

#endif  // LGPU_TESTS_SUPPORT_POOL_FIXTURE_H_
