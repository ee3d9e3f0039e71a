#include "base/spawn.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>

namespace lgpu {
namespace {

SpawnOptions Shell(const std::string& script) { return {.argv = {"sh", "-c", script}}; }

int CodeOf(const SpawnOptions& options) {
  absl::StatusOr<SpawnedProcess> process = SpawnedProcess::Start(options);
  EXPECT_TRUE(process.ok()) << process.status();
  return process.ok() ? process->Wait() : -1;
}

bool Exists(pid_t pid) { return ::kill(pid, 0) == 0 || errno != ESRCH; }

TEST(SpawnTest, WaitGivesTheExitCodeOrTheSignal) {
  EXPECT_EQ(CodeOf(Shell("exit 7")), 7);
  EXPECT_EQ(CodeOf(Shell("kill -KILL $$")), 128 + SIGKILL);
}

TEST(SpawnTest, AProgramThatIsNotThereIsNotFound) {
  const absl::Status absent = SpawnedProcess::Start({.argv = {"/no/such/program"}}).status();
  EXPECT_EQ(absent, absl::NotFoundError("No such file or directory"));
  EXPECT_TRUE(absl::IsNotFound(SpawnedProcess::Start({.argv = {"/dev/null/program"}}).status()));
  EXPECT_TRUE(absl::IsNotFound(SpawnedProcess::Start({.argv = {"no-such-program-in-path"}}).status()));
  EXPECT_EQ(SpawnedProcess::Start({.argv = {"/proc/self/status"}}).status(),
            absl::InternalError("Permission denied"));
}

TEST(SpawnTest, VariablesAreSetReplacedAndTakenAway) {
  ASSERT_EQ(::setenv("LGPU_SPAWN_KEPT", "kept", 1), 0);
  ASSERT_EQ(::setenv("LGPU_SPAWN_REPLACED", "old", 1), 0);
  ASSERT_EQ(::setenv("LGPU_SPAWN_GONE", "there", 1), 0);
  SpawnOptions options = Shell(
      R"(test "$LGPU_SPAWN_KEPT,$LGPU_SPAWN_REPLACED,$LGPU_SPAWN_NEW,${LGPU_SPAWN_GONE-gone}" = kept,new,a=b,gone)");
  options.environment = {{"LGPU_SPAWN_REPLACED", "new"},
                         {"LGPU_SPAWN_NEW", "a=b"},
                         {"LGPU_SPAWN_GONE", std::nullopt},
                         {"LGPU_SPAWN_NEVER", std::nullopt}};
  EXPECT_EQ(CodeOf(options), 0);
}

TEST(SpawnTest, OnlyNamedDescriptorsArriveUnderTheirNumbers) {
  absl::StatusOr<Pipe> in = Pipe::Make();
  absl::StatusOr<Pipe> out = Pipe::Make();
  ASSERT_TRUE(in.ok() && out.ok());
  // A number that stays the same loses its close-on-exec flag too.
  const UniqueFd same(::fcntl(out->write.get(), F_DUPFD_CLOEXEC, 3));
  SpawnOptions options = Shell("test ! -e /proc/$$/fd/" + std::to_string(in->write.get()) +
                               " && read line && echo got $line >&" + std::to_string(same.get()));
  options.descriptors = {{in->read.get(), STDIN_FILENO}, {same.get(), same.get()}};
  absl::StatusOr<SpawnedProcess> process = SpawnedProcess::Start(options);
  ASSERT_TRUE(process.ok()) << process.status();
  ASSERT_EQ(::write(in->write.get(), "x\n", 2), 2);
  char text[16] = {};
  EXPECT_EQ(::read(out->read.get(), text, sizeof(text)), 6);
  EXPECT_STREQ(text, "got x\n");
  EXPECT_EQ(process->Wait(), 0);
}

TEST(SpawnTest, TheSignalMaskAndDefaultActionsAreThoseOfTheOptions) {
  sigset_t blocked;
  sigset_t before;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGTERM);
  ASSERT_EQ(::pthread_sigmask(SIG_BLOCK, &blocked, &before), 0);
  ASSERT_NE(::signal(SIGPIPE, SIG_IGN), SIG_ERR);
  EXPECT_EQ(CodeOf(Shell("kill -TERM $$; exit 3")), 3) << "inherited";
  sigset_t none;
  sigemptyset(&none);
  SpawnOptions unblocked = Shell("kill -TERM $$; exit 3");
  unblocked.signal_mask = &none;
  EXPECT_EQ(CodeOf(unblocked), 128 + SIGTERM);
  EXPECT_EQ(CodeOf(Shell("kill -PIPE $$; exit 3")), 3) << "ignored";
  sigset_t pipe;
  sigemptyset(&pipe);
  sigaddset(&pipe, SIGPIPE);
  SpawnOptions with_default = Shell("kill -PIPE $$; exit 3");
  with_default.default_signals = &pipe;
  EXPECT_EQ(CodeOf(with_default), 128 + SIGPIPE);
  ::signal(SIGPIPE, SIG_DFL);
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

TEST(SpawnTest, TheOwnerKillsAndReaps) {
  absl::StatusOr<SpawnedProcess> process = SpawnedProcess::Start({.argv = {"sleep", "1000"}});
  ASSERT_TRUE(process.ok()) << process.status();
  const pid_t first = process->pid();
  EXPECT_EQ(process->TryWait(), std::nullopt);
  absl::StatusOr<SpawnedProcess> next = SpawnedProcess::Start({.argv = {"sleep", "1000"}});
  ASSERT_TRUE(next.ok()) << next.status();
  const pid_t second = next->pid();
  *process = *std::move(next);
  EXPECT_FALSE(Exists(first)) << "its owner got another one";
  EXPECT_EQ(process->pid(), second);
  process = absl::CancelledError();
  EXPECT_FALSE(Exists(second));
}

TEST(SpawnTest, AReleasedProcessIsLeftAlone) {
  pid_t pid = -1;
  {
    absl::StatusOr<SpawnedProcess> process = SpawnedProcess::Start({.argv = {"sleep", "1000"}});
    ASSERT_TRUE(process.ok()) << process.status();
    pid = process->Release();
    EXPECT_EQ(process->pid(), -1);
    EXPECT_EQ(process->Wait(), -1);
  }
  ASSERT_TRUE(Exists(pid));
  ::kill(pid, SIGKILL);
  int status = 0;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  EXPECT_EQ(ExitCodeOf(status), 128 + SIGKILL);
}

}  // namespace
}  // namespace lgpu
