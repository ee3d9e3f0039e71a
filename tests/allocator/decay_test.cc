#include "allocator/pool/decay.h"

#include <gtest/gtest.h>

#include <chrono>

namespace lgpu {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Bytes kDecayPage = 2_MiB;
constexpr Bytes kMuch = 1_GiB;

// A pool in which 1 GiB was freed under stamp 1 and lies idle.
class DecayTest : public ::testing::Test {
 protected:
  void Look(Bytes spare = {}) {
    decay_.Note(now_, {.newest = stamp_, .spare = spare, .round_trips = round_trips_});
  }
  // Looks every 100 ms, as an upkeep thread does.
  void Wait(milliseconds time, Bytes spare = {}) {
    for (milliseconds passed{}; passed < time; passed += milliseconds(100)) {
      now_ += milliseconds(100);
      Look(spare);
    }
  }
  Decay::Surplus Surplus(Bytes idle = kMuch, Bytes peak = {}) const {
    const auto idle_up_to = [idle](Decay::Stamp stamp) { return stamp >= 1 ? idle : Bytes(); };
    return decay_.FindSurplus(now_, idle_up_to, settled_, peak, kDecayPage);
  }

  Decay decay_;
  Decay::TimePoint now_{std::chrono::hours(1)};
  Decay::Stamp stamp_ = 1;
  Decay::Stamp settled_ = Suballocator::kYoungest;
  std::uint64_t round_trips_ = 0;
};

TEST_F(DecayTest, MemoryThatWasJustFreedStays) {
  Look();
  EXPECT_EQ(Surplus().bytes, Bytes());
  Wait(milliseconds(900));
  EXPECT_EQ(Surplus().bytes, Bytes());
}

TEST_F(DecayTest, AfterASecondAllButHalfAReserveGoes) {
  Look();
  Wait(milliseconds(1100));
  EXPECT_EQ(Surplus().bytes, kMuch - kDecayPage * 8);
  EXPECT_EQ(Surplus(kMuch, 100_GiB).bytes, Bytes()) << "the reserve grows with the peak";
}

TEST_F(DecayTest, TheReserveGoesAfterTenSeconds) {
  Look();
  Wait(milliseconds(10'200));
  EXPECT_EQ(Surplus().bytes, kMuch);
  EXPECT_EQ(Surplus(kMuch, 100_GiB).bytes, kMuch);
}

TEST_F(DecayTest, MemoryThatStreamsMayStillUseStays) {
  Look();
  settled_ = 0;
  Wait(milliseconds(10'200));
  EXPECT_EQ(Surplus().bytes, Bytes());
  EXPECT_EQ(Surplus().settled, 0u);
}

TEST_F(DecayTest, SpareChunksDecayFromTheirLastChange) {
  Look(64_MiB);
  Wait(milliseconds(800), 64_MiB);
  Wait(milliseconds(800), 128_MiB);
  EXPECT_FALSE(Surplus(Bytes()).with_spare);
  Wait(milliseconds(400), 128_MiB);
  EXPECT_TRUE(Surplus(Bytes()).with_spare);
  EXPECT_EQ(Surplus(Bytes()).bytes, 128_MiB - kDecayPage * 8);
}

TEST_F(DecayTest, MemoryThatHadToBeFetchedAgainStaysLongerTheNextTime) {
  Look();
  Wait(milliseconds(1100));
  decay_.NoteReturned(now_);
  ++round_trips_;
  Look();
  stamp_ = 2;  // freed again
  const auto idle = [](Decay::Stamp stamp) { return stamp >= 2 ? kMuch : Bytes(); };
  Look();
  Wait(milliseconds(1500));
  EXPECT_EQ(decay_.FindSurplus(now_, idle, settled_, {}, kDecayPage).bytes, Bytes());
  Wait(milliseconds(1000));
  EXPECT_GT(decay_.FindSurplus(now_, idle, settled_, {}, kDecayPage).bytes, Bytes());
}

TEST_F(DecayTest, ALaterRoundTripIsNoRegret) {
  Look();
  Wait(milliseconds(1100));
  decay_.NoteReturned(now_);
  Wait(seconds(31));
  ++round_trips_;
  stamp_ = 2;
  Wait(milliseconds(1300));
  const auto idle = [](Decay::Stamp stamp) { return stamp >= 2 ? kMuch : Bytes(); };
  EXPECT_GT(decay_.FindSurplus(now_, idle, settled_, {}, kDecayPage).bytes, Bytes());
}

TEST_F(DecayTest, RebasedStampsNameTheSameMemory) {
  stamp_ = 1'000'001;
  Look();
  decay_.Rebase(1'000'000);
  stamp_ = 1;
  Wait(milliseconds(1100));
  EXPECT_EQ(Surplus().settled, 1u);
  EXPECT_EQ(Surplus().bytes, kMuch - kDecayPage * 8);
}

TEST_F(DecayTest, IsQuietAfterASecondWithoutOperations) {
  EXPECT_FALSE(decay_.IsQuiet(now_, 10));
  EXPECT_FALSE(decay_.IsQuiet(now_ + milliseconds(999), 10));
  EXPECT_TRUE(decay_.IsQuiet(now_ + milliseconds(1000), 10));
  EXPECT_FALSE(decay_.IsQuiet(now_ + milliseconds(1001), 11));
}

}  // namespace
}  // namespace lgpu
