#include "allocator/broker/card_watch.h"

#include <gtest/gtest.h>

namespace lgpu {
namespace {

using Processes = std::vector<DeviceMemory::ProcessMemory>;

constexpr std::int64_t kSuspect = 7, kOther = 8;

// A card of 1 GiB: chunks of others, what is coming back, and what processes use beside.
CardReport Report(Bytes chunks, Bytes coming_still_there, const Processes& processes) {
  Bytes used = chunks + coming_still_there;
  for (const auto& process : processes) used += process.used;
  return {1_GiB - used, processes};
}

TEST(CardWatchTest, WhatIsGivenBackIsBackWhenFreeMemoryHasRisen) {
  const CardReport before = Report(100_MiB, 8_MiB, {{kSuspect, 16_MiB}});
  const CardWatch watch(before, 100_MiB, 8_MiB);
  EXPECT_EQ(watch.Back(before, 100_MiB, 8_MiB, {kSuspect}), Bytes());
  EXPECT_EQ(watch.Back(Report(100_MiB, 2_MiB, {{kSuspect, 16_MiB}}), 100_MiB, 8_MiB, {kSuspect}), 6_MiB);
  EXPECT_EQ(watch.Back(Report(100_MiB, Bytes(), {{kSuspect, 16_MiB}}), 100_MiB, 8_MiB, {kSuspect}), 8_MiB);
}

TEST(CardWatchTest, ChunksAndContextsOfOthersDoNotMatter) {
  const CardWatch watch(Report(100_MiB, 8_MiB, {{kSuspect, 16_MiB}}), 100_MiB, 8_MiB);
  // Another program makes a context and takes chunks, and leaves again.
  const CardReport busy = Report(400_MiB, Bytes(), {{kSuspect, 16_MiB}, {kOther, 64_MiB}});
  EXPECT_EQ(watch.Back(busy, 400_MiB, 8_MiB, {kSuspect}), 8_MiB);
  const CardReport kept = Report(50_MiB, 8_MiB, {{kSuspect, 16_MiB}, {kOther, 64_MiB}});
  EXPECT_EQ(watch.Back(kept, 50_MiB, 8_MiB, {kSuspect}), Bytes());
}

TEST(CardWatchTest, MemoryThatIsNowTheSuspectsOwnIsNotBack) {
  // The device charges what it kept to the process, once nobody else has it.
  const CardWatch watch(Report(100_MiB, 8_MiB, {{kSuspect, 16_MiB}}), 100_MiB, 8_MiB);
  EXPECT_EQ(watch.Back(Report(100_MiB, Bytes(), {{kSuspect, 24_MiB}}), 100_MiB, 8_MiB, {kSuspect}), Bytes());
}

TEST(CardWatchTest, MoreThatComesBackLaterIsCountedToo) {
  const CardWatch watch(Report(100_MiB, 8_MiB, {}), 100_MiB, 8_MiB);
  // Of the 100 MiB 20 are given back too; the first 8 are kept.
  EXPECT_EQ(watch.Back(Report(80_MiB, 28_MiB, {}), 80_MiB, 28_MiB, {}), Bytes());
  EXPECT_EQ(watch.Back(Report(80_MiB, 8_MiB, {}), 80_MiB, 28_MiB, {}), 20_MiB);
}

TEST(CardWatchTest, AProcessThatIsListedForEachOfItsContextsHasTheirSum) {
  const Processes listed = {{kSuspect, 16_MiB}, {kOther, 100_MiB}, {kOther, 300_MiB}};
  const CardWatch watch(Report(100_MiB, 8_MiB, listed), 100_MiB, 8_MiB);
  const Processes reordered = {{kSuspect, 16_MiB}, {kOther, 300_MiB}, {kOther, 100_MiB}};
  EXPECT_EQ(watch.Back(Report(100_MiB, Bytes(), reordered), 100_MiB, 8_MiB, {kSuspect}), 8_MiB);
  EXPECT_EQ(watch.Back(Report(100_MiB, 8_MiB, reordered), 100_MiB, 8_MiB, {kSuspect}), Bytes());
  const Processes one_left = {{kSuspect, 16_MiB}, {kOther, 100_MiB}};
  EXPECT_EQ(watch.Back(Report(100_MiB, 8_MiB, one_left), 100_MiB, 8_MiB, {kSuspect}), Bytes());
}

TEST(CardWatchTest, RisesAreBoundedByWhatWasAsked) {
  const CardReport low = Report(100_MiB, Bytes(), {});
  const CardReport high = Report(50_MiB, Bytes(), {});
  EXPECT_EQ(CardWatch::Risen(low, high, 8_MiB), 8_MiB);
  EXPECT_EQ(CardWatch::Risen(low, high, 80_MiB), 50_MiB);
  EXPECT_EQ(CardWatch::Risen(high, low, 8_MiB), Bytes());
}

}  // namespace
}  // namespace lgpu
