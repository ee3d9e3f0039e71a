// The daemon dies at each of its writes to the journal in turn, before it, in its middle and behind it, while
// a client opens, grows, gives back, resizes and closes. The next daemon's ledger is what the processes hold.

#include <signal.h>

#include "absl/strings/str_cat.h"
#include "tests/e2e/harness.h"

namespace lgpu::testing {
namespace {

using ::testing::StartsWith;

class JournalDeathsTest : public E2eTest, public ::testing::WithParamInterface<const char*> {
 protected:
  void StartToDie(const std::string& plan) {
    DaemonProcess::Options options = InDirectory("512MiB");
    options.lgpud = LGPU_FAULTY_LGPUD;
    options.environment = {{"LGPU_TEST_JOURNAL_DIE", plan}};
    StartDaemon(options);
  }
};

TEST_P(JournalDeathsTest, EachWriteInTurn) {
  StartInDirectory("512MiB");  // there is a journal from here on
  KillDaemon();
  // The first write is the new file of the start itself.
  for (int write = 2; write < 12; ++write) {
    SCOPED_TRACE(absl::StrCat("dies at write ", write, GetParam()));
    ASSERT_NO_FATAL_FAILURE(StartToDie(absl::StrCat(write, GetParam())));
    auto client = StartClient();
    // Whatever of this the daemon lives to see; each has its turn of being cut off.
    std::vector<std::string> commands = {"open c timeout=300"};
    for (int i = 0; i < 4; ++i) {
      commands.push_back(absl::StrCat("alloc c t", i, " ", (3 + 5 * i) * kMiB));
      if (i % 2 == 1) commands.insert(commands.end(), {absl::StrCat("free t", i - 1), "trim c"});
    }
    bool opened = false;
    for (const std::string& command : commands) {
      const std::string answer = Ask(*client, command);
      if (command.rfind("open", 0) == 0) opened = answer.rfind("ok ", 0) == 0;
      if (!opened) break;
    }
    daemon_->program().Signal(SIGKILL);  // where there were fewer writes
    ASSERT_EQ(daemon_->program().Wait(), 128 + SIGKILL);
    control_.reset();
    ASSERT_NO_FATAL_FAILURE(StartInDirectory("512MiB"));
    EXPECT_TRUE(LedgerIsTrue({client->pid()}));
    if (opened) {
      EXPECT_THAT(Ask(*client, absl::StrCat("alloc c again ", 40 * kMiB)), StartsWith("ok "));
      EXPECT_EQ(Ask(*client, "work c"), "ok");
      EXPECT_TRUE(LedgerIsTrue({client->pid()}));
      EXPECT_EQ(Ask(*client, "close c"), "ok");
    } else {
      client->Signal(SIGKILL);  // its lease may be known, and waits for it
    }
    EXPECT_TRUE(EverythingIsBack());
    control_.reset();
    ASSERT_EQ(daemon_->Stop(), 0);
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Moments, JournalDeathsTest, ::testing::Values("", ":half", ":after"));

}  // namespace
}  // namespace lgpu::testing
