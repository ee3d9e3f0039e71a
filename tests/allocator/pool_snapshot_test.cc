// The pool's reports: snapshot, picture, owners, trace.

#include <gmock/gmock.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <string>
#include <thread>

#include "allocator/pool/pool_blocks.h"
#include "tests/support/fake_stream_fences.h"
#include "tests/support/pool_fixture.h"
#include "tests/support/test_seed.h"

namespace lgpu {
namespace {

using ::testing::HasSubstr;

class PoolSnapshotTest : public PoolFixture {};

TEST_F(PoolSnapshotTest, ShowsEveryBlock) {
  Open({.limit = 64_MiB, .options = {.fences = std::make_shared<FakeStreamFences>()}});
  const Block a = Must(Bytes(1000), {.op = "MatMul"});
  const Block b = Must(3_MiB, {.op = "AddN", .stream = 2});
  const Block c = Must(Bytes(5000));
  const Block d = Must(2_MiB, {.stream = 1});
  MustFree(c);
  MustFree(d);
  const MemorySnapshot snapshot = pool_->Snapshot();
  ASSERT_EQ(snapshot.blocks.size(), 4u);
  std::map<BlockState, int> states;
  Bytes last;
  for (const BlockInfo& block : snapshot.blocks) {
    ++states[block.state];
    EXPECT_GE(block.offset, last);
    last = block.offset + block.bytes;
    if (block.op == "MatMul") {
      EXPECT_EQ(block.requested, Bytes(1000));
      EXPECT_EQ(block.bytes, a.bytes);
      EXPECT_EQ(block.stream, 0u);
      EXPECT_LT(block.age, std::chrono::minutes(1));
    } else if (block.op == "AddN") {
      EXPECT_EQ(block.bytes, 3_MiB);
      EXPECT_EQ(block.stream, 2u);
    }
  }
  EXPECT_EQ(states[BlockState::kLive], 2);
  EXPECT_EQ(states[BlockState::kCached], 1);
  EXPECT_EQ(states[BlockState::kFenced], 1);
  ASSERT_EQ(snapshot.owners.size(), 2u);
  EXPECT_EQ(snapshot.owners[0].op, "AddN");
  EXPECT_EQ(snapshot.owners[0].bytes, 3_MiB);
  EXPECT_EQ(snapshot.owners[0].blocks, 1u);
  Bytes mapped;
  for (const MemorySnapshot::Mapping& mapping : snapshot.mappings) mapped += mapping.bytes;
  EXPECT_EQ(mapped, snapshot.stats.held);
  MustFree(a);
  MustFree(b);
}

TEST_F(PoolSnapshotTest, LargestOwnersFirst) {
  Open({.limit = 64_MiB});
  Must(2_MiB, {.op = "MatMul"});
  Must(2_MiB, {.op = "MatMul"});
  Must(3_MiB, {.op = "Identity"});
  Must(1_MiB);
  const std::vector<MemoryOwner> owners = pool_->LargestOwners(2);
  ASSERT_EQ(owners.size(), 2u);
  EXPECT_EQ(owners[0].op, "MatMul");
  EXPECT_EQ(owners[0].bytes, 4_MiB);
  EXPECT_EQ(owners[0].blocks, 2u);
  EXPECT_EQ(owners[1].op, "Identity");
  EXPECT_EQ(pool_->LargestOwners(10).size(), 3u);
}

TEST_F(PoolSnapshotTest, AnyNumberOfOpsIsPossible) {
  Open({.limit = 64_MiB});
  for (int i = 0; i < 5000; ++i) Must(512_B, {.op = "op" + std::to_string(i)});
  const std::vector<MemoryOwner> owners = pool_->LargestOwners(5000);
  EXPECT_EQ(owners[0].op, "(other)");
  EXPECT_EQ(owners.size(), 4096u);
}

TEST_F(PoolSnapshotTest, JsonHasTheSchemaOfTheDocument) {
  Open({.limit = 64_MiB});
  const Block block = Must(Bytes(1000), {.op = "odd \"name\" \xff"});
  const nlohmann::json json = nlohmann::json::parse(SnapshotJson(pool_->Snapshot()));
  EXPECT_EQ(json.at("version"), 1);
  EXPECT_EQ(json.at("device"), "/device:GPU:0");
  EXPECT_EQ(json.at("granularity"), (2_MiB).count());
  EXPECT_EQ(json.at("stats").at("used"), 1024);
  EXPECT_EQ(json.at("stats").at("last_refusal"), RefusalReasonName(RefusalReason::kUnspecified));
  ASSERT_EQ(json.at("blocks").size(), 1u);
  const nlohmann::json& first = json.at("blocks")[0];
  EXPECT_EQ(first.at("bytes"), 1024);
  EXPECT_EQ(first.at("requested"), 1000);
  EXPECT_EQ(first.at("state"), "live");
  EXPECT_THAT(first.at("op").get<std::string>(), ::testing::StartsWith("odd \"name\" "));
  for (const char* key : {"offset", "stream", "age_seconds"}) EXPECT_TRUE(first.at(key).is_number()) << key;
  EXPECT_EQ(json.at("mappings").size(), 1u);
  EXPECT_EQ(json.at("owners")[0].at("blocks"), 1);
  MustFree(block);
}

TEST_F(PoolSnapshotTest, ThePictureShowsOccupancy) {
  Open({.limit = 64_MiB});
  const Block full = Must(4_MiB, {.op = "MatMul"});
  const Block half = Must(3_MiB);
  const std::string text = SnapshotText(pool_->Snapshot());
  EXPECT_THAT(text, HasSubstr("##"));
  EXPECT_THAT(text, HasSubstr("#5"));
  EXPECT_THAT(text, HasSubstr("memory of /device:GPU:0"));
  EXPECT_THAT(text, HasSubstr("4.00MiB       1 blocks  MatMul"));
  EXPECT_THAT(text, HasSubstr("(not said)"));
  MustFree(full);
  EXPECT_THAT(SnapshotText(pool_->Snapshot()), HasSubstr(".."));
  MustFree(half);
  ASSERT_TRUE(pool_->Trim(1_TiB).ok());
  EXPECT_FALSE(SnapshotText(pool_->Snapshot()).empty());
}

TEST_F(PoolSnapshotTest, SnapshotsAreWholeWhileOtherThreadsAllocate) {
  Open({.limit = 32_MiB});
  const unsigned seed = TestSeed();
  std::atomic<bool> done{false};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 2; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(seed + t);
      while (!done) {
        const auto block = pool_->Allocate(Bytes(1 + random() % 100'000), {.op = t == 0 ? "a" : "b"});
        EXPECT_TRUE(block.ok()) << block.status();
        EXPECT_TRUE(pool_->Free(*block).ok());
      }
    });
  }
  for (int i = 0; i < 200; ++i) {
    const MemorySnapshot snapshot = pool_->Snapshot();
    Bytes last;
    for (const BlockInfo& block : snapshot.blocks) {
      EXPECT_GE(block.offset, last);
      last = block.offset + block.bytes;
    }
    EXPECT_LE(pool_->LargestOwners(5).size(), 3u);
    EXPECT_LE(pool_->stats().used, 32_MiB);
  }
  done = true;
  for (std::thread& thread : threads) thread.join();
}

// Blocks above 64 KiB are in no front cache, so every change of theirs happens under the pool's lock.
TEST_F(PoolSnapshotTest, ASnapshotIsOfOneMomentWhileThreadsAllocateAndFree) {
  Open({.limit = 256_MiB});
  const unsigned seed = TestSeed();
  std::vector<Block> still;
  for (int i = 0; i < 30'000; ++i) still.push_back(Must(Bytes(512)));  // makes a scan take its time
  std::atomic<bool> done{false};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(seed + t);
      std::vector<Block> mine;
      while (!done) {
        if (mine.size() < 200 && random() % 2 == 0) {
          const auto block = pool_->Allocate(Bytes(70'000 + random() % 100'000));
          EXPECT_TRUE(block.ok()) << block.status();
          if (!block.ok()) break;
          mine.push_back(*block);
        } else if (!mine.empty()) {
          std::swap(mine[random() % mine.size()], mine.back());
          EXPECT_TRUE(pool_->Free(mine.back()).ok());
          mine.pop_back();
        }
      }
      for (const Block& block : mine) EXPECT_TRUE(pool_->Free(block).ok());
    });
  }
  for (int i = 0; i < 100 && !HasFailure(); ++i) {
    const MemorySnapshot snapshot = pool_->Snapshot();
    Bytes end, live;
    for (const BlockInfo& block : snapshot.blocks) {
      EXPECT_GE(block.offset, end) << "two blocks have the same bytes";
      end = block.offset + block.bytes;
      live += block.state == BlockState::kLive ? block.bytes : Bytes();
    }
    EXPECT_EQ(live, snapshot.stats.used);
    EXPECT_EQ(snapshot.blocks.size(), snapshot.stats.live_blocks);
  }
  done = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(pool_->Snapshot().blocks.size(), still.size());
  EXPECT_TRUE(pool_->CheckInvariants().ok());
}

TEST_F(PoolSnapshotTest, MoreBlocksThanAskedForAreRefused) {
  Open({.limit = 64_MiB});
  Must(1_MiB);
  Must(1_MiB);
  EXPECT_TRUE(pool_->Blocks(2).ok());
  const absl::Status refused = pool_->Blocks(1).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("/device:GPU:0 has 2 blocks; a snapshot has at most 1"));
}

// Without pages of files, which a system that is short of memory takes away.
std::size_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  std::size_t pages = 0, resident = 0, of_files = 0;
  statm >> pages >> resident >> of_files;
  return (resident - of_files) * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

TEST_F(PoolSnapshotTest, TheSystemHasTheMemoryOfASnapshotBackWithItsEnd) {
  constexpr std::size_t kBlocks = 200'000;
  Open({.limit = 256_MiB});
  for (std::size_t i = 0; i < kBlocks; ++i) Must(Bytes(512));
  ASSERT_TRUE(pool_->Blocks(kBlocks).ok());  // the heap keeps some memory of the first snapshot
  const std::size_t before = ResidentBytes();
  for (int i = 0; i < 5; ++i) {
    const absl::StatusOr<PoolBlocks> taken = pool_->Blocks(kBlocks);
    ASSERT_TRUE(taken.ok()) << taken.status();
    ASSERT_EQ(taken->blocks.size(), kBlocks);
    EXPECT_GE(ResidentBytes(), before + kBlocks * sizeof(BlockCopy) / 2);
  }
  EXPECT_LT(ResidentBytes(), before + kBlocks * sizeof(BlockCopy) / 2);
}

TEST_F(PoolSnapshotTest, TheTraceHasEveryAllocationAndFreeInOrder) {
  Open({.limit = 16_MiB});
  const std::string path = ::testing::TempDir() + "/pool_trace_" + std::to_string(getpid()) + ".csv";
  MustFree(Must(1_KiB));
  ASSERT_TRUE(pool_->StartTrace(path).ok());
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([this] {
      for (int i = 0; i < 3000; ++i) {
        const Block block = Must(Bytes(1 + static_cast<std::uint64_t>(i) % 70'000));
        MustFree(block);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(pool_->Allocate(1_GiB).ok());
  ASSERT_TRUE(pool_->StopTrace().ok());
  MustFree(Must(1_KiB));
  std::ifstream file(path);
  std::string line;
  ASSERT_TRUE(std::getline(file, line));
  EXPECT_EQ(line, "Thread,Time,Action,Pointer,Size,Stream");
  std::map<std::string, std::string> live;
  int allocations = 0;
  int failures = 0;
  while (std::getline(file, line)) {
    std::istringstream columns(line);
    std::string thread, time, action, pointer, size, stream;
    std::getline(columns, thread, ',');
    std::getline(columns, time, ',');
    std::getline(columns, action, ',');
    std::getline(columns, pointer, ',');
    std::getline(columns, size, ',');
    std::getline(columns, stream, ',');
    EXPECT_EQ(stream, "0x0");
    EXPECT_EQ(time.size(), std::string("13:35:26:000123").size());
    if (action == "allocate") {
      ++allocations;
      ASSERT_TRUE(live.emplace(pointer, size).second) << line;
    } else if (action == "free") {
      ASSERT_EQ(live[pointer], size) << line;
      live.erase(pointer);
    } else {
      EXPECT_EQ(action, "allocate failure");
      ++failures;
    }
  }
  EXPECT_EQ(allocations, 9000);
  EXPECT_EQ(failures, 1);
  EXPECT_TRUE(live.empty());
  std::remove(path.c_str());
  EXPECT_FALSE(pool_->StartTrace("/nowhere/at/all").ok());
  EXPECT_TRUE(pool_->StopTrace().ok());
}

TEST_F(PoolSnapshotTest, ABlockThatNoStreamCouldBeOrderedForIsOneFailureInTheTrace) {
  const auto fences = std::make_shared<FakeStreamFences>();
  Open({.limit = 16_MiB, .options = {.fences = fences}});
  const std::string path = ::testing::TempDir() + "/pool_trace_order_" + std::to_string(getpid()) + ".csv";
  MustFree(Must(1_MiB));
  ASSERT_TRUE(pool_->StartTrace(path).ok());
  fences->FailRecords(true);
  const absl::StatusOr<Block> block = pool_->Allocate(1_MiB, {.stream = 1});
  EXPECT_TRUE(absl::IsInternal(block.status())) << block.status();
  fences->FailRecords(false);
  ASSERT_TRUE(pool_->StopTrace().ok());
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  ASSERT_EQ(lines.size(), 2U) << "the columns' names, and the failure";
  EXPECT_THAT(lines[1], ::testing::HasSubstr(",allocate failure,"));
  EXPECT_EQ(pool_->stats().num_allocs, 1U);
  ExpectEmptyAfterTrim();
  std::remove(path.c_str());
}

TEST_F(PoolSnapshotTest, AFinishedTraceClosesItsFile) {
  Open({.limit = 16_MiB});
  const std::string path = ::testing::TempDir() + "/pool_traces_" + std::to_string(getpid()) + ".csv";
  const auto descriptors = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
  };
  const auto before = descriptors();
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(pool_->StartTrace(path).ok());
    ASSERT_TRUE(pool_->StopTrace().ok());
  }
  EXPECT_EQ(descriptors(), before);
  std::remove(path.c_str());
}

}  // namespace
}  // namespace lgpu
