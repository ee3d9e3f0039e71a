#include "base/thread_room.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

namespace lgpu {
namespace {

TEST(ThreadRoomTest, ThereIsRoomAsARule) {
  const absl::Status status = CheckThreadRoom("gRPC", kGrpcThreads);
  EXPECT_TRUE(status.ok()) << status;
}

TEST(ThreadRoomTest, WithoutRoomTheErrorNamesTheCountAndTheNextStep) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    // Root may start as many as it likes.
    if (::getuid() == 0 && ::setuid(61235) != 0) ::_exit(2);
    const rlimit none = {.rlim_cur = 1, .rlim_max = 1};
    if (::setrlimit(RLIMIT_NPROC, &none) != 0) ::_exit(3);
    const absl::Status status = CheckThreadRoom("OpenBLAS", 4);
    const std::string text(status.message());
    const bool is_right = absl::IsResourceExhausted(status) &&
                          text.find("may start 0 further threads") != std::string::npos &&
                          text.find("OpenBLAS needs up to 4") != std::string::npos &&
                          text.find("pids.max") != std::string::npos;
    ::_exit(is_right ? 0 : 1);
  }
  int state = -1;
  ASSERT_EQ(::waitpid(child, &state, 0), child);
  EXPECT_TRUE(WIFEXITED(state));
  EXPECT_EQ(WEXITSTATUS(state), 0);
}

}  // namespace
}  // namespace lgpu
