// Handovers by the thousand: programs that each need most of a card share it in time, and none of them is
// refused.

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>

#include "tests/support/sanitizers.h"
#include "tests/support/turn_world.h"

namespace lgpu {
namespace {

using Preemptible = Broker::Preemptible;
using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;

// The longest time at work: ten times the two moves of 20 GiB.
constexpr seconds kTurn{50};

/// A card of 24 GiB; 16 GiB are moved in 2 s.
class TurnsTest : public ::testing::Test {
 protected:
  TurnWorld world_{24_GiB, 8_GiB};
};

TEST_F(TurnsTest, FourProgramsAreHandedOverTenThousandTimes) {
  const seconds never_ends = hours(100'000);
  world_.Add({16_GiB, Preemptible::kAlways, seconds(7), seconds(5), never_ends});
  world_.Add({16_GiB, Preemptible::kAlways, hours(1), seconds(1), never_ends});
  world_.Add({20_GiB, Preemptible::kIdle, seconds(3), seconds(11), never_ends});
  world_.Add({10_GiB, Preemptible::kIdle, seconds(1), seconds(60), never_ends});
  const std::uint64_t handovers = testing::kSanitized ? 300 : 10'000;
  EXPECT_EQ(world_.Run(hours(2000), handovers), absl::OkStatus());
  EXPECT_EQ(world_.figures().refused, 0u);
  EXPECT_GE(world_.figures().moves, handovers);
  // Three others have a turn before it, and each of them leaves and comes.
  EXPECT_LE(world_.figures().longest_wait, 3 * (kTurn + seconds(10)));
}

TEST_F(TurnsTest, TwoTrainingsThatEachNeedTheCardBothEnd) {
  for (int i = 0; i < 2; ++i) {
    world_.Add({20_GiB, Preemptible::kAlways, hours(1), seconds(1), minutes(30), milliseconds(500)});
  }
  EXPECT_EQ(world_.Run(hours(2)), absl::OkStatus());
  EXPECT_EQ(world_.figures().refused, 0u);
  // At most one part in ten of their time is spent on moves.
  EXPECT_LE(world_.figures().makespan, minutes(67));
}

TEST_F(TurnsTest, OneThatIsNeverIdleAndTakesNoTurnsMakesOthersWaitToTheirEnd) {
  world_.Add({20_GiB, Preemptible::kIdle, hours(1), seconds(1), hours(1)});
  world_.Add({20_GiB, Preemptible::kIdle, hours(1), seconds(1), hours(1), milliseconds(500)});
  EXPECT_EQ(world_.Run(hours(3)), absl::OkStatus());
  EXPECT_EQ(world_.figures().refused, 1u) << "after a minute it is told, and ends";
}

}  // namespace
}  // namespace lgpu
