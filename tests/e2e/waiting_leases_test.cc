// Lasting leases that cannot be served now: their card is missing, or other leases have their name or memory
// by now. They wait in their file and take nothing from other leases.

#include <signal.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "tests/e2e/harness.h"

namespace lgpu::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class WaitingLeasesTest : public E2eTest {
 protected:
  /// One device of that size on each of the cards.
  absl::StatusOr<v1::Lease> Create(const std::string& name, std::uint64_t mib, const std::vector<int>& cards,
                                   bool preallocate = true) {
    v1::CreateLeaseRequest request;
    request.set_name(name);
    request.set_lasting(true);
    for (const int card : cards) {
      v1::LogicalDeviceSpec& device = *request.add_devices();
      device = OneDevice(mib * kMiB, preallocate).devices(0);
      device.set_card_uuid(Stats().cards(card).uuid());
    }
    return control_->CreateLease(request);
  }
  std::string IdOf(const std::string& name) {
    const auto lease = control_->GetLease(name);
    return lease.ok() ? lease->id() : "";
  }
  /// A client looks for the daemon of a killed one now and then: its answer, once that has this text.
  static std::string AllocUntilItSays(ChildProgram& client, const std::string& id, const std::string& text) {
    std::string answer;
    EXPECT_TRUE(Eventually([&] {
      answer = Alloc(client, id, 16);
      return answer.find(text) != std::string::npos;
    })) << answer;
    return answer;
  }
  bool IsAnyCardOvercommitted() {
    const v1::StatsSnapshot stats = Stats();
    for (const v1::CardStats& card : stats.cards()) {
      if (card.promised_bytes() > card.total_bytes()) return true;
    }
    return false;
  }
};

TEST_F(WaitingLeasesTest, LeasesOfACardThatIsNotThereWaitInTheFile) {
  StartInDirectory("2x1GiB");
  const auto create = [&](const char* name, int card) {
    v1::CreateLeaseRequest request = OneDevice(64 * kMiB, /*preallocate=*/false, /*lasting=*/true);
    request.set_name(name);
    request.mutable_devices(0)->set_card_uuid(Stats().cards(card).uuid());
    return control_->CreateLease(request).ok();
  };
  ASSERT_TRUE(create("first", 0) && create("waits", 1) && create("stays", 0));
  ASSERT_TRUE(control_->RemoveLease("first").ok());
  Boot("1GiB");
  EXPECT_FALSE(control_->GetLease("waits").ok());
  ASSERT_TRUE(create("new", 0));
  Boot("2x1GiB");
  for (const char* const name : {"waits", "stays", "new"}) {
    EXPECT_TRUE(control_->GetLease(name).ok()) << name;
    EXPECT_TRUE(control_->RemoveLease(name).ok()) << name;
  }
}

// The lease has a second card, which stayed and whose memory was not kept for it.
TEST_F(WaitingLeasesTest, ALeaseThatWaitedTakesNoOtherLeasesMemory) {
  StartInDirectory("2x64MiB");
  const auto both = Create("both", 40, {0, 1});
  ASSERT_TRUE(both.ok()) << both.status();
  Boot("64MiB");
  ASSERT_TRUE(Create("active", 40, {0}).ok());
  Boot("2x64MiB");
  for (int start = 0; start < 2; ++start) {
    EXPECT_EQ(IdOf("both"), "");
    EXPECT_NE(IdOf("active"), "");
    EXPECT_FALSE(IsAnyCardOvercommitted());
    Restart();
  }
  EXPECT_TRUE(control_->RemoveLease("active").ok());
  Restart();
  EXPECT_EQ(IdOf("both"), both->id());
  EXPECT_EQ(HeldBytes(), 80 * kMiB);
  EXPECT_TRUE(control_->RemoveLease("both").ok());
}

TEST_F(WaitingLeasesTest, ALeaseThatWaitedTakesNoOtherLeasesName) {
  StartInDirectory("2x64MiB");
  const auto waits = Create("x", 16, {1});
  ASSERT_TRUE(waits.ok()) << waits.status();
  Boot("64MiB");
  const auto active = Create("x", 16, {0});
  ASSERT_TRUE(active.ok()) << active.status();
  for (int start = 0; start < 2; ++start) {
    start == 0 ? Boot("2x64MiB") : Restart();
    EXPECT_EQ(IdOf("x"), active->id());
  }
  // The name means the active lease first, then the one that waits.
  EXPECT_TRUE(control_->RemoveLease("x").ok());
  EXPECT_TRUE(control_->RemoveLease("x").ok());
  EXPECT_TRUE(absl::IsNotFound(control_->RemoveLease("x")));
  Restart();
  EXPECT_EQ(IdOf("x"), "");
  Boot("2x64MiB");
  EXPECT_EQ(IdOf("x"), "");
}

TEST_F(WaitingLeasesTest, WhereTwoOfOneNameWaitTheNameGivesUpNeither) {
  StartInDirectory("3x64MiB");
  const auto first = Create("x", 16, {2});
  ASSERT_TRUE(first.ok()) << first.status();
  Boot("2x64MiB");
  const auto second = Create("x", 16, {1});
  ASSERT_TRUE(second.ok()) << second.status();
  Boot("64MiB");
  const absl::Status both = control_->RemoveLease("x");
  EXPECT_TRUE(absl::IsInvalidArgument(both)) << both;
  EXPECT_THAT(std::string(both.message()), AllOf(HasSubstr(first->id()), HasSubstr(second->id())));
  EXPECT_TRUE(control_->RemoveLease(first->id()).ok());
  EXPECT_TRUE(control_->RemoveLease("x").ok());
  EXPECT_TRUE(absl::IsNotFound(control_->RemoveLease(second->id())));
}

TEST_F(WaitingLeasesTest, AProgramsLeaseThatWaitedIsCalledByItsIdWhereItsNameIsTaken) {
  StartInDirectory("2x64MiB");
  const auto first = Create("x", 48, {1}, /*preallocate=*/false);
  ASSERT_TRUE(first.ok()) << first.status();
  auto client = StartClient();
  ASSERT_THAT(Ask(*client, "open c lease=x"), StartsWith("ok "));
  ASSERT_THAT(Alloc(*client, "a", 8), StartsWith("ok "));
  client->Signal(SIGSTOP);
  KillDaemon();
  StartInDirectory("64MiB");
  const auto second = Create("x", 16, {0});
  ASSERT_TRUE(second.ok()) << second.status();
  KillDaemon();
  StartInDirectory("2x64MiB");
  client->Signal(SIGCONT);
  EXPECT_EQ(IdOf("x"), second->id());
  EXPECT_EQ(IdOf(first->id()), first->id());
  ASSERT_TRUE(Eventually([&] { return IsBack(client->pid()); }));
  EXPECT_EQ(Ask(*client, "read a"), absl::StrCat("ok ", 8 * kMiB / 4 * 1.0));
  EXPECT_TRUE(control_->RemoveLease("x").ok());
  EXPECT_TRUE(LedgerIsTrue({client->pid()}));
  EXPECT_EQ(Ask(*client, "close c"), "ok");
  EXPECT_TRUE(control_->RemoveLease(first->id()).ok());
}

TEST_F(WaitingLeasesTest, AProgramThatAsksMeanwhileGoesOnWhenItsCardIsBack) {
  StartInDirectory("2x64MiB");
  ASSERT_TRUE(Create("x", 48, {1}, /*preallocate=*/false).ok());
  auto client = StartClient();
  ASSERT_THAT(Ask(*client, "open c lease=x timeout=1500"), StartsWith("ok "));
  ASSERT_THAT(Alloc(*client, "a", 8), StartsWith("ok "));
  KillDaemon();
  StartInDirectory("64MiB");
  EXPECT_THAT(AllocUntilItSays(*client, "b", "cannot serve now"), StartsWith("error UNAVAILABLE"));
  EXPECT_EQ(Ask(*client, "read a"), absl::StrCat("ok ", 8 * kMiB / 4 * 1.0));
  KillDaemon();
  StartInDirectory("2x64MiB");
  ASSERT_TRUE(Eventually([&] { return IsBack(client->pid()); }));
  EXPECT_THAT(Alloc(*client, "b", 16), StartsWith("ok "));
  EXPECT_TRUE(LedgerIsTrue({client->pid()}));
  // The lease was given up and does not come back: the client now gets a final answer.
  KillDaemon();
  StartInDirectory("64MiB");
  ASSERT_TRUE(control_->RemoveLease("x").ok());
  EXPECT_THAT(AllocUntilItSays(*client, "d", "you have no such session"), StartsWith("error"));
}

TEST_F(WaitingLeasesTest, AProgramsOwnLeaseThatWaitsCanBeGivenUp) {
  StartInDirectory("2x64MiB");
  auto client = StartClient();
  ASSERT_THAT(Ask(*client, absl::StrCat("open c card=1 timeout=1500 limit=", 32 * kMiB)), StartsWith("ok "));
  ASSERT_THAT(Alloc(*client, "a", 8), StartsWith("ok "));
  const std::string lease = Stats().leases(0).name();
  KillDaemon();
  StartInDirectory("64MiB");
  EXPECT_THAT(AllocUntilItSays(*client, "b", "cannot serve now"), StartsWith("error UNAVAILABLE"));
  ASSERT_TRUE(control_->RemoveLease(lease).ok());
  EXPECT_THAT(AllocUntilItSays(*client, "b", "no such"), StartsWith("error FAILED_PRECONDITION"));
  Restart();
  EXPECT_TRUE(absl::IsNotFound(control_->RemoveLease(lease)));
  client->Signal(SIGKILL);
  client->Wait();
  KillDaemon();
  StartInDirectory("2x64MiB");
  EXPECT_TRUE(Eventually([&] { return Stats().leases_size() == 0 && HeldBytes() == 0; }));
}

// The program keeps its held memory. The rest of its guarantee is promised to other leases by now.
TEST_F(WaitingLeasesTest, AProgramsLeaseThatWaitedKeepsHeldMemoryAndNoPromise) {
  StartInDirectory("2x64MiB");
  const auto both = Create("both", 48, {0, 1});
  ASSERT_TRUE(both.ok()) << both.status();
  auto client = StartClient();
  ASSERT_THAT(Ask(*client, "open c lease=both"), StartsWith("ok "));
  ASSERT_THAT(Alloc(*client, "a", 8), StartsWith("ok "));
  client->Signal(SIGSTOP);
  KillDaemon();
  StartInDirectory("64MiB");
  EXPECT_FALSE(control_->GetLease("both").ok());
  auto other = StartClient();
  ASSERT_THAT(Ask(*other, absl::StrCat("open c timeout=0 limit=", 40 * kMiB)), StartsWith("ok "));
  ASSERT_THAT(Alloc(*other, "a", 36), StartsWith("ok ")) << Stats().DebugString();
  KillDaemon();
  StartInDirectory("2x64MiB");
  client->Signal(SIGCONT);
  ASSERT_TRUE(Eventually([&] { return IsBack(client->pid()) && IsBack(other->pid()); }));
  EXPECT_FALSE(IsAnyCardOvercommitted()) << Stats().DebugString();
  EXPECT_TRUE(LedgerIsTrue({client->pid(), other->pid()}));
  EXPECT_EQ(Ask(*client, "read a"), absl::StrCat("ok ", 8 * kMiB / 4 * 1.0));
  EXPECT_EQ(Ask(*other, "read a"), absl::StrCat("ok ", 36 * kMiB / 4 * 1.0));
  EXPECT_EQ(Ask(*client, "close c"), "ok");
  EXPECT_EQ(Ask(*other, "close c"), "ok");
  EXPECT_TRUE(control_->RemoveLease("both").ok());
}

TEST_F(WaitingLeasesTest, ALeaseThatWaitsIsNotTheOneThatTheConfigurationWants) {
  StartInDirectory("2x64MiB");
  ASSERT_TRUE(Create("fixed", 8, {1}).ok());
  Boot("64MiB");
  KillDaemon();
  DaemonProcess::Options options = InDirectory("64MiB");
  options.config = "[[logical_device]]\nlease = \"fixed\"\nmemory = \"40MiB\"\nmode = \"preallocate\"\n";
  StartDaemon(options);
  const std::string fixed = IdOf("fixed");
  auto client = StartClient();
  ASSERT_THAT(Ask(*client, "open c lease=fixed"), StartsWith("ok "));
  client->Signal(SIGSTOP);
  KillDaemonWhileItRemoves("fixed");
  StartDaemon(options);
  EXPECT_EQ(IdOf("fixed"), fixed);
  client->Signal(SIGKILL);
  EXPECT_TRUE(control_->RemoveLease(fixed).ok());
}

TEST_F(WaitingLeasesTest, ALeaseThatOnlyTheJournalHasWaitsForItsCard) {
  StartInDirectory("2x64MiB");
  ASSERT_TRUE(Create("x", 8, {1}).ok());
  KillDaemon();
  std::ofstream(directory_.path() + "/state/leases", std::ios::trunc) << "nothing that one could read";
  StartInDirectory("64MiB");
  EXPECT_EQ(IdOf("x"), "");
  KillDaemon();
  StartInDirectory("2x64MiB");
  EXPECT_NE(IdOf("x"), "");
  EXPECT_TRUE(control_->RemoveLease("x").ok());
}

TEST_F(WaitingLeasesTest, ALeaseThatWaitsOnHasItsNameAndItsPromiseStill) {
  StartInDirectory("2x64MiB");
  ASSERT_TRUE(Create("x", 8, {1}).ok());
  auto client = StartClient();
  ASSERT_THAT(Ask(*client, "open c lease=x"), StartsWith("ok "));
  ASSERT_THAT(Alloc(*client, "a", 4), StartsWith("ok "));
  client->Signal(SIGSTOP);
  KillDaemon();
  StartInDirectory("64MiB");
  ASSERT_TRUE(Create("x", 60, {0}).ok());
  Restart();  // the card is missing still, and its name is taken
  client->Signal(SIGKILL);
  client->Wait();
  EXPECT_TRUE(control_->RemoveLease("x").ok());
  KillDaemon();
  StartInDirectory("2x64MiB");
  EXPECT_NE(IdOf("x"), "");
  EXPECT_TRUE(Eventually([&] { return HeldBytes() == 8 * kMiB; })) << Stats().DebugString();
  EXPECT_TRUE(control_->RemoveLease("x").ok());
}

TEST_F(WaitingLeasesTest, ALeaseThatWaitsIsRemovedUnderItsProgram) {
  StartInDirectory("2x64MiB");
  const auto lease = Create("x", 8, {1});
  ASSERT_TRUE(lease.ok()) << lease.status();
  auto client = StartClient();
  ASSERT_THAT(Ask(*client, "open c lease=x"), StartsWith("ok "));
  client->Signal(SIGSTOP);
  KillDaemon();
  StartInDirectory("64MiB");
  EXPECT_TRUE(control_->RemoveLease("x").ok());
  KillDaemon();
  StartInDirectory("2x64MiB");
  EXPECT_EQ(IdOf("x"), "");
  client->Signal(SIGKILL);
  client->Wait();
  EXPECT_TRUE(Eventually([&] { return Stats().leases_size() == 0; }));
  Restart();
  EXPECT_EQ(Stats().leases_size(), 0);
}

// Memory that is held back cannot be promised.
TEST_F(WaitingLeasesTest, ALeaseThatWaitedTakesNothingThatIsHeldBack) {
  StartInDirectory("2x64MiB");
  ASSERT_TRUE(Create("both", 40, {0, 1}).ok());
  Boot("64MiB");
  auto client = StartClient();
  ASSERT_THAT(Ask(*client, absl::StrCat("open c limit=", 48 * kMiB)), StartsWith("ok "));
  ASSERT_THAT(Alloc(*client, "a", 40), StartsWith("ok "));
  client->Signal(SIGSTOP);
  KillDaemon();
  std::ofstream(directory_.path() + "/run/journal", std::ios::trunc)
      << "this is no journal at all, however long one looks at it; none of it, from its beginning to its end";
  StartInDirectory("64MiB");
  KillDaemon();
  StartInDirectory("2x64MiB");
  EXPECT_GE(Stats().cards(0).foreign_bytes(), 40 * kMiB);
  EXPECT_EQ(IdOf("both"), "");
  EXPECT_EQ(HeldBytes(), 0u);
  client->Signal(SIGKILL);
  EXPECT_TRUE(control_->RemoveLease("both").ok());
}

// The daemon dies at each of the first writes of a start, in which another lease ends too.
TEST_F(WaitingLeasesTest, NoDeathOfAStartLosesALeaseThatWaits) {
  StartInDirectory("2x64MiB");
  ASSERT_TRUE(Create("waits", 8, {1}).ok());
  ASSERT_TRUE(Create("stays", 8, {0}).ok());
  for (int write = 1; write < 8; ++write) {
    for (const char* const moment : {"", ":after"}) {
      SCOPED_TRACE(absl::StrCat(write, moment));
      KillDaemon();
      StartInDirectory("64MiB");
      ASSERT_TRUE(Create("gone", 8, {0}).ok());
      auto client = StartClient();
      ASSERT_THAT(Ask(*client, "open c lease=gone"), StartsWith("ok "));
      client->Signal(SIGSTOP);
      KillDaemonWhileItRemoves("gone");
      client->Signal(SIGKILL);
      client->Wait();
      DaemonProcess::Options options = InDirectory("64MiB");
      options.lgpud = LGPU_FAULTY_LGPUD;
      options.environment = {{"LGPU_TEST_JOURNAL_DIE", absl::StrCat(write, moment)}};
      DaemonProcess::Start(options).IgnoreError();
      StartInDirectory("2x64MiB");
      EXPECT_NE(IdOf("waits"), "");
      EXPECT_NE(IdOf("stays"), "");
      EXPECT_TRUE(Eventually([&] { return Stats().leases_size() == 2; })) << Stats().DebugString();
      if (HasFailure()) return;
    }
  }
  EXPECT_TRUE(control_->RemoveLease("waits").ok());
  EXPECT_TRUE(control_->RemoveLease("stays").ok());
}

}  // namespace
}  // namespace lgpu::testing
