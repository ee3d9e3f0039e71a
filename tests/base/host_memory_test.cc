#include "base/host_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/support/child_program.h"

namespace lgpu {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kPid = 7;

class HostMemoryTest : public ::testing::Test {
 protected:
  HostMemoryTest() {
    Write("proc/meminfo", "MemTotal:  16777216 kB\nMemFree:  1024 kB\nMemAvailable:  8388608 kB\n");
    Write("proc/7/cgroup", "0::/user.slice/job\n");
    Write("cgroups/user.slice/memory.max", "max\n");
    Write("cgroups/user.slice/memory.current", "99\n");
  }
  void Write(const std::string& name, const std::string& text) const {
    const std::filesystem::path path = std::filesystem::path(dir_.path()) / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  absl::Status Check(Bytes bytes) const {
    return CheckHostMemory({kPid}, bytes,
                           {.proc = dir_.path() + "/proc", .cgroups = dir_.path() + "/cgroups"});
  }

  testing::TempDir dir_;
};

TEST_F(HostMemoryTest, TheMachineKeepsTwoGibibytes) {
  EXPECT_EQ(Check(6_GiB), absl::OkStatus());
  const absl::Status status = Check(6_GiB + 1_MiB);
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("the machine has 8.00GiB available"));
}

TEST_F(HostMemoryTest, EachCgroupAboveTheProcessCounts) {
  Write("cgroups/user.slice/job/memory.max", "1073741824\n");
  Write("cgroups/user.slice/job/memory.current", "536870912\n");
  EXPECT_EQ(Check(512_MiB), absl::OkStatus());
  const absl::Status status = Check(513_MiB);
  EXPECT_THAT(std::string(status.message()), HasSubstr("cgroup /user.slice/job may have 512.00MiB more"));
  Write("cgroups/user.slice/memory.max", "100\n");
  EXPECT_THAT(std::string(Check(1_MiB).message()), HasSubstr("cgroup /user.slice may have 1B more"));
}

TEST_F(HostMemoryTest, AFigureThatCannotBeReadStopsNobody) {
  std::filesystem::remove_all(dir_.path() + "/proc/7");
  EXPECT_EQ(Check(6_GiB), absl::OkStatus());
  Write("proc/meminfo", "nothing\n");
  EXPECT_EQ(Check(600_GiB), absl::OkStatus());
}

}  // namespace
}  // namespace lgpu
