// The command and the library of a user with too many calls wait for their turn.

#include <sys/socket.h>

#include <memory>
#include <string>
#include <vector>

#include "proto/wire/connect.h"
#include "tests/e2e/harness.h"
#include "tests/support/open_files_limit.h"
#include "tests/support/raw_http2.h"

namespace lgpu::testing {
namespace {

class ControlRoomTest : public E2eTest {
 protected:
  void SetUp() override {
    if (files_.hard() < 8192) {
      GTEST_SKIP() << "the limit of open files is " << files_.hard() << "; 8192 are needed";
    }
    StartDaemon();
  }
  void TearDown() override {
    callers_.clear();
    E2eTest::TearDown();
  }

  /// Makes more calls than this user may have, and reads no answer.
  void TakeAllCalls() {
    for (int i = 0; i < 600; ++i) {
      PlainResult<UniqueFd> socket = ConnectUnix(daemon_->dir() + "/control.sock", SOCK_STREAM);
      ASSERT_TRUE(socket.ok());
      callers_.push_back(std::make_unique<RawHttp2>(*std::move(socket), /*window=*/0));
      for (int call = 0; call < 4; ++call) {
        callers_.back()->StartCall("GetVersion");
        callers_.back()->SendData(RawHttp2::MessageHeader(0), true);
      }
    }
  }

  std::vector<std::string> List(const std::string& timeout) const {
    return {DaemonProcess::LgpuPath(), "--endpoint", daemon_->dir(), "--timeout", timeout, "ls"};
  }

  std::vector<std::unique_ptr<RawHttp2>> callers_;

 private:
  const OpenFilesLimit files_{OpenFilesLimit::kAll};
};

TEST_F(ControlRoomTest, TheCommandTriesAgainUntilThereIsRoomOrItsTimeIsOver) {
  ASSERT_NO_FATAL_FAILURE(TakeAllCalls());
  // Calls that have arrived are not many enough at once: the first commands may still be served.
  ASSERT_TRUE(Eventually([&] {
    const absl::StatusOr<ProgramResult> refused = RunProgram({.argv = List("1s")});
    return refused.ok() && refused->code == 69 &&
           refused->err.find(
               "takes no more calls of this user now: your programs have 2048 unfinished calls") !=
               std::string::npos;
  }));
  const absl::StatusOr<std::unique_ptr<ChildProgram>> waiting = ChildProgram::Start({.argv = List("60s")});
  ASSERT_TRUE(waiting.ok()) << waiting.status();
  EXPECT_EQ((*waiting)->Wait(std::chrono::milliseconds(300)), std::nullopt);
  callers_.clear();
  EXPECT_EQ((*waiting)->Wait(), 0) << (*waiting)->Errors();
}

}  // namespace
}  // namespace lgpu::testing
