// The daemon is killed and started again while clients compute, grow and give back. The held bytes are read
// from /proc, never from the daemon's own figures.

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "tests/e2e/harness.h"

namespace lgpu::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class RestartTest : public E2eTest {
 protected:
  std::string journal() const { return directory_.path() + "/run/journal"; }
};

TEST_F(RestartTest, AClientGoesOnWhenItsDaemonIsKilledAndStartedAgain) {
  StartInDirectory();
  auto client = StartClient();
  ASSERT_THAT(Ask(*client, "open c timeout=0"), StartsWith("ok "));
  ASSERT_THAT(Alloc(*client, "a", 100), StartsWith("ok "));
  ASSERT_EQ(Ask(*client, "work c"), "ok");  // has the chunk that it works in
  KillDaemon();
  EXPECT_EQ(Ask(*client, "work c 10"), "ok");
  EXPECT_EQ(Ask(*client, "read a"), absl::StrCat("ok ", 100 * kMiB / 4 * 1.0));
  EXPECT_THAT(Alloc(*client, "b", 300), AllOf(StartsWith("error UNAVAILABLE"), HasSubstr(directory_.path()),
                                              HasSubstr("stays usable")));
  StartInDirectory();
  ASSERT_TRUE(Eventually([&] { return IsBack(client->pid()); }));
  EXPECT_TRUE(LedgerIsTrue({client->pid()}));
  EXPECT_EQ(Ask(*client, "read a"), absl::StrCat("ok ", 100 * kMiB / 4 * 1.0));
  ASSERT_TRUE(Eventually([&] { return Alloc(*client, "b", 300).rfind("ok ", 0) == 0; }));
  EXPECT_TRUE(LedgerIsTrue({client->pid()}));
  EXPECT_EQ(Ask(*client, "work c 10"), "ok");
  EXPECT_EQ(Ask(*client, "close c"), "ok");
  EXPECT_EQ(HeldBytes(), 0u);
}

TEST_F(RestartTest, AGrowWaitsForTheDaemonThatComes) {
  StartInDirectory();
  auto client = StartClient();
  ASSERT_THAT(Ask(*client, "open c timeout=20000"), StartsWith("ok "));
  for (int i = 0; i < 5; ++i) {
    KillDaemon();
    client->WriteLine(absl::StrCat("alloc c t", i, " ", 30 * kMiB));
    StartInDirectory();
    const std::optional<std::string> answer = client->ReadLine();
    ASSERT_TRUE(answer);
    EXPECT_THAT(*answer, StartsWith("ok "));
  }
  EXPECT_TRUE(LedgerIsTrue({client->pid()}));
}

TEST_F(RestartTest, MemoryReturnedWithoutADaemonIsFree) {
  StartInDirectory();
  auto client = StartClient();
  ASSERT_THAT(Ask(*client, "open c"), StartsWith("ok "));
  ASSERT_THAT(Alloc(*client, "a", 100), StartsWith("ok "));
  ASSERT_THAT(Alloc(*client, "b", 100), StartsWith("ok "));
  KillDaemon();
  ASSERT_EQ(Ask(*client, "free a"), "ok");
  ASSERT_THAT(Ask(*client, "trim c"), StartsWith("ok "));
  StartInDirectory();
  ASSERT_TRUE(Eventually([&] { return IsBack(client->pid()); }));
  EXPECT_TRUE(LedgerIsTrue({client->pid()}));
  EXPECT_LT(HeldBytes(), 110 * kMiB);
  EXPECT_EQ(Ask(*client, "read b"), absl::StrCat("ok ", 100 * kMiB / 4 * 1.0));
}

TEST_F(RestartTest, AClientThatDiedWithoutADaemonHoldsNothing) {
  StartInDirectory();
  auto dead = StartClient();
  auto alive = StartClient();
  ASSERT_THAT(Ask(*dead, "open c"), StartsWith("ok "));
  ASSERT_THAT(Ask(*alive, "open c"), StartsWith("ok "));
  ASSERT_THAT(Alloc(*dead, "a", 400), StartsWith("ok "));
  ASSERT_THAT(Alloc(*alive, "a", 100), StartsWith("ok "));
  KillDaemon();
  dead->Signal(SIGKILL);
  ASSERT_EQ(dead->Wait(), 128 + SIGKILL);
  StartInDirectory();
  ASSERT_TRUE(Eventually([&] { return IsBack(alive->pid()); }));
  EXPECT_TRUE(LedgerIsTrue({alive->pid()}));
  EXPECT_THAT(Alloc(*alive, "b", 700), StartsWith("ok "));
}

TEST_F(RestartTest, ALeaseOfSeveralProgramsStaysWithTheLivingOnes) {
  StartInDirectory();
  auto dead = StartClient();
  ASSERT_THAT(Ask(*dead, absl::StrCat("open c lease_name=shared limit=", 800 * kMiB)), StartsWith("ok "));
  const auto shared = control_->GetLease("shared");
  ASSERT_TRUE(shared.ok()) << shared.status();
  ASSERT_THAT(Alloc(*dead, "a", 100), StartsWith("ok "));
  // Many sessions are restored between the two, so that the end of the dead one could end the lease first.
  std::vector<RawSession> between;
  v1::CreateLeaseRequest small = OneDevice(2 * kMiB);
  small.set_name("between");
  for (int i = 0; i < 100; ++i) {
    auto opened = RawSession::Open(daemon_->dir());
    ASSERT_TRUE(opened.ok()) << opened.status();
    control_->SetSessionToken(opened->token);
    const auto attached = i == 0 ? control_->CreateLease(small) : control_->AttachLease("between");
    ASSERT_TRUE(attached.ok()) << attached.status();
    between.push_back(*std::move(opened));
  }
  control_->SetSessionToken("");
  auto alive = StartClient();
  ASSERT_THAT(Ask(*alive, "open c lease=" + shared->id()), StartsWith("ok "));
  ASSERT_THAT(Alloc(*alive, "a", 200), StartsWith("ok "));
  KillDaemon();
  dead->Signal(SIGKILL);
  ASSERT_EQ(dead->Wait(), 128 + SIGKILL);
  StartInDirectory();
  EXPECT_TRUE(control_->GetLease("shared").ok());
  EXPECT_GE(HeldBytes(), 200 * kMiB) << "before it is back";
  ASSERT_TRUE(Eventually([&] { return IsBack(alive->pid()); }));
  EXPECT_TRUE(LedgerIsTrue({alive->pid()}));
  EXPECT_EQ(Ask(*alive, "read a"), absl::StrCat("ok ", 200 * kMiB / 4 * 1.0));
  EXPECT_THAT(Alloc(*alive, "b", 400), StartsWith("ok "));
  EXPECT_TRUE(LedgerIsTrue({alive->pid()}));
}

TEST_F(RestartTest, AStoppedClientIsChargedInFullAndOtherClientsGetTheRest) {
  StartInDirectory();
  auto stopped = StartClient();
  ASSERT_THAT(Ask(*stopped, absl::StrCat("open c limit=", 610 * kMiB)),
              StartsWith("ok "));  // no growing ahead
  ASSERT_THAT(Alloc(*stopped, "a", 600), StartsWith("ok "));
  stopped->Signal(SIGSTOP);
  Restart();
  const std::optional<v1::SessionStats> absent = SessionOf(stopped->pid());
  ASSERT_TRUE(absent);
  EXPECT_EQ(absent->state(), v1::SessionStats::STATE_ABSENT);
  EXPECT_GE(absent->held_bytes(), 600 * kMiB);
  auto other = StartClient();
  ASSERT_THAT(Ask(*other, "open c timeout=0"), StartsWith("ok "));
  EXPECT_THAT(Alloc(*other, "a", 300), StartsWith("ok "));
  EXPECT_THAT(Alloc(*other, "b", 300), StartsWith("error RESOURCE_EXHAUSTED"));
  stopped->Signal(SIGCONT);
  ASSERT_TRUE(Eventually([&] { return IsBack(stopped->pid()); }));
  EXPECT_TRUE(LedgerIsTrue({stopped->pid(), other->pid()}));
  // One that is stopped for ever and then dies.
  stopped->Signal(SIGSTOP);
  Restart();
  ASSERT_TRUE(Eventually([&] { return IsBack(other->pid()); }));
  EXPECT_EQ(Stats().sessions_lost_total(), 0u);
  stopped->Signal(SIGKILL);
  EXPECT_TRUE(LedgerIsTrue({other->pid()}));
  EXPECT_EQ(Stats().sessions_lost_total(), 1u);
}

TEST_F(RestartTest, AContextClosedWithoutADaemonHoldsNothing) {
  StartInDirectory();
  auto client = StartClient();
  ASSERT_THAT(Ask(*client, "open c"), StartsWith("ok "));
  ASSERT_THAT(Ask(*client, "open d"), StartsWith("ok "));
  ASSERT_THAT(Alloc(*client, "a", 100), StartsWith("ok "));
  ASSERT_THAT(Ask(*client, absl::StrCat("alloc d b ", 50 * kMiB)), StartsWith("ok "));
  KillDaemon();
  ASSERT_EQ(Ask(*client, "free a"), "ok");
  EXPECT_THAT(Ask(*client, "close c"), StartsWith("error UNAVAILABLE"));
  ASSERT_EQ(Ask(*client, "drop c"), "ok");
  StartInDirectory();
  EXPECT_TRUE(LedgerIsTrue({client->pid()}));
  EXPECT_GE(HeldBytes(), 50 * kMiB);
  EXPECT_EQ(Ask(*client, "read b"), absl::StrCat("ok ", 50 * kMiB / 4 * 1.0));
  EXPECT_TRUE(Eventually([&] { return Stats().leases_size() == 1; }));
}

// Its Context is there still: the next daemon is told of the end.
TEST_F(RestartTest, AContextThatCouldNotBeClosedIsClosedByTheNextDaemon) {
  StartInDirectory();
  auto client = StartClient();
  ASSERT_THAT(Ask(*client, absl::StrCat("open c prealloc=1 limit=", 512 * kMiB)), StartsWith("ok "));
  ASSERT_THAT(Alloc(*client, "a", 100), StartsWith("ok "));
  KillDaemon();
  EXPECT_THAT(Ask(*client, "close c"), StartsWith("error UNAVAILABLE"));
  StartInDirectory();
  EXPECT_TRUE(Eventually([&] { return Stats().leases_size() == 0 && HeldBytes() == 0; }));
  EXPECT_EQ(Ask(*client, "close c"), "ok");
}

TEST_F(RestartTest, ManyThreadsOfTwoContextsGoOnWhileDaemonsDie) {
  StartInDirectory();
  auto client = StartClient();
  ASSERT_THAT(Ask(*client, "open c timeout=20000"), StartsWith("ok "));
  ASSERT_THAT(Ask(*client, "open d timeout=20000"), StartsWith("ok "));
  client->WriteLine(absl::StrCat("threads 64 ", kSanitized ? 10 : 60));
  for (int i = 0; i < 3; ++i) Restart();
  EXPECT_EQ(client->ReadLine(), "ok");
  // Both of its sessions.
  ASSERT_TRUE(Eventually([&] {
    const v1::StatsSnapshot stats = Stats();
    return stats.leases_size() == 2 &&
           std::all_of(stats.leases().begin(), stats.leases().end(), [](const v1::LeaseStats& lease) {
             return lease.sessions_size() == 1 && lease.sessions(0).state() == v1::SessionStats::STATE_LIVE;
           });
  }));
  EXPECT_TRUE(LedgerIsTrue({client->pid()}));
  EXPECT_EQ(Ask(*client, "close c"), "ok");
  EXPECT_EQ(Ask(*client, "close d"), "ok");
}

TEST_F(RestartTest, AStoppedDaemonLeavesItsClientsTheirMemory) {
  StartInDirectory();
  auto client = StartClient();
  ASSERT_THAT(Ask(*client, "open c"), StartsWith("ok "));
  ASSERT_THAT(Alloc(*client, "a", 100), StartsWith("ok "));
  control_.reset();
  ASSERT_EQ(daemon_->Stop(), 0) << daemon_->program().Errors();
  EXPECT_EQ(Ask(*client, "read a"), absl::StrCat("ok ", 100 * kMiB / 4 * 1.0));
  StartInDirectory();
  ASSERT_TRUE(Eventually([&] { return IsBack(client->pid()); }));
  EXPECT_TRUE(LedgerIsTrue({client->pid()}));
  EXPECT_EQ(Ask(*client, "close c"), "ok");
}

TEST_F(RestartTest, PreallocatedMemoryIsMadeAgainBeforeTheFirstRequest) {
  StartInDirectory();
  auto client = StartClient();
  ASSERT_THAT(Ask(*client, absl::StrCat("open c prealloc=1 limit=", 512 * kMiB)), StartsWith("ok "));
  ASSERT_THAT(Alloc(*client, "a", 100), StartsWith("ok "));
  Restart();
  EXPECT_EQ(HeldBytes(), 512 * kMiB);
  auto other = StartClient();
  ASSERT_THAT(Ask(*other, "open c timeout=0"), StartsWith("ok "));
  EXPECT_THAT(Alloc(*other, "a", 600), StartsWith("error RESOURCE_EXHAUSTED"));
  ASSERT_TRUE(Eventually([&] { return IsBack(client->pid()); }));
  EXPECT_THAT(Alloc(*client, "b", 300), StartsWith("ok "));
  EXPECT_TRUE(Eventually([&] { return !Stats().leases(0).degraded(); }));
  ASSERT_EQ(Ask(*client, "free a"), "ok");
  ASSERT_THAT(Ask(*client, "trim c"), StartsWith("ok "));
  EXPECT_EQ(HeldBytes(), 512 * kMiB);
  // A dead session's chunks come back.
  client->Signal(SIGKILL);
  EXPECT_TRUE(Eventually([&] { return HeldBytes() == 0; }));
}

TEST_F(RestartTest, PreallocatedMemoryThatCannotBeMadeAgainIsSeenAndStaysPromised) {
  StartInDirectory();
  auto client = StartClient();
  ASSERT_THAT(Ask(*client, absl::StrCat("open c timeout=0 prealloc=1 limit=", 512 * kMiB)),
              StartsWith("ok "));
  ASSERT_THAT(Alloc(*client, "a", 100), StartsWith("ok "));
  KillDaemon();
  const std::string no_chunks = directory_.path() + "/no-chunks";
  std::ofstream(no_chunks) << "now";
  DaemonProcess::Options options = InDirectory();
  options.lgpud = LGPU_FAULTY_LGPUD;
  options.environment = {{"LGPU_TEST_NO_CHUNKS", no_chunks}};
  StartDaemon(options);
  ASSERT_TRUE(Eventually([&] { return IsBack(client->pid()); }));
  EXPECT_TRUE(Stats().leases(0).degraded());
  EXPECT_LT(HeldBytes(), 512 * kMiB);
  EXPECT_EQ(Ask(*client, "read a"), absl::StrCat("ok ", 100 * kMiB / 4 * 1.0));
  // No other session gets the memory that is not made yet.
  auto other = StartClient();
  ASSERT_THAT(Ask(*other, "open c timeout=0"), StartsWith("ok "));
  EXPECT_THAT(Alloc(*other, "a", 600), StartsWith("error RESOURCE_EXHAUSTED"));
  std::filesystem::remove(no_chunks);
  EXPECT_TRUE(Eventually([&] { return !Stats().leases(0).degraded() && HeldBytes() == 512 * kMiB; }));
  EXPECT_THAT(Alloc(*client, "b", 300), StartsWith("ok "));
  EXPECT_THAT(Alloc(*other, "a", 300), StartsWith("ok "));
}

TEST_F(RestartTest, ADamagedJournalHoldsBackUnexplainedMemory) {
  StartInDirectory();
  auto client = StartClient();
  ASSERT_THAT(Ask(*client, "open c timeout=0"), StartsWith("ok "));
  ASSERT_THAT(Alloc(*client, "a", 600), StartsWith("ok "));
  KillDaemon();
  std::ofstream(journal(), std::ios::trunc) << "this is no journal at all, however long one looks at it; "
                                               "none of it, from its beginning to its end";
  StartInDirectory();
  ASSERT_EQ(Stats().cards_size(), 1);
  EXPECT_GE(Stats().cards(0).foreign_bytes(), 600 * kMiB);
  auto other = StartClient();
  ASSERT_THAT(Ask(*other, "open c timeout=0"), StartsWith("ok "));
  EXPECT_THAT(Alloc(*other, "a", 600), StartsWith("error RESOURCE_EXHAUSTED"));
  EXPECT_THAT(Alloc(*other, "a", 200), StartsWith("ok "));
  // The session is lost, and says so; its memory stays usable.
  EXPECT_TRUE(Eventually(
      [&] { return Alloc(*client, "b", 100).find("error FAILED_PRECONDITION") != std::string::npos; }));
  EXPECT_EQ(Ask(*client, "read a"), absl::StrCat("ok ", 600 * kMiB / 4 * 1.0));
  // Also when the daemon is killed meanwhile, with a journal that is whole again.
  Restart();
  EXPECT_GE(Stats().cards(0).foreign_bytes(), 600 * kMiB);
  client->Signal(SIGKILL);
  EXPECT_TRUE(Eventually([&] { return Stats().cards(0).foreign_bytes() == 0; }));
  ASSERT_TRUE(Eventually([&] { return IsBack(other->pid()); }));
  // It may learn a little later than the daemon that it is back.
  EXPECT_TRUE(Eventually([&] { return Alloc(*other, "b", 600).rfind("ok ", 0) == 0; }));
}

// The file ends with a whole record, as if the grants behind it had never been.
TEST_F(RestartTest, AJournalThatWasCutShortHoldsBackUnexplainedMemory) {
  StartInDirectory();
  auto client = StartClient();
  ASSERT_THAT(Ask(*client, "open c timeout=0"), StartsWith("ok "));
  const auto before = std::filesystem::file_size(journal());
  ASSERT_THAT(Alloc(*client, "a", 600), StartsWith("ok "));
  KillDaemon();
  ASSERT_GT(std::filesystem::file_size(journal()), before);
  std::filesystem::resize_file(journal(), before);
  StartInDirectory();
  EXPECT_GE(Stats().cards(0).foreign_bytes(), 600 * kMiB);
  auto other = StartClient();
  ASSERT_THAT(Ask(*other, "open c timeout=0"), StartsWith("ok "));
  EXPECT_THAT(Alloc(*other, "a", 600), StartsWith("error RESOURCE_EXHAUSTED"));
  EXPECT_THAT(Alloc(*other, "a", 200), StartsWith("ok "));
  EXPECT_EQ(Ask(*client, "read a"), absl::StrCat("ok ", 600 * kMiB / 4 * 1.0));
  client->Signal(SIGKILL);
  EXPECT_TRUE(Eventually([&] { return Stats().cards(0).foreign_bytes() == 0; }));
}

// The journal is read twice: the daemon that found it damaged dies before it has written another one.
TEST_F(RestartTest, ReadableRecordsOfADamagedJournalAreKept) {
  StartInDirectory();
  auto client = StartClient();
  ASSERT_THAT(Ask(*client, "open c"), StartsWith("ok "));
  ASSERT_THAT(Alloc(*client, "a", 100), StartsWith("ok "));
  KillDaemon();
  std::ofstream(journal(), std::ios::app) << "this is no record at all";
  DaemonProcess::Options options = InDirectory();
  options.lgpud = LGPU_FAULTY_LGPUD;
  options.environment = {{"LGPU_TEST_JOURNAL_DIE", "1"}};
  EXPECT_FALSE(DaemonProcess::Start(options).ok());
  StartInDirectory();
  ASSERT_TRUE(Eventually([&] { return IsBack(client->pid()); }));
  EXPECT_TRUE(LedgerIsTrue({client->pid()}));
  EXPECT_THAT(Alloc(*client, "b", 100), StartsWith("ok "));
}

TEST_F(RestartTest, ADamagedJournalBringsNoRemovedLeaseBack) {
  StartInDirectory();
  v1::CreateLeaseRequest request = OneDevice(64 * kMiB, /*preallocate=*/false, /*lasting=*/true);
  request.set_name("removed");
  ASSERT_TRUE(control_->CreateLease(request).ok());
  const auto before = std::filesystem::file_size(journal());
  ASSERT_TRUE(control_->RemoveLease("removed").ok());
  KillDaemon();
  {
    std::fstream file(journal(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(before) + 14);
    file.put('!');
  }
  StartInDirectory();
  EXPECT_FALSE(control_->GetLease("removed").ok());
}

// The removed lease had a program, and the record of its end is in the damaged part too.
TEST_F(RestartTest, ADamagedJournalBringsNoRemovedLeaseOfADeadProgramBack) {
  StartInDirectory();
  v1::CreateLeaseRequest request = OneDevice(64 * kMiB, /*preallocate=*/false, /*lasting=*/true);
  request.set_name("removed");
  ASSERT_TRUE(control_->CreateLease(request).ok());
  auto client = StartClient();
  ASSERT_THAT(Ask(*client, "open c lease=removed"), StartsWith("ok "));
  const auto before = std::filesystem::file_size(journal());
  ASSERT_EQ(Ask(*client, "close c"), "ok");
  client->Signal(SIGKILL);
  client->Wait();
  ASSERT_TRUE(control_->RemoveLease("removed").ok());
  KillDaemon();
  {
    std::fstream file(journal(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(before) + 14);
    file.put('!');
  }
  StartInDirectory();
  EXPECT_TRUE(Eventually([&] { return Stats().leases_size() == 0; })) << Stats().DebugString();
  Restart();
  EXPECT_EQ(Stats().leases_size(), 0);
}

// Nothing says that it was removed.
TEST_F(RestartTest, ADamagedJournalIsBelievedWhereThereIsNoFileOfLeases) {
  StartInDirectory();
  v1::CreateLeaseRequest request = OneDevice(64 * kMiB, /*preallocate=*/false, /*lasting=*/true);
  request.set_name("stays");
  ASSERT_TRUE(control_->CreateLease(request).ok());
  KillDaemon();
  std::filesystem::remove(directory_.path() + "/state/leases");
  std::ofstream(journal(), std::ios::app) << "this is no record at all";
  StartInDirectory();
  EXPECT_TRUE(control_->RemoveLease("stays").ok());
}

TEST_F(RestartTest, AMissingJournalHoldsBackMemoryThatProcessesHold) {
  StartInDirectory();
  auto client = StartClient();
  ASSERT_THAT(Ask(*client, "open c"), StartsWith("ok "));
  ASSERT_THAT(Alloc(*client, "a", 300), StartsWith("ok "));
  KillDaemon();
  std::filesystem::remove(journal());
  StartInDirectory();
  EXPECT_GE(Stats().cards(0).foreign_bytes(), 300 * kMiB);
  client->Signal(SIGKILL);
  EXPECT_TRUE(Eventually([&] { return Stats().cards(0).foreign_bytes() == 0; }));
}

TEST_F(RestartTest, ATornJournalLosesOnlyGrantsThatNeverLeft) {
  StartInDirectory();
  auto client = StartClient();
  ASSERT_THAT(Ask(*client, "open c"), StartsWith("ok "));
  ASSERT_THAT(Alloc(*client, "a", 100), StartsWith("ok "));
  KillDaemon();
  std::ofstream(journal(), std::ios::app) << "short";
  StartInDirectory();
  ASSERT_TRUE(Eventually([&] { return IsBack(client->pid()); }));
  EXPECT_TRUE(LedgerIsTrue({client->pid()}));
  EXPECT_EQ(Stats().cards(0).foreign_bytes(), 0u);
}

TEST_F(RestartTest, AChildThatHasTheMemoryOfADeadClientLosesIt) {
  StartInDirectory();
  auto client = StartClient();
  ASSERT_THAT(Ask(*client, "open c"), StartsWith("ok "));
  ASSERT_THAT(Alloc(*client, "a", 100), StartsWith("ok "));
  const std::string answer = Ask(*client, "forkhold");
  ASSERT_THAT(answer, StartsWith("ok "));
  const pid_t child = static_cast<pid_t>(std::stoi(answer.substr(3)));
  KillDaemon();
  client->Signal(SIGKILL);
  client->Wait();
  EXPECT_GE(ChunkBytesHeldBy({child}), 100 * kMiB) << "the child has the descriptors";
  StartInDirectory();
  EXPECT_TRUE(Eventually([&] { return HeldBytes() == 0; }));
  EXPECT_EQ(ChunkBytesHeldBy({child}), 0u);
  EXPECT_EQ(::kill(child, SIGKILL), 0);
}

}  // namespace
}  // namespace lgpu::testing
