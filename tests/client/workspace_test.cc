#include "client/session/workspace.h"

#include <atomic>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/pool_fixture.h"

namespace lgpu::internal {
namespace {

class WorkspaceTest : public PoolFixture {
 protected:
  void OpenWithWorkspace(Bytes limit) {
    workspace_.reset();
    Open({.limit = limit});
    workspace_ = std::make_unique<Workspace>(*pool_);
  }
  void TearDown() override { workspace_.reset(); }
  /// How many calls give nothing before one gives something; -1: not soon.
  int NullsUntilTaken() {
    for (int nulls = 0; nulls <= Workspace::kLongestPause * 2; ++nulls) {
      if (workspace_->Take(1_MiB) != nullptr) return nulls;
    }
    return -1;
  }
  Bytes Held() const { return pool_->stats().workspace; }

  std::unique_ptr<Workspace> workspace_;
};

TEST_F(WorkspaceTest, IsAnEighthOfTheLimitAndNeverMoreThan32MiB) {
  OpenWithWorkspace(16_MiB);
  EXPECT_EQ(workspace_->Size(), 2_MiB);
  EXPECT_EQ(Held(), Bytes());
  auto first = workspace_->Take(1_MiB);
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(first->bytes, 2_MiB);
  EXPECT_EQ(workspace_->Take(2_MiB), first) << "one for all";
  EXPECT_EQ(Held(), 2_MiB);
  EXPECT_EQ(pool_->stats().used, Bytes());
  first.reset();
  OpenWithWorkspace(1_GiB);
  EXPECT_EQ(workspace_->Size(), 32_MiB);
  OpenWithWorkspace(512_KiB);
  EXPECT_EQ(workspace_->Size(), Bytes()) << "too little to be of use";
  EXPECT_EQ(workspace_->Take(Bytes(1)), nullptr);
}

TEST_F(WorkspaceTest, AWorkspaceBelowTheNeededSizeIsNotGiven) {
  OpenWithWorkspace(256_MiB);
  const Bytes promised = workspace_->Size();
  upstream_->limit = (64_MiB).count();
  EXPECT_EQ(workspace_->Take(promised), nullptr);
  EXPECT_EQ(Held(), Bytes());
  EXPECT_EQ(workspace_->Take(8_MiB)->bytes, 8_MiB);
  upstream_->limit = (256_MiB).count();
  EXPECT_EQ(workspace_->Take(9_MiB)->bytes, 32_MiB) << "the limit rose again";
  EXPECT_EQ(Held(), 32_MiB) << "the small one is gone";
}

TEST_F(WorkspaceTest, IsFreedWhenItsLastUserLetsGo) {
  OpenWithWorkspace(16_MiB);
  auto mine = workspace_->Take(1_MiB);
  EXPECT_EQ(workspace_->GiveUp(), 2_MiB);
  EXPECT_EQ(Held(), 2_MiB) << "it is in use";
  EXPECT_EQ(workspace_->GiveUp(), Bytes());
  mine.reset();
  EXPECT_EQ(Held(), Bytes());
}

TEST_F(WorkspaceTest, TakeNeitherWaitsNorCountsARefusal) {
  OpenWithWorkspace(16_MiB);
  const Block block = Must(16_MiB);
  EXPECT_EQ(workspace_->Take(1_MiB), nullptr);
  ASSERT_TRUE(pool_->Free(block).ok());
  ASSERT_TRUE(pool_->Trim(1_TiB).ok());
  OpenWithWorkspace(256_MiB);
  upstream_->card = (16_MiB).count();
  EXPECT_EQ(workspace_->Take(1_MiB), nullptr);
  EXPECT_EQ(upstream_->waits, 0u);
  const std::uint64_t trips = pool_->stats().source_round_trips;
  for (int i = 0; i < Workspace::kPause; ++i) EXPECT_EQ(workspace_->Take(1_MiB), nullptr);
  EXPECT_EQ(pool_->stats().source_round_trips, trips) << "nor is it tried every time";
  EXPECT_EQ(pool_->stats().num_refusals, 0u);
}

TEST_F(WorkspaceTest, PausesGrowUnlessItWasOfUse) {
  OpenWithWorkspace(16_MiB);
  ASSERT_NE(workspace_->Take(1_MiB), nullptr);
  int expected = Workspace::kPause;
  for (int i = 0; i < 4; ++i, expected *= 2) {
    workspace_->GiveUp();
    EXPECT_EQ(NullsUntilTaken(), expected);
  }
  for (int i = 0; i < 4 * expected; ++i) ASSERT_NE(workspace_->Take(1_MiB), nullptr);
  workspace_->GiveUp();
  EXPECT_EQ(NullsUntilTaken(), Workspace::kPause);
  for (int i = 0; i < 10; ++i) {
    workspace_->GiveUp();
    expected = NullsUntilTaken();
  }
  EXPECT_EQ(expected, Workspace::kLongestPause);
}

TEST_F(WorkspaceTest, AShortageWaitsForUsersOfTheWorkspaceAndStopsNewOnes) {
  OpenWithWorkspace(16_MiB);
  auto mine = workspace_->Take(1_MiB);
  std::atomic<bool> free{false};
  absl::StatusOr<Block> block = absl::UnknownError("not yet");
  std::thread tensor([&] {
    const Workspace::Shortage shortage(*workspace_);
    free = true;
    EXPECT_EQ(Held(), Bytes());
    EXPECT_EQ(workspace_->Take(1_MiB), nullptr);
    block = pool_->Allocate(16_MiB);
  });
  // Once the other thread waits no thread gets a workspace.
  while (workspace_->Take(1_MiB) != nullptr) std::this_thread::yield();
  EXPECT_FALSE(free);
  mine.reset();
  tensor.join();
  ASSERT_TRUE(block.ok()) << block.status();
  EXPECT_EQ(pool_->stats().num_refusals, 0u);
  ASSERT_TRUE(pool_->Free(*block).ok());
  EXPECT_EQ(NullsUntilTaken(), Workspace::kPause);
}

TEST_F(WorkspaceTest, TensorsThatNeedAllMemoryAreNeverRefusedForTheWorkspace) {
  OpenWithWorkspace(16_MiB);
  std::atomic<bool> done{false};
  std::vector<std::thread> products;
  for (int i = 0; i < 2; ++i) {
    products.emplace_back([&] {
      while (!done) {
        const auto block = workspace_->Take(1_MiB);
        EXPECT_TRUE(block == nullptr || block->bytes == 2_MiB);
      }
    });
  }
  for (int i = 0; i < 200; ++i) {
    const Workspace::Shortage shortage(*workspace_);
    const absl::StatusOr<Block> block = pool_->Allocate(16_MiB);
    ASSERT_TRUE(block.ok()) << block.status();
    ASSERT_TRUE(pool_->Free(*block).ok());
  }
  done = true;
  for (std::thread& thread : products) thread.join();
  workspace_->GiveUp();
  EXPECT_EQ(Held(), Bytes());
  EXPECT_EQ(pool_->stats().num_refusals, 0u);
  ExpectSound();
}

}  // namespace
}  // namespace lgpu::internal
