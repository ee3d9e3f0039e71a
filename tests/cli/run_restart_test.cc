// A lease of `lgpu run` lasts as long as its command runs, also over restarts of the daemon.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/cli/cli_testing.h"

namespace lgpu::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Printed once for each absence of the daemon. A slow start of the daemon may add another reason.
constexpr char kIsGone[] = "is gone (it closed the session without a reason";

int HowOften(const std::string& words, const std::string& text) {
  int count = 0;
  for (std::size_t at = text.find(words); at != std::string::npos; at = text.find(words, at + 1)) ++count;
  return count;
}

class RunRestartTest : public CliTest {
 protected:
  /// Runs `script` in a lease of 32 MiB and waits until it says that it has begun.
  std::unique_ptr<ChildProgram> StartRun(const std::string& script,
                                         const std::vector<std::string>& flags = {}) {
    std::vector<std::string> words = {"run", "-m", "32MiB", "--name", "job", "--require-attach"};
    words.insert(words.end(), flags.begin(), flags.end());
    words.insert(words.end(), {"--", "/bin/sh", "-c", absl::StrCat("echo begun; ", script)});
    absl::StatusOr<std::unique_ptr<ChildProgram>> run = ChildProgram::Start(Lgpu(words));
    EXPECT_TRUE(run.ok()) << run.status();
    EXPECT_EQ((*run)->ReadLine(), "begun");
    return *std::move(run);
  }
};

TEST_F(RunRestartTest, TheCommandKeepsItsLeaseWithTheNextDaemon) {
  StartInDirectory();
  auto run = StartRun(
      "read go; printf 'open c\\nwork c\\nalloc c t 33554432\\nalloc c u 512\\nclose c\\n' "
      "| " LGPU_E2E_CLIENT);
  const std::string lease = Stats().leases(0).id();
  for (int i = 0; i < 2; ++i) {
    KillDaemon();
    ASSERT_TRUE(Eventually([&] { return HowOften(kIsGone, run->Errors()) == i + 1; })) << run->Errors();
    StartInDirectory();
    ASSERT_TRUE(Eventually([&] { return HowOften("the lease goes on", run->Errors()) == i + 1; }))
        << run->Errors();
    ASSERT_TRUE(IsBack(run->pid()));
    ASSERT_EQ(Stats().leases_size(), 1);
    EXPECT_EQ(Stats().leases(0).id(), lease);
  }
  run->WriteLine("go");
  const std::string said = run->ReadAll();
  EXPECT_THAT(said, AllOf(HasSubstr("ok "), HasSubstr("error RESOURCE_EXHAUSTED")));
  EXPECT_EQ(run->Wait(), 0) << run->Errors() << said;
  EXPECT_EQ(HowOften(kIsGone, run->Errors()), 2) << run->Errors();
  EXPECT_THAT(run->Errors(), AllOf(HasSubstr("the command goes on without the daemon: lgpud at "),
                                   HasSubstr("the daemon was started again; the lease goes on"),
                                   Not(HasSubstr("the other end")), Not(HasSubstr("never attached")),
                                   Not(HasSubstr("is over"))));
  EXPECT_TRUE(Eventually([&] { return Stats().leases_size() == 0 && HeldBytes() == 0; }));
}

// The command keeps its lease also where `lgpu run` writes its messages to a closed pipe.
TEST_F(RunRestartTest, RunKeepsItsLeaseWhenItsOutputIsNotRead) {
  StartInDirectory();
  ChildProgram::Options options = Lgpu({});
  options.argv = {"/bin/sh", "-c",
                  "exec 3>&1; { " + options.argv.front() +
                      " run -m 32MiB -- /bin/sh -c 'echo $PPID >&3; read go; exit 3'; echo code $? >&3; } "
                      "2>&1 | true"};
  auto run = ChildProgram::Start(options);
  ASSERT_TRUE(run.ok()) << run.status();
  const std::optional<std::string> pid = (*run)->ReadLine();
  ASSERT_TRUE(pid);
  Restart();
  EXPECT_TRUE(Eventually([&] { return IsBack(std::stoi(*pid)); }));
  (*run)->WriteLine("go");
  EXPECT_EQ((*run)->ReadLine(), "code 3");
}

TEST_F(RunRestartTest, RunReportsACardThatTheNextDaemonMisses) {
  StartInDirectory("2x64MiB");
  auto run = StartRun("read go; exit 3", {"--gpus", "1"});
  KillDaemon();
  StartInDirectory("64MiB");
  EXPECT_TRUE(Eventually([&] { return run->Errors().find("cannot serve now") != std::string::npos; }));
  KillDaemon();
  StartInDirectory("2x64MiB");
  EXPECT_TRUE(Eventually([&] { return IsBack(run->pid()); }));
  run->WriteLine("go");
  EXPECT_EQ(run->Wait(), 125) << "it never attached";
  EXPECT_TRUE(Eventually([&] { return Stats().leases_size() == 0; }));
}

TEST_F(RunRestartTest, ACommandThatEndsWithoutADaemonLeavesNoLease) {
  StartInDirectory();
  auto run = StartRun("read go; exit 3");
  KillDaemon();
  run->WriteLine("go");
  // Only the daemon knew whether it had attached.
  EXPECT_EQ(run->Wait(), 125);
  EXPECT_THAT(run->Errors(), HasSubstr("cannot tell whether /bin/sh attached"));
  StartInDirectory();
  EXPECT_TRUE(Eventually([&] { return Stats().leases_size() == 0; }));
}

TEST_F(RunRestartTest, TheCommandOutlivesALeaseThatIsRemovedAndItsUserHearsWhy) {
  StartInDirectory();
  auto run = StartRun("read go; exit 3");
  ASSERT_EQ(Run({"rm", "job"}).code, 0);
  EXPECT_TRUE(Eventually(
      [&] { return run->Errors().find("the session is over, the command goes on: ") != std::string::npos; }));
  EXPECT_THAT(run->Errors(), AllOf(HasSubstr("removed"), HasSubstr("no more is granted"),
                                   Not(HasSubstr("without the daemon"))));
  Restart();
  run->WriteLine("go");
  EXPECT_EQ(run->Wait(), 125) << run->Errors();
  EXPECT_EQ(Stats().leases_size(), 0);
}

}  // namespace
}  // namespace lgpu::testing
