// The daemon dies at each of its writes to the journal in turn, before it, in its middle and behind it, while
// a client opens, grows, gives back, resizes and closes. The next daemon's ledger has the processes' chunks.

#include <signal.h>

#include <thread>

#include "absl/strings/str_cat.h"
#include "tests/e2e/harness.h"

namespace lgpu::testing {
namespace {

using ::testing::StartsWith;

class JournalDeathsTest : public E2eTest, public ::testing::WithParamInterface<const char*> {
 protected:
  /// Of a daemon that dies at the write of that number.
  DaemonProcess::Options ToDieAt(int write) const {
    DaemonProcess::Options options = InDirectory("512MiB");
    options.lgpud = LGPU_FAULTY_LGPUD;
    options.environment = {{"LGPU_TEST_JOURNAL_DIE", absl::StrCat(write, GetParam())}};
    return options;
  }
};

TEST_P(JournalDeathsTest, EachWriteInTurn) {
  StartInDirectory("512MiB");  // there is a journal from here on
  KillDaemon();
  // The first write is the new file of the start itself.
  for (int write = 2; write < 12; ++write) {
    SCOPED_TRACE(absl::StrCat("dies at write ", write, GetParam()));
    ASSERT_NO_FATAL_FAILURE(StartDaemon(ToDieAt(write)));
    auto client = StartClient();
    // The daemon dies in the middle of these commands, at another one in each round.
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
      ASSERT_TRUE(Eventually([&] { return IsBack(client->pid()); }));
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

// The first writes are the recovery's own, the next ones are for sessions that resume.
TEST_P(JournalDeathsTest, EachWriteOfARecoveryInTurn) {
  StartInDirectory("512MiB");
  v1::CreateLeaseRequest lasting = OneDevice(64 * kMiB, /*preallocate=*/true, /*lasting=*/true);
  lasting.set_name("lasting");
  ASSERT_TRUE(control_->CreateLease(lasting).ok());
  auto alive = StartClient();
  ASSERT_THAT(Ask(*alive, "open c timeout=300"), StartsWith("ok "));
  ASSERT_THAT(Alloc(*alive, "a", 20), StartsWith("ok "));
  for (int write = 1; write < 8; ++write) {
    SCOPED_TRACE(absl::StrCat("dies at write ", write, GetParam()));
    auto dead = StartClient();
    ASSERT_THAT(Ask(*dead, "open c timeout=300"), StartsWith("ok "));
    ASSERT_THAT(Alloc(*dead, "a", 30), StartsWith("ok "));
    KillDaemon();
    dead->Signal(SIGKILL);
    dead->Wait();
    {
      const auto dying = DaemonProcess::Start(ToDieAt(write));
      EXPECT_FALSE(dying.ok() && write == 1);
      if (dying.ok()) Alloc(*alive, absl::StrCat("during", write), 3);
    }
    ASSERT_NO_FATAL_FAILURE(StartInDirectory("512MiB"));
    ASSERT_TRUE(Eventually([&] { return IsBack(alive->pid()); }));
    EXPECT_TRUE(Eventually([&] { return HeldBytes() == ChunkBytesHeldBy({alive->pid()}) + 64 * kMiB; }))
        << Stats().DebugString();
    EXPECT_TRUE(control_->GetLease("lasting").ok());
    EXPECT_EQ(Ask(*alive, "read a"), absl::StrCat("ok ", 20 * kMiB / 4 * 1.0));
    EXPECT_THAT(Alloc(*alive, absl::StrCat("after", write), 3), StartsWith("ok "));
    if (HasFailure()) return;
  }
  EXPECT_TRUE(control_->RemoveLease("lasting").ok());
  EXPECT_TRUE(LedgerIsTrue({alive->pid()}));
  EXPECT_EQ(Ask(*alive, "close c"), "ok");
}

// Two devices of a lease get smaller, and another program asks for the freed memory.
// (daemon_lease_resize_test shows that the journal has the resize before the grant.)
TEST_P(JournalDeathsTest, EachWriteOfAResizeInTurn) {
  for (int write = 4; write < 12; ++write) {
    SCOPED_TRACE(absl::StrCat("dies at write ", write, GetParam()));
    StartInDirectory("2x256MiB");
    v1::CreateLeaseRequest both = OneDevice(240 * kMiB, /*preallocate=*/true, /*lasting=*/true);
    both.set_name("both");
    *both.add_devices() = both.devices(0);
    const v1::StatsSnapshot cards = Stats();
    for (int i = 0; i < 2; ++i) both.mutable_devices(i)->set_card_uuid(cards.cards(i).uuid());
    ASSERT_TRUE(control_->CreateLease(both).ok());
    auto other = StartClient();
    ASSERT_THAT(Ask(*other, "open c timeout=0 card=0"), StartsWith("ok "));
    KillDaemon();
    DaemonProcess::Options dying = ToDieAt(write);
    dying.simulate = "2x256MiB";
    // The daemon may die before the request, in its middle, or after it.
    auto started = DaemonProcess::Start(dying);
    auto control = started.ok() ? Control::Open((*started)->dir()) : started.status();
    if (control.ok()) {
      // It asks until it has the freed memory, or no daemon is there.
      std::thread asking([&other] {
        while (Alloc(*other, "a", 120).rfind("error RESOURCE_EXHAUSTED", 0) == 0) {
        }
      });
      v1::ResizeLeaseRequest resize;
      resize.set_lease("both");
      for (std::uint32_t i = 0; i < 2; ++i) {
        v1::ResizeLeaseRequest::Device& device = *resize.add_devices();
        device.set_index(i);
        device.set_memory_limit_bytes(64 * kMiB);
      }
      (void)(*control)->ResizeLease(resize);
      (*started)->program().Signal(SIGKILL);  // where there were fewer writes
      asking.join();
    }
    EXPECT_TRUE(!started.ok() || (*started)->program().Wait() == 128 + SIGKILL);
    StartInDirectory("2x256MiB");
    ASSERT_TRUE(Eventually([&] { return IsBack(other->pid()); }));
    const v1::StatsSnapshot snapshot = Stats();
    for (const auto& card : snapshot.cards()) {
      EXPECT_FALSE(card.overcommitted()) << card.DebugString();
      EXPECT_LE(card.held_bytes(), card.total_bytes());
    }
    other->Signal(SIGKILL);
    EXPECT_TRUE(control_->RemoveLease("both").ok());
    EXPECT_TRUE(EverythingIsBack());
    control_.reset();
    ASSERT_EQ(daemon_->Stop(), 0);
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Moments, JournalDeathsTest, ::testing::Values("", ":half", ":after"));

}  // namespace
}  // namespace lgpu::testing
