// Which processes may be suspended by this one.

#include "cli/suspendable.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "lgpu/status.h"
#include "tests/support/child_program.h"

namespace lgpu::cli {
namespace {

using testing::ChildProgram;
using ::testing::HasSubstr;
using testing::TempDir;

std::unique_ptr<ChildProgram> StartCat() {
  auto child = ChildProgram::Start({.argv = {"cat"}});
  EXPECT_TRUE(child.ok()) << child.status();
  (*child)->WriteLine("ready");
  EXPECT_EQ((*child)->ReadLine(), "ready");
  return *std::move(child);
}

/// The pid of a child that runs `run` in this process's image, in a fork.
template <typename Run>
pid_t Fork(const Run& run) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    run();
    while (true) ::pause();
  }
  return pid;
}

void End(pid_t pid) {
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
}

TEST(SuspendableTest, ChildAndGrandchildMayBeSuspended) {
  const auto child = StartCat();
  EXPECT_EQ(CheckSuspendable(child->pid()), absl::OkStatus());
  const auto shell = ChildProgram::Start({.argv = {"sh", "-c", "exec 3<&0; cat <&3 & echo $!; wait"}});
  ASSERT_TRUE(shell.ok()) << shell.status();
  const pid_t grandchild = std::stoi((*shell)->ReadLine().value_or("0"));
  EXPECT_EQ(CheckSuspendable(grandchild), absl::OkStatus());
}

TEST(SuspendableTest, ProcessThatHasEndedIsNotFound) {
  const pid_t pid = Fork([] { ::_exit(0); });
  siginfo_t ended;
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(pid), &ended, WEXITED | WNOWAIT), 0);
  EXPECT_TRUE(absl::IsNotFound(CheckSuspendable(pid))) << "it is a zombie";
  End(pid);
  EXPECT_TRUE(absl::IsNotFound(CheckSuspendable(pid)));
  EXPECT_TRUE(absl::IsNotFound(CheckSuspendable(0)));
}

TEST(SuspendableTest, ProcessesThatOthersStartedAreRefused) {
  for (const pid_t pid : {::getpid(), ::getppid()}) {
    EXPECT_THAT(CheckSuspendable(pid).ToString(), HasSubstr("was not started by this lgpu")) << pid;
  }
}

TEST(SuspendableTest, StoppedProcessIsRefused) {
  const auto child = StartCat();
  child->Signal(SIGSTOP);
  const absl::Status status = CheckSuspendable(child->pid());
  EXPECT_EQ(status,
            absl::FailedPreconditionError(absl::StrCat("process ", child->pid(), " (cat) is stopped")));
  child->Signal(SIGCONT);
  EXPECT_TRUE(testing::Eventually([&] { return CheckSuspendable(child->pid()).ok(); }));
}

TEST(SuspendableTest, TracedProcessIsRefused) {
  const auto child = StartCat();
  if (::ptrace(PTRACE_SEIZE, child->pid(), nullptr, nullptr) != 0) {
    GTEST_SKIP() << "this machine lets no process be traced";
  }
  EXPECT_THAT(CheckSuspendable(child->pid()).ToString(), HasSubstr("(cat) is traced, as by a debugger"));
  End(child->pid());
}

TEST(SuspendableTest, ThreadIsRefused) {
  int ids[2];
  ASSERT_EQ(::pipe(ids), 0);
  const pid_t pid = Fork([&] {
    std::thread([&] {
      const pid_t own = ::gettid();
      [[maybe_unused]] const ssize_t written = ::write(ids[1], &own, sizeof(own));
      while (true) ::pause();
    }).detach();
  });
  pid_t thread = 0;
  ASSERT_EQ(::read(ids[0], &thread, sizeof(thread)), static_cast<ssize_t>(sizeof(thread)));
  EXPECT_THAT(CheckSuspendable(thread).ToString(), HasSubstr("is a thread and no process"));
  End(pid);
}

TEST(SuspendableTest, ProcessThatMayNotBeLookedAtIsRefused) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may look at every process";
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t pid = Fork([&] {
    ::prctl(PR_SET_DUMPABLE, 0);
    [[maybe_unused]] const ssize_t written = ::write(ready[1], "+", 1);
  });
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  EXPECT_TRUE(absl::IsFailedPrecondition(CheckSuspendable(pid)));
  End(pid);
}

TEST(SuspendableTest, ProcessOfAnotherUserIsRefused) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root starts processes of other users";
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t pid = Fork([&] {
    const bool is_other = ::setuid(65534) == 0;
    [[maybe_unused]] const ssize_t written = ::write(ready[1], is_other ? "+" : "-", 1);
  });
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  EXPECT_EQ(byte, '+');
  EXPECT_THAT(CheckSuspendable(pid).ToString(), HasSubstr("is of another user"));
  End(pid);
}

TEST(SuspendableTest, ProcessInAnotherPidNamespaceIsRefused) {
  const auto child = ChildProgram::Start(
      {.argv = {"unshare", "--user", "--map-root-user", "--pid", "--fork", "sh", "-c", "echo ready; cat"}});
  ASSERT_TRUE(child.ok()) << child.status();
  if ((*child)->ReadLine() != "ready") GTEST_SKIP() << "no namespaces here: " << (*child)->Errors();
  std::ifstream children(absl::StrCat("/proc/", (*child)->pid(), "/task/", (*child)->pid(), "/children"));
  pid_t pid = 0;
  if (!(children >> pid)) GTEST_SKIP() << "this kernel lists no children";
  EXPECT_THAT(CheckSuspendable(pid).ToString(), HasSubstr("is in another pid namespace"));
}

TEST(SuspendableTest, ProcessThatWorksWithOthersByNcclIsRefused) {
  const TempDir directory;
  const std::string library = directory.path() + "/nccl-aBcDeF";
  std::ofstream(library) << "x";
  const int file = ::open(library.c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_GE(file, 0);
  void* const data = ::mmap(nullptr, 1, PROT_READ, MAP_PRIVATE, file, 0);
  ASSERT_NE(data, MAP_FAILED);
  const pid_t pid = Fork([] {});  // it has the mapping
  EXPECT_THAT(CheckSuspendable(pid).ToString(), HasSubstr("works with other processes by NCCL"));
  End(pid);
  ::munmap(data, 1);
  ::close(file);
}

TEST(SuspendableTest, FrozenCgroupOfEitherVersionIsFound) {
  const TempDir mounts;
  const auto write = [&](const std::string& path, const std::string& text) {
    const std::filesystem::path file = mounts.path() + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  };
  write("/user/job/cgroup.events", "populated 1\nfrozen 1\n");
  write("/user/cgroup.events", "populated 1\nfrozen 0\n");
  write("/unified/hybrid/cgroup.events", "frozen 1\n");
  write("/freezer/old/freezer.state", "FROZEN\n");
  write("/freezer/warm/freezer.state", "THAWED\n");
  EXPECT_EQ(FrozenCgroup("0::/user/job\n", mounts.path()), "/user/job");
  EXPECT_EQ(FrozenCgroup("0::/user\n", mounts.path()), std::nullopt);
  EXPECT_EQ(FrozenCgroup("9:memory:/m\n0::/hybrid\n", mounts.path()), "/hybrid");
  EXPECT_EQ(FrozenCgroup("6:freezer:/old\n0::/user\n", mounts.path()), "/old");
  EXPECT_EQ(FrozenCgroup("6:freezer:/warm\n4:memory:/old\n", mounts.path()), std::nullopt);
  EXPECT_EQ(FrozenCgroup("6:freezer:/not:there\nnonsense\n", mounts.path()), std::nullopt);
}

}  // namespace
}  // namespace lgpu::cli
