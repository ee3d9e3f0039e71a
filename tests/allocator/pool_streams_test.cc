// Memory that streams are not done with: with streams that a test drives by hand, and with the simulated
// backend's, on which ops really run later.

#include <gmock/gmock.h>

#include <atomic>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "allocator/device/backend_fences.h"
#include "tests/support/fake_stream_fences.h"
#include "tests/support/pool_fixture.h"
#include "tests/support/test_seed.h"

namespace lgpu {
namespace {

class PoolStreamsTest : public PoolFixture {
 protected:
  void OpenWithFences(Bytes limit = 16_MiB) {
    fences_ = std::make_shared<FakeStreamFences>();
    Open({.limit = limit, .options = {.fences = fences_}});
  }
  std::shared_ptr<FakeStreamFences> fences_;
};

TEST_F(PoolStreamsTest, OneStreamNeedsNoFence) {
  OpenWithFences();
  for (int i = 0; i < 1000; ++i) {
    fences_->Queue(0);
    const Block a = Must(Bytes(1) * (1 + static_cast<std::uint64_t>(i) * 1777));
    MustFree(a);
  }
  EXPECT_EQ(fences_->records(), 0u);
  EXPECT_EQ(pool_->stats().fences_recorded, 0u);
}

TEST_F(PoolStreamsTest, AStreamHasItsOwnBlocksBackAtOnce) {
  OpenWithFences();
  for (const Bytes bytes : {4_KiB, 3_MiB}) {
    const Block first = Must(bytes, {.stream = 2});
    fences_->Queue(2);
    MustFree(first);
    EXPECT_EQ(pool_->stats().fenced, first.bytes);
    EXPECT_EQ(pool_->stats().used, Bytes());
    EXPECT_TRUE(absl::IsInvalidArgument(pool_->Free(first)));
    const Block again = Must(bytes, {.stream = 2});
    EXPECT_EQ(again.address, first.address);
    EXPECT_EQ(pool_->stats().fenced, Bytes());
    EXPECT_TRUE(absl::IsInvalidArgument(pool_->Free(first))) << "its handle is another one now";
    ExpectSound();
    // Home is another stream.
    MustFree(again);
    const Block other = Must(bytes);
    EXPECT_NE(other.address, first.address);
    MustFree(other);
    fences_->Finish(2);
    ASSERT_TRUE(pool_->Trim(Bytes()).ok());
    EXPECT_EQ(pool_->stats().fenced, Bytes());
    ExpectSound();
  }
  EXPECT_EQ(fences_->waits(), 0u);
  fences_->Finish(0);
  ExpectEmptyAfterTrim();
}

TEST_F(PoolStreamsTest, ABlockThatAnotherStreamUsedWaitsForIt) {
  OpenWithFences();
  for (const Bytes bytes : {8_KiB, 4_MiB}) {
    const Block block = Must(bytes);
    fences_->Queue(3);
    ASSERT_TRUE(pool_->UseOn(block, 3).ok());
    ASSERT_TRUE(pool_->UseOn(block, 3).ok()) << "saying it twice is fine";
    ASSERT_TRUE(pool_->UseOn(block, 0).ok()) << "its own stream";
    MustFree(block);
    EXPECT_TRUE(absl::IsInvalidArgument(pool_->UseOn(block, 3)));
    const Block other = Must(bytes);
    EXPECT_NE(other.address, block.address);
    ASSERT_TRUE(pool_->Trim(Bytes()).ok());
    EXPECT_EQ(pool_->stats().fenced, block.bytes);
    fences_->Finish(3);
    ASSERT_TRUE(pool_->Trim(Bytes()).ok());
    EXPECT_EQ(pool_->stats().fenced, Bytes());
    MustFree(other);
    ExpectSound();
  }
}

TEST_F(PoolStreamsTest, OneFenceForABatch) {
  OpenWithFences(64_MiB);
  std::vector<Block> blocks;
  for (int i = 0; i < 500; ++i) blocks.push_back(Must(16_KiB, {.stream = 1}));
  const std::uint64_t before = fences_->records();
  fences_->Queue(1);
  for (const Block& block : blocks) MustFree(block);
  ASSERT_TRUE(pool_->Trim(Bytes()).ok());
  EXPECT_EQ(fences_->records(), before + 1);
  EXPECT_EQ(pool_->stats().fenced, 16_KiB * 500);
  fences_->Finish(1);
  ASSERT_TRUE(pool_->Trim(Bytes()).ok());
  EXPECT_EQ(pool_->stats().fenced, Bytes());
}

TEST_F(PoolStreamsTest, AnotherStreamIsOrderedBehindHomesWork) {
  OpenWithFences();
  const Block home = Must(4_MiB);
  fences_->Queue(0);
  MustFree(home);
  const Block other = Must(4_MiB, {.stream = 5});
  ASSERT_EQ(fences_->ordered().size(), 1u);
  EXPECT_EQ(fences_->ordered()[0].waiter, 5u);
  EXPECT_EQ(fences_->ordered()[0].stream, 0u);
  EXPECT_EQ(fences_->ordered()[0].value, 1u);
  EXPECT_EQ(fences_->waits(), 0u) << "the host does not wait";
  // Nothing was freed at home since.
  const Block more = Must(1_MiB, {.stream = 5});
  EXPECT_EQ(fences_->ordered().size(), 1u);
  MustFree(other);
  MustFree(more);
}

// A stream that fills a block for home waits for earlier users of the memory, not for all work of home.
TEST_F(PoolStreamsTest, AFillingStreamWaitsForTheMemorysOwnPastOnly) {
  OpenWithFences(64_MiB);
  const Block before = Must(4_MiB);
  const Block apart = Must(3_MiB);
  const Block behind = Must(4_MiB);
  fences_->Queue(0);
  MustFree(apart);  // home's queued work does not use it
  const Block fresh = Must(4_MiB, {.filled_on = 1});
  EXPECT_TRUE(fences_->ordered().empty());
  MustFree(fresh);
  const Block reused = Must(4_MiB, {.filled_on = 1});
  ASSERT_EQ(reused.address, fresh.address);
  ASSERT_EQ(fences_->ordered().size(), 1u);
  EXPECT_EQ(fences_->ordered()[0].waiter, 1u);
  EXPECT_EQ(fences_->ordered()[0].stream, 0u);
  EXPECT_EQ(fences_->ordered()[0].value, 1u);
  fences_->Queue(0);
  MustFree(reused);
  EXPECT_EQ(pool_->stats().fenced, Bytes()) << "it is home's";
  fences_->Finish(0);
  const Block settled = Must(4_MiB, {.filled_on = 1});
  EXPECT_EQ(settled.address, reused.address);
  EXPECT_EQ(fences_->ordered().size(), 1u) << "what home had to do with it is done";
  EXPECT_EQ(fences_->waits(), 0u) << "the host never waits";
  MustFree(settled);
  MustFree(before);
  MustFree(behind);
  ExpectSound();
}

TEST_F(PoolStreamsTest, FillingIsForLargeBlocksOfHome) {
  OpenWithFences();
  EXPECT_TRUE(absl::IsInvalidArgument(pool_->Allocate(64_KiB, {.filled_on = 1}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(pool_->Allocate(1_MiB, {.stream = 2, .filled_on = 1}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(pool_->Allocate(1_MiB, {.filled_on = 64}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(pool_->Allocate(1_MiB, {.filled_on = 1, .scratch = true}).status()));
  Open({.limit = 16_MiB});
  EXPECT_TRUE(absl::IsInvalidArgument(pool_->Allocate(1_MiB, {.filled_on = 1}).status()))
      << "without fences there is one stream";
}

TEST_F(PoolStreamsTest, FencedMemoryIsWaitedForBeforeARefusal) {
  OpenWithFences(8_MiB);
  const Block block = Must(6_MiB, {.stream = 1});
  fences_->Queue(1);
  MustFree(block);
  const Block home = Must(4_MiB);
  EXPECT_EQ(fences_->waits(), 1u);
  EXPECT_EQ(pool_->stats().fence_waits, 1u);
  EXPECT_EQ(MustRefuse(5_MiB).used, 4_MiB);
  MustFree(home);
  ExpectSound();
}

TEST_F(PoolStreamsTest, FencedMemoryIsWaitedForWhereTheCardIsFull) {
  OpenWithFences(32_MiB);
  std::vector<Block> blocks;
  for (int i = 0; i < 8; ++i) blocks.push_back(Must(1_MiB + 256_KiB, {.stream = 1}));
  fences_->Queue(1);
  for (const Block& block : blocks) MustFree(block);
  upstream_->card = pool_->stats().held.count();
  const Block home = Must(6_MiB);
  EXPECT_EQ(fences_->waits(), 1u);
  EXPECT_EQ(pool_->stats().fenced, Bytes());
  MustFree(home);
  ExpectSound();
}

TEST_F(PoolStreamsTest, AParkedBlockNeedsNoOrder) {
  OpenWithFences();
  const Block first = Must(1_MiB, {.stream = 1});
  MustFree(first);
  MustFree(Must(2_MiB));
  const Block again = Must(1_MiB, {.stream = 1});
  EXPECT_EQ(again.address, first.address);
  EXPECT_TRUE(fences_->ordered().empty());
  MustFree(again);
}

TEST_F(PoolStreamsTest, ChunksMoveOnlyBehindTheirFences) {
  OpenWithFences(16_MiB);
  std::vector<Block> blocks;
  for (int i = 0; i < 8; ++i) blocks.push_back(Must(2_MiB));
  for (std::size_t i = 0; i < 8; i += 2) MustFree(blocks[i]);
  fences_->Queue(0);  // work that uses the freed blocks
  EXPECT_EQ(*pool_->Trim(1_TiB), Bytes()) << "nothing has passed";
  const Block large = Must(6_MiB);
  EXPECT_EQ(fences_->waits(), 1u) << "moves chunks, for which it had to wait";
  EXPECT_GE(pool_->stats().remapped_chunks, 2u);
  MustFree(large);
  for (std::size_t i = 1; i < 8; i += 2) MustFree(blocks[i]);
  fences_->Finish(0);
  ExpectEmptyAfterTrim();
}

TEST_F(PoolStreamsTest, AFenceThatCannotBeRecordedLosesNothing) {
  OpenWithFences(8_MiB);
  const Block block = Must(6_MiB, {.stream = 1});
  fences_->Queue(1);
  MustFree(block);
  fences_->FailRecords(true);
  EXPECT_EQ(pool_->Allocate(4_MiB).status().message(), "injected: Record");
  EXPECT_FALSE(pool_->Trim(1_TiB).ok());
  EXPECT_EQ(pool_->stats().fenced, 6_MiB);
  ExpectSound();
  fences_->FailRecords(false);
  MustFree(Must(4_MiB));
  fences_->Finish(0);
  ExpectEmptyAfterTrim();
}

// The two threads meet somewhere in the list, if each has a core. Either UseOn comes first there, and the
// block waits for the stream; or UseOn finds no live block.
TEST_F(PoolStreamsTest, AFreeThatMeetsAUseOnOfTheSameBlockSucceeds) {
  OpenWithFences(64_MiB);
  constexpr int kRounds = 5'000;
  std::vector<Block> blocks(64);
  std::atomic<int> made{0}, started{0}, used{0};  // the last round that got so far
  std::thread user([&] {
    for (int i = 1; i <= kRounds; ++i) {
      while (made != i) std::this_thread::yield();
      started = i;
      for (const Block& block : blocks) {
        const absl::Status status = pool_->UseOn(block, 1);
        EXPECT_TRUE(status.ok() || absl::IsInvalidArgument(status)) << status;
        if (!status.ok()) break;
      }
      used = i;
    }
  });
  int failures = 0;
  for (int i = 1; i <= kRounds; ++i) {
    for (Block& block : blocks) block = Must(4_KiB);
    made = i;
    while (started != i) std::this_thread::yield();
    for (auto block = blocks.rbegin(); block != blocks.rend(); ++block) {
      failures += pool_->Free(*block).ok() ? 0 : 1;
    }
    while (used != i) std::this_thread::yield();
  }
  user.join();
  EXPECT_EQ(failures, 0);
  ExpectEmptyAfterTrim();
}

TEST_F(PoolStreamsTest, WrongStreamsAreErrors) {
  Open({});
  EXPECT_TRUE(absl::IsInvalidArgument(pool_->Allocate(1_KiB, {.stream = 1}).status()));
  OpenWithFences();
  EXPECT_TRUE(absl::IsInvalidArgument(pool_->Allocate(1_KiB, {.stream = kMaxStreams}).status()));
}

TEST_F(PoolStreamsTest, ManyThreadsAndStreams) {
  const unsigned seed = TestSeed();
  OpenWithFences(24_MiB);
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(seed + t);
      std::vector<std::pair<Block, std::byte>> live;
      for (int i = 0; i < 1500; ++i) {
        const StreamId stream = random() % 3 == 0 ? t : 0;
        const auto block = pool_->Allocate(Bytes(1 + random() % (random() % 2 == 0 ? 30'000 : 2'000'000)),
                                           {.stream = stream});
        if (block.ok()) {
          const auto mark = static_cast<std::byte>(random());
          block->address[0] = mark;
          live.emplace_back(*block, mark);
          fences_->Queue(stream);
          if (random() % 4 == 0) {
            EXPECT_TRUE(pool_->UseOn(*block, random() % 4).ok());
          }
        } else {
          EXPECT_TRUE(absl::IsResourceExhausted(block.status())) << block.status();
        }
        while (!live.empty() && (live.size() > 10 || random() % 3 == 0)) {
          std::swap(live[random() % live.size()], live.back());
          EXPECT_EQ(live.back().first.address[0], live.back().second);
          EXPECT_TRUE(pool_->Free(live.back().first).ok());
          live.pop_back();
        }
        if (random() % 16 == 0) fences_->Finish(random() % 4);
        if (random() % 128 == 0) {
          EXPECT_TRUE(pool_->CheckInvariants().ok()) << pool_->CheckInvariants();
        }
      }
      for (const auto& [block, mark] : live) EXPECT_TRUE(pool_->Free(block).ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (StreamId stream = 0; stream < 4; ++stream) fences_->Finish(stream);
  ExpectEmptyAfterTrim();
}

// ---- the simulated backend's streams

struct Arguments {
  std::atomic<bool>* gate;  // null: none
  std::byte* address;
  std::size_t bytes;
  unsigned char value;
};

// Waits until the host opens the gate, then fills.
void Fill(const void* arguments) {
  Arguments fill;
  std::memcpy(&fill, arguments, sizeof(fill));
  while (fill.gate != nullptr && !*fill.gate) std::this_thread::yield();
  std::memset(fill.address, fill.value, fill.bytes);
}

class PoolOnDeviceTest : public PoolFixture {
 protected:
  void OpenWithStreams(Bytes limit) {
    Open({.limit = limit, .asynchronous = true});
    const auto fences = std::make_shared<BackendFences>(*backend_);
    for (int i = 0; i < 2; ++i) {
      streams_.push_back(*backend_->CreateStream(0, 0));
      ASSERT_EQ(*fences->Add(streams_.back()), static_cast<StreamId>(i));
    }
    auto source = FakeRegionSource::Make(*backend_, {.limit = limit, .upstream = upstream_});
    ASSERT_TRUE(source.ok()) << source.status();
    pool_ = std::make_unique<Pool>(*std::move(source), PoolOptions{.fences = fences});
  }
  void Launch(StreamId stream, const Block& block, unsigned char value, std::atomic<bool>* gate = nullptr) {
    const Arguments arguments{gate, block.address, block.bytes.count(), value};
    const absl::Status status = backend_->Launch(
        streams_[stream],
        {.host_function = &Fill, .arguments = &arguments, .argument_bytes = sizeof(arguments)});
    EXPECT_TRUE(status.ok()) << status;
  }
  // The block's byte when its stream is done; -1: its bytes differ.
  int Read(StreamId stream, const Block& block) {
    std::vector<unsigned char> bytes(block.bytes.count());
    EXPECT_TRUE(backend_->CopyToHost(streams_[stream], bytes.data(), block.address, block.bytes).ok());
    return std::count(bytes.begin(), bytes.end(), bytes[0]) == static_cast<std::ptrdiff_t>(bytes.size())
               ? bytes[0]
               : -1;
  }
  void TearDown() override {
    pool_.reset();
    for (const StreamHandle stream : streams_) EXPECT_TRUE(backend_->DestroyStream(stream).ok());
  }
  std::vector<StreamHandle> streams_;
};

TEST_F(PoolOnDeviceTest, AStreamOverwritesNothingThatHomeStillWrites) {
  OpenWithStreams(4_MiB);
  std::atomic<bool> gate{false};
  const Block first = Must(4_MiB);
  Launch(0, first, 1, &gate);
  MustFree(first);
  // The same memory; there is no other.
  const Block second = Must(4_MiB, {.stream = 1});
  EXPECT_EQ(second.address, first.address);
  Launch(1, second, 2);
  gate = true;
  EXPECT_EQ(Read(1, second), 2) << "stream 1 wrote before the home stream was done";
  MustFree(second);
}

TEST_F(PoolOnDeviceTest, HomeWaitsForAnotherStreamsBlock) {
  OpenWithStreams(4_MiB);
  std::atomic<bool> gate{false};
  const Block first = Must(4_MiB);
  Launch(1, first, 1, &gate);
  ASSERT_TRUE(pool_->UseOn(first, 1).ok());
  MustFree(first);
  std::thread opener([&] { gate = true; });
  const Block second = Must(4_MiB);  // waits for stream 1
  EXPECT_TRUE(gate);
  Launch(0, second, 2);
  EXPECT_EQ(Read(0, second), 2);
  EXPECT_EQ(pool_->stats().fenced, Bytes());
  opener.join();
  MustFree(second);
}

TEST_F(PoolOnDeviceTest, MovedChunksAreDoneWithFirst) {
  OpenWithStreams(16_MiB);
  std::vector<Block> blocks;
  for (unsigned char i = 0; i < 8; ++i) {
    blocks.push_back(Must(2_MiB));
    Launch(0, blocks.back(), i);
  }
  std::atomic<bool> gate{false};
  for (std::size_t i = 0; i < 8; i += 2) {
    Launch(0, blocks[i], 99, &gate);  // would fault on an address that is not mapped any more
    MustFree(blocks[i]);
  }
  EXPECT_EQ(*pool_->Trim(1_TiB), Bytes());
  std::thread opener([&] { gate = true; });
  const Block large = Must(6_MiB);
  opener.join();
  Launch(0, large, 50);
  EXPECT_GE(pool_->stats().remapped_chunks, 2u);
  for (std::size_t i = 1; i < 8; i += 2) {
    EXPECT_EQ(Read(0, blocks[i]), static_cast<int>(i));
    MustFree(blocks[i]);
  }
  EXPECT_EQ(Read(0, large), 50);
  MustFree(large);
}

// A pattern in every block, written and read by kernels, survives moves of pages under unrelated blocks.
TEST_F(PoolOnDeviceTest, ContentsSurviveMoves) {
  std::mt19937 random(TestSeed());
  OpenWithStreams(64_MiB);
  struct Live {
    Block block;
    StreamId stream = 0;
    unsigned char value = 0;
  };
  std::vector<Live> live;
  for (int i = 0; i < 300 || (i < 3000 && pool_->stats().remapped_chunks == 0); ++i) {
    const StreamId stream = random() % 4 == 0 ? 1 : 0;
    const auto block =
        pool_->Allocate(Bytes(1 + random() % (random() % 2 == 0 ? 9'000'000 : 60'000)), {.stream = stream});
    if (block.ok()) {
      live.push_back({*block, stream, static_cast<unsigned char>(random())});
      Launch(stream, live.back().block, live.back().value);
    } else {
      ASSERT_TRUE(absl::IsResourceExhausted(block.status())) << block.status();
    }
    while (!live.empty() && (!block.ok() || live.size() > 40)) {
      std::swap(live[random() % live.size()], live.back());
      if (random() % 4 == 0) {
        ASSERT_EQ(Read(live.back().stream, live.back().block), live.back().value);
      }
      MustFree(live.back().block);
      live.pop_back();
      if (random() % 3 == 0) break;
    }
  }
  for (const Live& one : live) {
    ASSERT_EQ(Read(one.stream, one.block), one.value);
    MustFree(one.block);
  }
  std::printf("%llu chunks were moved\n", static_cast<unsigned long long>(pool_->stats().remapped_chunks));
  EXPECT_GT(pool_->stats().remapped_chunks, 0u);
  ExpectSound();
}

}  // namespace
}  // namespace lgpu
