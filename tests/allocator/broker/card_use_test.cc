#include "allocator/broker/card_use.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lgpu {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

constexpr std::int64_t kTrainer = 7, kServer = 8, kStranger = 9;

/// Two programs with chunks and a stranger: what a driver reports that counts chunks or does not, and keeps
/// `base` of the card for itself.
struct World {
  Bytes base;
  bool counts = false;
  ChunkUse chunks{.total = 16_GiB, .existing = 5_GiB, .granted = {{kTrainer, 3_GiB}, {kServer, 1_GiB}}};

  CardReport Report() const {
    const Bytes trainer = counts ? 3_GiB : Bytes();
    const Bytes server = counts ? 1_GiB : Bytes();
    return {16_GiB - (base + chunks.existing + 400_MiB + 300_MiB + 2_GiB),
            {{kTrainer, 400_MiB + trainer}, {kServer, 300_MiB + server}, {kStranger, 2_GiB}}};
  }
};

TEST(CardUseTest, BothReadingsOfTheReportGiveWhatLiesBesideChunks) {
  for (const bool counts : {false, true}) {
    for (const Bytes base : {Bytes(), 600_MiB}) {
      const World world{.base = base, .counts = counts};
      EXPECT_THAT(BesideChunks(world.Report(), world.chunks),
                  ElementsAre(Pair(kTrainer, 400_MiB), Pair(kServer, 300_MiB), Pair(kStranger, 2_GiB)))
          << counts << " " << base.count();
    }
  }
}

TEST(CardUseTest, WithoutChunksAReportIsTakenAsItIs) {
  const ChunkUse none{.total = 16_GiB, .existing = {}, .granted = {}};
  EXPECT_THAT(BesideChunks({15_GiB, {{kStranger, 1_GiB}}}, none), ElementsAre(Pair(kStranger, 1_GiB)));
  EXPECT_THAT(BesideChunks({16_GiB, {}}, none), IsEmpty());
}

TEST(CardUseTest, ChunksThatOneProcessDoesNotMapYetChangeNothingForOthers) {
  // The report counts chunks; the server was granted another 8 GiB and has mapped none of them.
  World world{.base = Bytes(), .counts = true};
  const CardReport before = world.Report();
  world.chunks.granted[kServer] += 8_GiB;
  world.chunks.existing += 8_GiB;
  EXPECT_THAT(BesideChunks({before.free - 8_GiB, before.processes}, world.chunks),
              ElementsAre(Pair(kTrainer, 400_MiB), Pair(kServer, Bytes()), Pair(kStranger, 2_GiB)));
}

TEST(CardUseTest, WhatADriverKeepsMayHideThatChunksAreCountedButNeverAddsUpToMoreThanIsUsed) {
  // 256 MiB of chunks that the report counts, beside 600 MiB that belong to nobody.
  const ChunkUse chunks{.total = 16_GiB, .existing = 256_MiB, .granted = {{kTrainer, 256_MiB}}};
  const CardReport report{16_GiB - (600_MiB + 256_MiB + 400_MiB), {{kTrainer, 656_MiB}}};
  EXPECT_THAT(BesideChunks(report, chunks), ElementsAre(Pair(kTrainer, 656_MiB)));
}

TEST(CardUseTest, ChargedMemoryIsNoOverhead) {
  // The trainer took 5 GiB from the driver and was lent 64 MiB more; the server was lent more than it has.
  const World world{.base = 600_MiB, .counts = true};
  CardReport report = world.Report();
  report.free -= 5_GiB;
  report.processes.push_back({kTrainer, 5_GiB});
  const std::map<std::int64_t, Bytes> charged = {{kTrainer, 5_GiB}};
  const CardReport rest = WithoutCharges(report, charged);
  EXPECT_EQ(rest.free, world.Report().free);
  EXPECT_THAT(BesideChunks(rest, world.chunks),
              ElementsAre(Pair(kTrainer, 400_MiB), Pair(kServer, 300_MiB), Pair(kStranger, 2_GiB)));
  EXPECT_THAT(BesideChunks(WithoutCharges({15_GiB, {{kServer, 1_GiB}}}, {{kServer, 2_GiB}}),
                           {.total = 16_GiB, .existing = {}, .granted = {}}),
              ElementsAre(Pair(kServer, Bytes())));
}

TEST(CardUseTest, AProcessWithTwoContextsIsOne) {
  const ChunkUse chunks{.total = 16_GiB, .existing = 1_GiB, .granted = {{kTrainer, 1_GiB}}};
  const CardReport report{14_GiB, {{kTrainer, 1_GiB + 500_MiB}, {kTrainer, 524_MiB}}};
  EXPECT_THAT(BesideChunks(report, chunks), ElementsAre(Pair(kTrainer, 1_GiB)));
}

}  // namespace
}  // namespace lgpu
