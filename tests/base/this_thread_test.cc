#include "base/this_thread.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <set>
#include <thread>
#include <vector>

#include "base/process_epoch.h"

namespace lgpu {
namespace {

TEST(ThisThreadTest, AThreadKeepsItsNumber) { EXPECT_EQ(ThisThread::Number(), ThisThread::Number()); }

TEST(ThisThreadTest, AThreadNeverGetsTheNumberOfAnEndedOne) {
  constexpr int kThreads = 200;
  std::vector<std::uint64_t> seen(kThreads);
  for (std::uint64_t& number : seen) std::thread([&number] { number = ThisThread::Number(); }).join();
  std::set<std::uint64_t> different(seen.begin(), seen.end());
  different.insert(ThisThread::Number());
  EXPECT_EQ(different.size(), kThreads + 1u);
  EXPECT_FALSE(different.contains(0));
}

TEST(ThisThreadTest, AForkedChildGetsANumberOfItsOwn) {
  const ProcessEpoch epoch;  // from here on forks are counted
  const std::uint64_t mine = ThisThread::Number();
  const pid_t child = fork();
  if (child == 0) _exit(ThisThread::Number() != mine ? 0 : 1);
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

}  // namespace
}  // namespace lgpu
