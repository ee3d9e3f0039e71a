#include "base/process.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <thread>

#include "absl/status/status.h"
#include "base/spawn.h"

namespace lgpu {
namespace {

TEST(ProcessTest, ThisProcessHasAStartTimeAndAParent) {
  EXPECT_TRUE(ProcessStartTime(::getpid()).ok());
  EXPECT_EQ(ParentProcess(::getpid()), ::getppid());
}

TEST(ProcessTest, AProcessThatIsNotThereIsNotFound) {
  EXPECT_TRUE(absl::IsNotFound(ProcessStartTime(0x7fffffff).status()));
  EXPECT_EQ(ParentProcess(0x7fffffff), 0);
}

// The kernel answers ESRCH where a process ends between open and read: no exception may come of it.
TEST(ProcessTest, AProcessMayEndWhileItIsLookedAt) {
  for (int i = 0; i < 200; ++i) {
    absl::StatusOr<SpawnedProcess> child = SpawnedProcess::Start({.argv = {"true"}});
    ASSERT_TRUE(child.ok()) << child.status();
    const pid_t pid = child->pid();
    std::thread reader([pid] {
      while (!absl::IsNotFound(ProcessStartTime(pid).status()) && ParentProcess(pid) != 0) {
      }
    });
    child->Wait();
    reader.join();
  }
}

}  // namespace
}  // namespace lgpu
