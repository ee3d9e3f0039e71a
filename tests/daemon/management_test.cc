// What root says of a managed lease, as requests, journal and answers have it.

#include "daemon/leases/management.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <string>

#include "tests/daemon/temporary_directory.h"

namespace lgpu::daemon {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Management::BootTime kNow = seconds(1000);

TEST(ManagementTest, TimeCountsFromTheRequestOnAndIsToldAsWhatIsLeft) {
  v1::Management request;
  request.set_time_to_live_ms(90'000);
  const absl::StatusOr<Management> management = ParseManagement(request, kNow);
  ASSERT_TRUE(management.ok()) << management.status();
  EXPECT_EQ(management->ends_at, kNow + seconds(90));
  EXPECT_EQ(ToProto(*management, kNow + seconds(30)).time_to_live_ms(), 60'000u);
  EXPECT_EQ(ToProto(*management, kNow + seconds(91)).time_to_live_ms(), 1u)
      << "0 would say that it has no end";
  request.set_time_to_live_ms(~std::uint64_t{0});
  EXPECT_EQ(ParseManagement(request, kNow).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(ManagementTest, TheJournalKeepsAllOfIt) {
  v1::Management request;
  v1::Label& label = *request.add_labels();
  label.set_key("slurm.job");
  label.set_value("812");
  request.set_time_to_live_ms(1);
  request.set_end_with_cgroup("/nowhere/job");
  absl::StatusOr<Management> management = ParseManagement(request, kNow);
  ASSERT_TRUE(management.ok()) << management.status();
  management->was_populated = true;
  const Management again = FromRecord(RecordOf(*management));
  EXPECT_EQ(again.labels, management->labels);
  EXPECT_EQ(again.ends_at, kNow + milliseconds(1));
  EXPECT_EQ(again.cgroup, "/nowhere/job");
  EXPECT_TRUE(again.was_populated);
}

TEST(ManagementTest, WhatEndsByItselfIsOverWithTheMachine) {
  v1::Management request;
  const v1::JournalManagement lasts = RecordOf(*ParseManagement(request, kNow));
  EXPECT_FALSE(IsOfAnotherBoot(lasts, "another boot"));
  EXPECT_FALSE(IsOfAnotherBoot(v1::JournalManagement(), "another boot")) << "no managed lease";
  request.set_time_to_live_ms(1000);
  const v1::JournalManagement ends = RecordOf(*ParseManagement(request, kNow));
  EXPECT_TRUE(IsOfAnotherBoot(ends, "another boot"));
  EXPECT_FALSE(IsOfAnotherBoot(ends, ends.boot_id()));
}

TEST(ManagementTest, ACgroupTellsWhetherItIsPopulated) {
  const TemporaryDirectory folder;
  EXPECT_EQ(IsPopulated(folder.path() + "/none").status().code(), absl::StatusCode::kNotFound);
  const auto events = [&](const char* text) {
    std::ofstream(folder.path() + "/cgroup.events") << text;
    return IsPopulated(folder.path());
  };
  EXPECT_EQ(*events("populated 0\nfrozen 0\n"), false);
  EXPECT_EQ(*events("frozen 0\npopulated 1\n"), true);
  EXPECT_EQ(events("frozen 0\n").status().code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace lgpu::daemon
