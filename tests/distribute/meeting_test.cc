#include "client/distribute/meeting.h"

#include <gtest/gtest.h>

#include <thread>

namespace lgpu::internal {
namespace {

TEST(MeetingTest, NoProcessGoesOnBeforeAllHaveCome) {
  Meeting meeting(2);
  int written = 0;
  for (int round = 1; round <= 100; ++round) {
    std::thread other([&] {
      written = round;
      EXPECT_TRUE(meeting.Come().ok());
    });
    EXPECT_TRUE(meeting.Come().ok());
    EXPECT_EQ(written, round);
    other.join();
  }
}

TEST(MeetingTest, AnErrorEndsTheWaitOfAllAndStaysUntilTheNextStep) {
  Meeting meeting(2);
  std::thread other([&] { meeting.Break(absl::InternalError("lost")); });
  EXPECT_EQ(meeting.Come().message(), "lost");
  other.join();
  meeting.Break(absl::InternalError("later"));
  EXPECT_EQ(meeting.Come().message(), "lost");
  EXPECT_EQ(meeting.error().message(), "lost");
  meeting.Restart();
  EXPECT_TRUE(meeting.error().ok());
}

TEST(MeetingTest, AProcessThatEndedItsStepIsNotWaitedFor) {
  Meeting before(2);
  before.End();
  EXPECT_EQ(before.Come().code(), absl::StatusCode::kFailedPrecondition);
  Meeting during(2);
  std::thread other([&] { during.End(); });
  EXPECT_EQ(during.Come().code(), absl::StatusCode::kFailedPrecondition);
  other.join();
  EXPECT_FALSE(during.error().ok());
}

TEST(MeetingTest, AllMayEndWithoutMeeting) {
  Meeting meeting(2);
  meeting.End();
  meeting.End();
  EXPECT_TRUE(meeting.error().ok());
}

}  // namespace
}  // namespace lgpu::internal
