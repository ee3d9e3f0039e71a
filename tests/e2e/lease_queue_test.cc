// Leases that wait to be made stand in the queue of their card, and leave it with their callers.

#include <signal.h>

#include "absl/strings/str_cat.h"
#include "tests/e2e/harness.h"

namespace lgpu::testing {
namespace {

using ::testing::HasSubstr;

class LeaseQueueTest : public E2eTest {
 protected:
  ChildProgram::Options Lgpu(std::vector<std::string> words) {
    words.insert(words.begin(), DaemonProcess::LgpuPath());
    return {.argv = std::move(words), .environment = {{"LGPU_ENDPOINT", daemon_->dir()}}};
  }
  ProgramResult Run(std::vector<std::string> words) {
    const auto result = RunProgram(Lgpu(std::move(words)));
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() ? *result : ProgramResult();
  }
  /// `lgpu run` of a command that stays until its input ends, in a lease that takes all of the card.
  std::unique_ptr<ChildProgram> Wait(const std::string& name, int mib = 64) {
    const std::size_t before = Queue().size();
    auto program =
        ChildProgram::Start(Lgpu({"run", "-m", absl::StrCat(mib, "MiB"), "--preallocate", "--wait", "--name",
                                  name, "--", "/bin/sh", "-c", "echo begun; read line"}));
    EXPECT_TRUE(program.ok());
    EXPECT_TRUE(Eventually([&] { return Queue().size() == before + 1; }));
    return *std::move(program);
  }
  std::vector<std::string> Queue() {
    std::vector<std::string> names;
    const v1::StatsSnapshot stats = Stats();
    for (const v1::QueuedRequest& request : stats.cards(0).queue()) {
      EXPECT_TRUE(request.makes_lease());
      names.push_back(request.lease_name());
    }
    return names;
  }
};

TEST_F(LeaseQueueTest, LeasesAreMadeInTheirOrder) {
  StartDaemon({.simulate = "64MiB"});
  ASSERT_EQ(Run({"create", "-m", "64MiB", "--preallocate", "--name", "all"}).code, 0);
  const auto first = Wait("first");
  const auto second = Wait("second");
  EXPECT_THAT(Queue(), ::testing::ElementsAre("first", "second"));
  EXPECT_TRUE(Eventually([&] {
    return second->Errors().find("place 2 of 2: 64.00MiB") != std::string::npos;
  })) << second->Errors();
  EXPECT_THAT(Run({"ls"}).out, HasSubstr("second (being made)"));
  EXPECT_EQ(Run({"rm", "all"}).code, 0);
  EXPECT_EQ(first->ReadLine(), "begun");
  EXPECT_THAT(Queue(), ::testing::ElementsAre("second"));
  EXPECT_TRUE(Eventually([&] {
    return second->Errors().find("place 1 of 1: 64.00MiB") != std::string::npos;
  })) << second->Errors();
  first->WriteLine("");
  EXPECT_EQ(first->Wait(), 0);
  EXPECT_EQ(second->ReadLine(), "begun");
  second->WriteLine("");
  EXPECT_EQ(second->Wait(), 0);
}

TEST_F(LeaseQueueTest, NothingStaysOfACallerThatEnds) {
  StartDaemon({.simulate = "64MiB"});
  ASSERT_EQ(Run({"create", "-m", "64MiB", "--preallocate", "--name", "all"}).code, 0);
  const auto killed = Wait("killed");
  const auto interrupted = Wait("interrupted");
  const auto last = Wait("last");
  interrupted->Signal(SIGINT);
  EXPECT_EQ(interrupted->Wait(), 130) << "as a shell has it for Ctrl-C";
  EXPECT_TRUE(Eventually([&] { return Queue().size() == 2; }));
  killed->Signal(SIGKILL);
  EXPECT_EQ(killed->Wait(), 128 + SIGKILL);
  EXPECT_TRUE(Eventually([&] { return Queue() == std::vector<std::string>{"last"}; }));
  EXPECT_EQ(Run({"rm", "all"}).code, 0);
  EXPECT_EQ(last->ReadLine(), "begun");
  EXPECT_EQ(Stats().leases_size(), 1);
  last->WriteLine("");
  EXPECT_EQ(last->Wait(), 0);
}

TEST_F(LeaseQueueTest, ARequestWaitsForRoomInACap) {
  StartDaemon({.simulate = "64MiB", .config = "[caps.users.\"*\"]\nleases = 1\n"});
  ASSERT_EQ(Run({"create", "-m", "8MiB", "--name", "only"}).code, 0);
  auto waiting = ChildProgram::Start(Lgpu({"create", "-m", "8MiB", "--wait", "--name", "next"}));
  ASSERT_TRUE(waiting.ok());
  EXPECT_TRUE(Eventually([&] { return (*waiting)->Errors().find("leases") != std::string::npos; }));
  EXPECT_EQ(Run({"rm", "only"}).code, 0);
  EXPECT_EQ((*waiting)->Wait(), 0) << (*waiting)->Errors();
  EXPECT_EQ(Run({"rm", "next"}).code, 0);
}

TEST_F(LeaseQueueTest, LeasesOverSeveralCardsHoldNothingWhileTheyWait) {
  StartDaemon({.simulate = "2x64MiB"});
  ASSERT_EQ(Run({"create", "-m", "64MiB", "--preallocate", "--gpus", "1", "--name", "one"}).code, 0);
  auto both = ChildProgram::Start(
      Lgpu({"create", "-m", "64MiB", "--devices", "2", "--preallocate", "--wait", "--name", "both"}));
  ASSERT_TRUE(both.ok());
  EXPECT_TRUE(Eventually([&] { return (*both)->Errors().find("place 1 of 1") != std::string::npos; }));
  ASSERT_EQ(Run({"create", "-m", "64MiB", "--preallocate", "--gpus", "0", "--name", "zero"}).code, 0);
  EXPECT_EQ(Run({"rm", "one"}).code, 0);
  EXPECT_TRUE(Eventually([&] { return Stats().cards(0).queue_size() == 1; }))
      << "it waits for the other card";
  EXPECT_EQ(Run({"rm", "zero"}).code, 0);
  EXPECT_EQ((*both)->Wait(), 0) << (*both)->Errors();
  EXPECT_EQ(Stats().cards(0).queue_size() + Stats().cards(1).queue_size(), 0);
  EXPECT_EQ(Run({"rm", "both"}).code, 0);
}

}  // namespace
}  // namespace lgpu::testing
