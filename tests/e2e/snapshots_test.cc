// Snapshots of real programs: their blocks as lgpud tells them.

#include <signal.h>

#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lgpu/memory.h"
#include "tests/e2e/harness.h"

namespace lgpu::testing {
namespace {

class SnapshotsTest : public E2eTest {
 protected:
  struct Told {
    std::vector<v1::MemorySnapshotPart::Session> sessions;
    std::vector<v1::MemorySnapshotPart::Device> devices;
    std::size_t blocks = 0;
    std::uint64_t live_bytes = 0;
    std::vector<std::string> ops;
  };
  absl::StatusOr<Told> Snapshot(const std::string& lease, std::uint64_t wait_ms = 20'000) {
    v1::GetMemorySnapshotRequest request;
    request.set_lease(lease);
    request.set_wait_ms(wait_ms);
    Told told;
    const absl::Status status = control_->GetMemorySnapshot(request, [&](const v1::MemorySnapshotPart& part) {
      if (part.has_session()) told.sessions.push_back(part.session());
      if (part.has_device()) told.devices.push_back(part.device());
      for (const std::string& name : part.op_names()) told.ops.push_back(name);
      told.blocks += static_cast<std::size_t>(part.blocks().bytes_size());
      for (int i = 0; i < part.blocks().bytes_size(); ++i) {
        if (part.blocks().state(i) == v1::BlockList::STATE_LIVE) told.live_bytes += part.blocks().bytes(i);
      }
    });
    if (!status.ok()) return status;
    return told;
  }
};

TEST_F(SnapshotsTest, TellsEveryBlockAlsoAfterTheDaemonWasStartedAgain) {
  StartInDirectory();
  absl::StatusOr<LogicalMemory> memory =
      LogicalMemory::Open({.memory_limit = 512_MiB, .lease_name = "mine", .endpoint = daemon_->dir()});
  ASSERT_TRUE(memory.ok()) << memory.status();
  constexpr std::size_t kBlocks = 100'000;  // many pages
  std::vector<Block> blocks;
  for (std::size_t i = 0; i < kBlocks; ++i) {
    const absl::StatusOr<Block> block = memory->Allocate(Bytes(256 + i % 7 * 512));
    ASSERT_TRUE(block.ok()) << block.status();
    blocks.push_back(*block);
  }
  for (int life = 0; life < 2; ++life) {
    const absl::StatusOr<Told> told = Snapshot("mine");
    ASSERT_TRUE(told.ok()) << told.status();
    ASSERT_EQ(told->devices.size(), 1u);
    EXPECT_EQ(told->devices[0].code(), 0) << told->devices[0].message();
    EXPECT_EQ(told->devices[0].region().live_blocks(), kBlocks);
    EXPECT_GE(told->blocks, kBlocks);
    EXPECT_EQ(told->live_bytes, memory->GetStats()->used.count());
    if (life == 0) {
      Restart();
      EXPECT_TRUE(Eventually([&] { return IsBack(::getpid()); }));
    }
  }
  for (const Block& block : blocks) ASSERT_TRUE(memory->Free(block, nullptr).ok());
  EXPECT_TRUE(memory->Close().ok());
}

TEST_F(SnapshotsTest, AStoppedProgramCostsItsAskerOneDeadlineAndAnEndedOneNothing) {
  StartDaemon();
  auto one = StartClient();
  ASSERT_THAT(Ask(*one, absl::StrCat("open c lease_name=shared limit=", 64 * kMiB)),
              ::testing::StartsWith("ok "));
  ASSERT_THAT(Alloc(*one, "t", 4), ::testing::StartsWith("ok"));
  one->Signal(SIGSTOP);
  absl::StatusOr<Told> told = Snapshot("shared", 100);
  ASSERT_TRUE(told.ok()) << told.status();
  ASSERT_EQ(told->devices.size(), 1u);
  EXPECT_EQ(told->devices[0].code(), static_cast<int>(absl::StatusCode::kDeadlineExceeded));
  one->Signal(SIGCONT);
  told = Snapshot("shared");
  ASSERT_TRUE(told.ok()) << told.status();
  EXPECT_EQ(told->devices[0].code(), 0) << told->devices[0].message();
  EXPECT_GE(told->live_bytes, 4 * kMiB);
  one->Signal(SIGKILL);
  one->Wait();
  EXPECT_TRUE(Eventually([&] { return absl::IsNotFound(Snapshot("shared").status()); }));
}

}  // namespace
}  // namespace lgpu::testing
