// `lgpu exec` against a real lgpud.

#include <gmock/gmock.h>
#include <signal.h>

#include "tests/cli/cli_testing.h"

namespace lgpu::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class ExecTest : public CliTest {
 protected:
  void SetUp() override {
    StartDaemon({.simulate = "2x256MiB"});
    ASSERT_EQ(Run({"create", "-q", "-m", "32MiB", "--name", "train"}).code, 0);
  }
  void TearDown() override {
    Run({"rm", "train"});
    CliTest::TearDown();
  }
  static std::vector<std::string> Exec(const std::vector<std::string>& flags, const std::string& script) {
    std::vector<std::string> words = {"exec"};
    words.insert(words.end(), flags.begin(), flags.end());
    for (const char* const word : {"--", "/bin/sh", "-c"}) words.push_back(word);
    words.push_back(script);
    return words;
  }
};

TEST_F(ExecTest, ACommandRunsInsideTheLeaseAndTheLeaseStays) {
  const ProgramResult result =
      Run(Exec({"train", "-e", "A=b c"},
               "echo $LGPU_ENDPOINT; echo $A; printf 'open c\\nwork c\\nalloc c t 33554432\\nalloc c u 512\\n"
               "close c\\n' | " LGPU_E2E_CLIENT));
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out,
              AllOf(HasSubstr(daemon_->dir() + "\nb c\nok "), HasSubstr("error RESOURCE_EXHAUSTED")));
  EXPECT_THAT(result.err, AllOf(HasSubstr("lgpu: lease train: GPU:0 = 32.00MiB (growth) on GPU "),
                                Not(HasSubstr("never attached"))));
  ASSERT_EQ(Stats().leases_size(), 1);
  EXPECT_EQ(Stats().leases(0).name(), "train");
}

TEST_F(ExecTest, TheExitCodesAreThoseOfRun) {
  const auto code_of = [&](const std::string& script) { return Run(Exec({"train", "-q"}, script)).code; };
  EXPECT_EQ(code_of("exit 0"), 0);
  EXPECT_EQ(code_of("exit 3"), 3);
  EXPECT_EQ(code_of("kill -TERM $$"), 128 + SIGTERM);
  EXPECT_EQ(Run({"exec", "train", "--", "no-such-command-at-all"}).code, 127);
  EXPECT_EQ(Run({"exec", "train", "--", "/etc/passwd"}).code, 126);
  EXPECT_EQ(Run({"exec", "--", "true"}).code, 125) << "no lease is named";
  const ProgramResult none = Run({"exec", "nix", "--", "true"});
  EXPECT_EQ(none.code, 125);
  EXPECT_THAT(none.err, HasSubstr("you have no lease named \"nix\""));
  const ProgramResult no_command = Run({"exec", "train"});
  EXPECT_EQ(no_command.code, 125);
  EXPECT_THAT(no_command.err, HasSubstr("try: lgpu exec train -- CMD"));
  const ProgramResult no_marker = Run({"exec", "train", "true", "-x"});
  EXPECT_EQ(no_marker.code, 125);
  EXPECT_THAT(no_marker.err, HasSubstr("try: lgpu exec train -- true -x\n"));
}

TEST_F(ExecTest, ACommandThatNeverAttachedIsNamedAlsoWhereOtherProgramsDidBefore) {
  const std::string attach = "echo 'open c' | " LGPU_E2E_CLIENT;
  EXPECT_EQ(Run(Exec({"train", "--require-attach"}, attach)).code, 0);
  const ProgramResult loose = Run({"exec", "train", "--", "true"});
  EXPECT_EQ(loose.code, 0);
  EXPECT_THAT(loose.err, HasSubstr("lgpu: true never attached: its memory was not limited"));
  EXPECT_THAT(Run({"exec", "-q", "train", "--", "true"}).err, IsEmpty());
  EXPECT_EQ(Run({"exec", "--require-attach", "train", "--", "true"}).code, 125);
}

TEST_F(ExecTest, TheLeaseOfARunLivesUntilTheCommandOfExecHasEnded) {
  auto run = ChildProgram::Start(Lgpu({"run", "-q", "-m", "8MiB", "--name", "job", "--", "cat"}));
  ASSERT_TRUE(run.ok()) << run.status();
  ASSERT_TRUE(Eventually([&] { return Stats().leases_size() == 2; }));
  auto exec = ChildProgram::Start(Lgpu({"exec", "-q", "job", "--", "cat"}));
  ASSERT_TRUE(exec.ok()) << exec.status();
  (*exec)->WriteLine("ready");
  ASSERT_EQ((*exec)->ReadLine(), "ready");
  (*run)->Signal(SIGTERM);
  EXPECT_EQ((*run)->Wait(), 128 + SIGTERM);
  EXPECT_EQ(Stats().leases_size(), 2) << "exec still has it";
  (*exec)->Signal(SIGTERM);
  EXPECT_EQ((*exec)->Wait(), 128 + SIGTERM);
  EXPECT_TRUE(Eventually([&] { return Stats().leases_size() == 1; }));
}

TEST_F(ExecTest, RunInsideALeaseSaysThatItMakesANewOne) {
  ChildProgram::Options options = Lgpu({"run", "-m", "8MiB", "--", "/bin/sh", "-c", "echo $LGPU_LEASE"});
  options.environment["LGPU_LEASE"] = "train";
  const ProgramResult nested = *RunProgram(options);
  EXPECT_EQ(nested.code, 0);
  EXPECT_THAT(nested.err, HasSubstr("lgpu: note: LGPU_LEASE=train is set, but lgpu run makes a new lease. "
                                    "To run in the lease train: lgpu exec train -- CMD"));
  EXPECT_NE(nested.out, "train\n");
  EXPECT_THAT(Run({"run", "-m", "8MiB", "--", "true"}).err, Not(HasSubstr("LGPU_LEASE")));
}

TEST_F(ExecTest, ATakenNameIsAnsweredWithExec) {
  EXPECT_THAT(Run({"create", "-m", "8MiB", "--name", "train"}).err,
              HasSubstr("use it by `lgpu exec train -- CMD`"));
}

}  // namespace
}  // namespace lgpu::testing
