#include <gtest/gtest.h>

#include "client/distribute/reduction.h"

namespace lgpu::internal {
namespace {

TEST(ReductionChoiceTest, SmallSumsAreMadeOnOneDeviceUnmeasured) {
  ReductionChoice choice;
  const ReductionChoice::Trial trial = choice.Next(ReductionChoice::kSmall);
  EXPECT_EQ(trial.method, ReductionMethod::kOneDevice);
  EXPECT_FALSE(trial.measure);
}

TEST(ReductionChoiceTest, TheFasterMethodOfTheTrialsIsTaken) {
  for (const bool slices_are_faster : {false, true}) {
    ReductionChoice choice;
    int trials = 0;
    for (ReductionChoice::Trial trial = choice.Next(1_MiB); trial.measure; trial = choice.Next(1_MiB)) {
      const bool slices = trial.method == ReductionMethod::kSlices;
      // The first of each is slow, as caches are cold: the better one counts.
      choice.Learn(1_MiB, trial, trials < 1 ? 9 : slices == slices_are_faster ? 1 : 2);
      ASSERT_LT(++trials, 100);
    }
    EXPECT_EQ(trials, 2 * ReductionChoice::kTrials);
    EXPECT_EQ(choice.Next(1_MiB).method,
              slices_are_faster ? ReductionMethod::kSlices : ReductionMethod::kOneDevice);
    EXPECT_TRUE(choice.Next(64_MiB).measure) << "another size is measured anew";
  }
}

}  // namespace
}  // namespace lgpu::internal
