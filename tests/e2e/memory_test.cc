// LogicalMemory in this process beside a real daemon and another program.

#include "lgpu/memory.h"

#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/e2e/harness.h"

namespace lgpu::testing {
namespace {

class MemoryTest : public E2eTest {
 protected:
  std::optional<LogicalMemory> Open(Bytes limit) {
    absl::StatusOr<LogicalMemory> memory =
        LogicalMemory::Open({.memory_limit = limit, .lease_name = "mine", .endpoint = daemon_->dir()});
    EXPECT_TRUE(memory.ok()) << memory.status();
    return memory.ok() ? std::optional<LogicalMemory>(*std::move(memory)) : std::nullopt;
  }
};

TEST_F(MemoryTest, DaemonsNumbersAreTheMemorysOwn) {
  StartDaemon();
  const std::optional<LogicalMemory> memory = Open(64_MiB);
  ASSERT_TRUE(memory);
  std::vector<Block> blocks;
  for (std::uint64_t i = 1; i <= 20; ++i) {
    const absl::StatusOr<Block> block = memory->Allocate(Bytes(i * 70'001));
    ASSERT_TRUE(block.ok()) << block.status();
    blocks.push_back(*block);
  }
  for (std::size_t i = 0; i < 5; ++i) ASSERT_TRUE(memory->Free(blocks[i], nullptr).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(
      memory->Allocate(64_MiB, {.timeout = std::chrono::milliseconds(0)}).status()));
  const absl::StatusOr<MemoryStats> own = memory->GetStats();
  ASSERT_TRUE(own.ok());
  EXPECT_EQ(own->live_blocks, 15u);
  // The daemon reads the counters once a second, and the pool may grow ahead meanwhile.
  EXPECT_TRUE(Eventually([&] {
    const v1::StatsSnapshot stats = Stats();
    if (stats.leases_size() != 1 || stats.leases(0).devices_size() != 1) return false;
    const v1::LogicalDeviceStats& device = stats.leases(0).devices(0);
    return device.used_bytes() == own->used.count() && device.requested_bytes() == own->requested.count() &&
           device.peak_used_bytes() == own->peak_used.count() && device.live_blocks() == own->live_blocks &&
           device.held_bytes() == memory->GetStats()->held.count();
  }));
  for (std::size_t i = 5; i < blocks.size(); ++i) ASSERT_TRUE(memory->Free(blocks[i], nullptr).ok());
  EXPECT_TRUE(memory->Close().ok());
}

TEST_F(MemoryTest, IdleMemoryGoesToAnotherProgramThatIsShortOfIt) {
  StartDaemon({.simulate = "256MiB"});
  const std::optional<LogicalMemory> memory = Open(200_MiB);
  ASSERT_TRUE(memory);
  const absl::StatusOr<Block> block = memory->Allocate(180_MiB);
  ASSERT_TRUE(block.ok()) << block.status();
  auto other = StartClient();
  ASSERT_THAT(Ask(*other, absl::StrCat("open c timeout=0 limit=", 200 * kMiB)), ::testing::StartsWith("ok"));
  EXPECT_THAT(Alloc(*other, "t", 150), ::testing::HasSubstr("RESOURCE_EXHAUSTED"));
  ASSERT_EQ(Ask(*other, "drop c"), "ok");
  ASSERT_TRUE(memory->Free(*block, nullptr).ok());
  // This process may need some time to give it back.
  ASSERT_THAT(Ask(*other, absl::StrCat("open c timeout=50000 limit=", 200 * kMiB)),
              ::testing::StartsWith("ok"));
  EXPECT_THAT(Alloc(*other, "t", 150), ::testing::StartsWith("ok"));
  const absl::Status refused = memory->Allocate(180_MiB, {.timeout = std::chrono::milliseconds(0)}).status();
  const std::optional<Refusal> refusal = GetRefusal(refused);
  ASSERT_TRUE(refusal) << refused;
  EXPECT_EQ(refusal->reason, RefusalReason::kCard);
  ASSERT_FALSE(refusal->holders.empty());
  EXPECT_EQ(refusal->holders[0].pid, other->pid());
  other->WriteLine("exit");
  EXPECT_EQ(other->Wait(), 0);
  EXPECT_TRUE(memory->Close().ok());
}

TEST_F(MemoryTest, LeaseLastsUntilTheLastExportedBlockGoes) {
  StartDaemon();
  std::optional<LogicalMemory> memory = Open(64_MiB);
  ASSERT_TRUE(memory);
  const absl::StatusOr<Block> block = memory->Allocate(4_MiB);
  ASSERT_TRUE(block.ok());
  absl::StatusOr<std::shared_ptr<void>> owner = memory->Export(*block, nullptr);
  ASSERT_TRUE(owner.ok());
  memory.reset();
  EXPECT_GE(HeldBytes(), 4 * kMiB);
  EXPECT_EQ(Stats().leases_size(), 1);
  owner->reset();
  EXPECT_TRUE(Eventually([&] { return HeldBytes() == 0 && Stats().leases_size() == 0; }));
}

TEST_F(MemoryTest, BlocksStayWhereTheyAreWhileTheDaemonRestarts) {
  StartInDirectory();
  const std::optional<LogicalMemory> memory = Open(64_MiB);
  ASSERT_TRUE(memory);
  const absl::StatusOr<Block> block = memory->Allocate(4_MiB);
  ASSERT_TRUE(block.ok());
  block->address[0] = std::byte{7};
  Restart();
  EXPECT_EQ(block->address[0], std::byte{7});
  const absl::StatusOr<Block> more = memory->Allocate(40_MiB);
  ASSERT_TRUE(more.ok()) << more.status();
  EXPECT_TRUE(memory->Free(*more, nullptr).ok());
  EXPECT_TRUE(memory->Free(*block, nullptr).ok());
  EXPECT_TRUE(memory->Close().ok());
}

}  // namespace
}  // namespace lgpu::testing
