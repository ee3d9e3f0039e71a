#include "proto/wire/placement_ring.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "tests/support/test_seed.h"

namespace lgpu {
namespace {

constexpr std::uint64_t kSlots = PlacementRing::kSlots;

// A ring of zeros, as a new page is.
std::unique_ptr<PlacementRing> NewRing() { return std::make_unique<PlacementRing>(); }

// Every field follows from `number`, so that a mixture of two records shows.
PlacementEntry EntryOf(std::uint64_t number) {
  return {.op = static_cast<std::uint16_t>(number),
          .dtype = static_cast<std::uint16_t>(number >> 16),
          .requested = static_cast<std::uint16_t>(~number),
          .device = static_cast<std::uint16_t>(number * 3),
          .flags = static_cast<std::uint16_t>(number * 5),
          .source = static_cast<std::uint16_t>(number * 11),
          .output_bytes = number,
          .submitted_unix_ns = ~number,
          .host_ns = number * 7,
          .device_ns = number ^ 0x5555'5555'5555'5555};
}

TEST(PlacementRingTest, RecordsComeBackInOrder) {
  auto ring = NewRing();
  PlacementRingReader reader(ring.get());
  EXPECT_EQ(reader.Next(), std::nullopt);
  for (const std::uint64_t number :
       {std::uint64_t{0}, std::uint64_t{1}, ~std::uint64_t{0}, std::uint64_t{1} << 63}) {
    ring->Push(EntryOf(number));
  }
  EXPECT_EQ(reader.Next(), EntryOf(0));
  EXPECT_EQ(reader.Next(), EntryOf(1));
  EXPECT_EQ(reader.Next(), EntryOf(~std::uint64_t{0}));
  EXPECT_EQ(reader.Next(), EntryOf(std::uint64_t{1} << 63));
  EXPECT_EQ(reader.Next(), std::nullopt);
  EXPECT_EQ(reader.lost(), 0u);
}

TEST(PlacementRingTest, RecordsUnreadForALapAreOverwrittenAndCounted) {
  auto ring = NewRing();
  PlacementRingReader reader(ring.get());
  ring->Push(EntryOf(0));
  EXPECT_EQ(reader.Next(), EntryOf(0));
  for (std::uint64_t number = 1; number <= 3 * kSlots + 5; ++number) ring->Push(EntryOf(number));
  for (std::uint64_t number = 2 * kSlots + 6; number <= 3 * kSlots + 5; ++number) {
    ASSERT_EQ(reader.Next(), EntryOf(number));
  }
  EXPECT_EQ(reader.Next(), std::nullopt);
  EXPECT_EQ(reader.lost(), 2 * kSlots + 5);
  EXPECT_EQ(ring->dropped.load(), 0u);
}

// Ticket `ticket` was taken and its writer stopped: before it claimed the slot, or in the middle of writing.
enum class StoppedAt { kTicketTaken, kSlotClaimed };
class StoppedWriterTest : public ::testing::TestWithParam<StoppedAt> {
 protected:
  void TakeAndStop() {
    const std::uint64_t ticket = ring_->head.fetch_add(1);
    if (GetParam() == StoppedAt::kSlotClaimed) ring_->slots[ticket % kSlots].words[0].store(2 * ticket + 1);
  }
  void Finish(std::uint64_t ticket) { ring_->slots[ticket % kSlots].words[0].store(2 * ticket + 2); }

  std::unique_ptr<PlacementRing> ring_ = NewRing();
  PlacementRingReader reader_{ring_.get()};
};
INSTANTIATE_TEST_SUITE_P(Moments, StoppedWriterTest,
                         ::testing::Values(StoppedAt::kTicketTaken, StoppedAt::kSlotClaimed));

TEST_P(StoppedWriterTest, IsWaitedForWhileNothingLaterIsThere) {
  TakeAndStop();
  for (int i = 0; i < 5; ++i) EXPECT_EQ(reader_.Next(), std::nullopt);
  Finish(0);
  EXPECT_EQ(reader_.Next(), PlacementEntry({.op = 0, .requested = 0, .device = 0}));
  EXPECT_EQ(reader_.lost(), 0u);
}

TEST_P(StoppedWriterTest, IsSkippedOnceTwoCallsFoundItBehindAFinishedOne) {
  TakeAndStop();
  ring_->Push(EntryOf(1));
  EXPECT_EQ(reader_.Next(), std::nullopt);
  EXPECT_EQ(reader_.Next(), EntryOf(1));
  EXPECT_EQ(reader_.lost(), 1u);
  // Too late: the record was given up, and is not counted a second time.
  Finish(0);
  EXPECT_EQ(reader_.Next(), std::nullopt);
  EXPECT_EQ(reader_.lost(), 1u);
}

TEST_P(StoppedWriterTest, SeveralInARowCostOneEmptyAnswerEach) {
  TakeAndStop();
  TakeAndStop();
  ring_->Push(EntryOf(2));
  EXPECT_EQ(reader_.Next(), std::nullopt);
  EXPECT_EQ(reader_.Next(), std::nullopt);
  EXPECT_EQ(reader_.Next(), EntryOf(2));
  EXPECT_EQ(reader_.lost(), 2u);
}

TEST_P(StoppedWriterTest, IsSkippedAtOnceWhenTheProcessIsGone) {
  ring_->Push(EntryOf(0));
  TakeAndStop();
  TakeAndStop();
  reader_.WriterIsGone();
  EXPECT_EQ(reader_.Next(), EntryOf(0));
  EXPECT_EQ(reader_.Next(), std::nullopt);
  EXPECT_EQ(reader_.lost(), 2u);
}

TEST_P(StoppedWriterTest, LosesOnlyItsOwnSlotWhenTheRingGoesAround) {
  TakeAndStop();
  for (std::uint64_t ticket = 1; ticket < 2 * kSlots; ++ticket) ring_->Push(EntryOf(ticket));
  std::uint64_t read = 0;
  for (int empty = 0; empty < 3;) {
    const auto entry = reader_.Next();
    empty += entry ? 0 : 1;
    read += entry ? 1 : 0;
  }
  // The first lap is overwritten. In the second, the claimed slot is busy and drops one record; a slot that
  // was only promised is simply taken.
  const std::uint64_t dropped = GetParam() == StoppedAt::kSlotClaimed ? 1 : 0;
  EXPECT_EQ(ring_->dropped.load(), dropped);
  EXPECT_EQ(read, kSlots - dropped);
  EXPECT_EQ(reader_.lost(), kSlots + dropped);
}

TEST(PlacementRingTest, AWriterThatWasOvertakenLeavesTheLaterRecordAlone) {
  auto ring = NewRing();
  for (std::uint64_t ticket = 0; ticket <= kSlots; ++ticket) ring->Push(EntryOf(ticket));
  // A writer took ticket 0 a lap ago and goes on only now.
  ring->head.store(0);
  ring->Push(EntryOf(99));
  EXPECT_EQ(ring->dropped.load(), 1u);
  EXPECT_EQ(ring->slots[0].words[0].load(), 2 * kSlots + 2);
  EXPECT_EQ(ring->slots[0].words[3].load(), kSlots);
}

TEST(PlacementRingTest, ManyThreadsPushAndOneReads) {
  constexpr std::uint64_t kThreads = 4;
  constexpr std::uint64_t kRecords = 30000;
  auto ring = NewRing();
  PlacementRingReader reader(ring.get());
  std::atomic<std::uint64_t> finished = 0;
  std::vector<std::thread> producers;
  for (std::uint64_t thread = 0; thread < kThreads; ++thread) {
    producers.emplace_back([&ring, &finished, thread] {
      for (std::uint64_t i = 0; i < kRecords; ++i) ring->Push(EntryOf(thread << 32 | i));
      ++finished;
    });
  }
  std::uint64_t read = 0;
  std::vector<std::uint64_t> next_of_thread(kThreads, 0);
  const auto read_all = [&] {
    while (const auto entry = reader.Next()) {
      const std::uint64_t number = entry->output_bytes;
      ASSERT_EQ(*entry, EntryOf(number));
      const std::uint64_t thread = number >> 32;
      ASSERT_LT(thread, kThreads);
      // Later records of a thread come later.
      ASSERT_GE(number & 0xffff'ffff, next_of_thread[thread]);
      next_of_thread[thread] = (number & 0xffff'ffff) + 1;
      ++read;
    }
  };
  while (finished < kThreads) read_all();
  for (std::thread& producer : producers) producer.join();
  reader.WriterIsGone();
  read_all();
  EXPECT_EQ(read + reader.lost(), kThreads * kRecords);
  EXPECT_GT(read, 0u);
}

// Fills every word with a value that a hostile client might choose.
void Scribble(PlacementRing& ring, std::mt19937_64& random) {
  const std::uint64_t style = random() % 4;
  const std::uint64_t near = style == 3 ? random() : random() % (4 * kSlots);
  const auto word = [&]() -> std::uint64_t {
    switch (style) {
      case 0:
        return random();
      case 1:
        return random() % 2 == 0 ? 0 : ~std::uint64_t{0};
      default:
        return 2 * near + random() % 64;
    }
  };
  ring.head.store(style == 0 ? random() : near + random() % (2 * kSlots), std::memory_order_relaxed);
  ring.dropped.store(word(), std::memory_order_relaxed);
  for (std::uint64_t slot = 0; slot < kSlots; ++slot) {
    for (auto& target : ring.slots[slot].words) {
      target.store(style >= 2 && random() % 2 == 0 ? 2 * (near + slot) + 2 : word(),
                   std::memory_order_relaxed);
    }
  }
}

TEST(PlacementRingTest, GarbageIsReadInBoundedTimeAndBounds) {
  const std::uint32_t seed = TestSeed();
  std::mt19937_64 random(seed);
  auto ring = NewRing();
  for (int round = 0; round < 12; ++round) {
    // One reader through several pages of garbage, as a client may change them while it is read.
    PlacementRingReader reader(ring.get());
    for (int page = 0; page < 3; ++page) {
      Scribble(*ring, random);
      std::uint64_t read = 0;
      for (int empty = 0; empty < 4; ++empty) {
        while (reader.Next()) ++read;
      }
      EXPECT_LE(read, kSlots);
    }
    reader.WriterIsGone();
    while (reader.Next()) {
    }
  }
}

TEST(PlacementRingTest, AHeadThatCannotBeIsNotBelieved) {
  auto ring = NewRing();
  ring->Push(EntryOf(1));
  PlacementRingReader reader(ring.get());
  ASSERT_TRUE(reader.Next());
  for (const std::uint64_t head : {std::uint64_t{0}, ~std::uint64_t{0}, std::uint64_t{1} << 62}) {
    ring->head.store(head);
    EXPECT_EQ(reader.Next(), std::nullopt) << head;
    EXPECT_EQ(reader.lost(), 0u) << head;
  }
}

TEST(PlacementRingTest, AScribblingThreadCannotHangTheReader) {
  const std::uint32_t seed = TestSeed();
  auto ring = NewRing();
  std::atomic<bool> stop = false;
  std::thread scribbler([&] {
    std::mt19937_64 random(seed);
    while (!stop) Scribble(*ring, random);
  });
  PlacementRingReader reader(ring.get());
  for (int call = 0; call < 5000; ++call) reader.Next();
  stop = true;
  scribbler.join();
}

}  // namespace
}  // namespace lgpu
