#include "base/this_thread.h"

#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <set>
#include <thread>
#include <vector>

#include "base/process_epoch.h"

namespace lgpu {
namespace {

TEST(ThisThreadTest, TheKernelNumberIsTheKernels) {
  EXPECT_EQ(ThisThread::KernelNumber(), syscall(SYS_gettid));
  std::thread([] { EXPECT_EQ(ThisThread::KernelNumber(), syscall(SYS_gettid)); }).join();
}

TEST(ThisThreadTest, AThreadKeepsItsUniqueNumber) {
  EXPECT_EQ(ThisThread::UniqueNumber(), ThisThread::UniqueNumber());
}

TEST(ThisThreadTest, AThreadNeverGetsTheUniqueNumberOfAnEndedOne) {
  constexpr int kThreads = 200;
  std::vector<std::uint64_t> seen(kThreads);
  for (std::uint64_t& number : seen) std::thread([&number] { number = ThisThread::UniqueNumber(); }).join();
  std::set<std::uint64_t> different(seen.begin(), seen.end());
  different.insert(ThisThread::UniqueNumber());
  EXPECT_EQ(different.size(), kThreads + 1u);
  EXPECT_FALSE(different.contains(0));
}

TEST(ThisThreadTest, AForkedChildGetsNumbersOfItsOwn) {
  const ProcessEpoch epoch;  // from here on forks are counted
  const std::uint64_t mine = ThisThread::UniqueNumber();
  const pid_t child = fork();
  if (child == 0) {
    const bool renumbered = ThisThread::UniqueNumber() != mine && ThisThread::KernelNumber() == getpid();
    _exit(renumbered ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

}  // namespace
}  // namespace lgpu
