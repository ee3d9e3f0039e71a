// Root's terms for a managed lease, as requests, journal and answers have them.

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

TEST(ManagementTest, TimeCountsFromTheRequestOnAndIsToldAsTheRest) {
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

TEST(ManagementTest, ALabelThatBeginsWithAnEqualsSignIsRefused) {
  for (const char* const key : {"", "=team"}) {
    v1::Management request;
    v1::Label& label = *request.add_labels();
    label.set_key(key);
    label.set_value("vision");
    const absl::Status refused = ParseManagement(request, kNow).status();
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()), ::testing::HasSubstr("begins with '='"));
  }
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
  EXPECT_EQ(management->cgroup_cpu_usec, 0u) << "there is no such cgroup yet";
  const Management again = FromRecord(RecordOf(*management));
  EXPECT_EQ(again.cgroup_cpu_usec, 0u);
  EXPECT_EQ(again.labels, management->labels);
  EXPECT_EQ(again.ends_at, kNow + milliseconds(1));
  EXPECT_EQ(again.cgroup, "/nowhere/job");
  EXPECT_TRUE(again.was_populated);
}

TEST(ManagementTest, LeasesThatEndByThemselvesEndWithTheMachine) {
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

TEST(ManagementTest, CpuTimeTellsOfProcessesThatCameAndWentBetweenTwoLooks) {
  const TemporaryDirectory folder;
  const auto write = [&](const char* name, const char* text) {
    std::ofstream(folder.path() + "/" + name) << text;
  };
  write("cgroup.events", "populated 0\nfrozen 0\n");
  write("cpu.stat", "usage_usec 1200\nuser_usec 700\nsystem_usec 500\n");
  v1::Management request;
  request.set_end_with_cgroup(folder.path());
  const absl::StatusOr<Management> made = ParseManagement(request, kNow);
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(made->cgroup_cpu_usec, 1200u);
  EXPECT_FALSE(HasBeenPopulated(*made)) << "its time is that of earlier processes";
  write("cpu.stat", "usage_usec 1900\nuser_usec 1000\nsystem_usec 900\n");
  EXPECT_TRUE(HasBeenPopulated(*made));
  write("cpu.stat", "usage_usec 0\n");
  EXPECT_FALSE(HasBeenPopulated(*made)) << "the cgroup was made again";
  write("cpu.stat", "usage_usec 800\n");
  EXPECT_TRUE(HasBeenPopulated(*made));
  write("cpu.stat", "nothing\n");
  EXPECT_FALSE(HasBeenPopulated(*made));
  write("cgroup.events", "populated 1\n");
  EXPECT_TRUE(HasBeenPopulated(*made));
  v1::JournalManagement earlier = RecordOf(*made);
  earlier.clear_cgroup_cpu_usec();  // as a daemon wrote it that did not look at CPU time
  write("cgroup.events", "populated 0\n");
  write("cpu.stat", "usage_usec 5000\n");
  EXPECT_FALSE(HasBeenPopulated(FromRecord(earlier)));
}

}  // namespace
}  // namespace lgpu::daemon
