#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/e2e/harness.h"

namespace lgpu::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class LifetimeTest : public E2eTest {};

TEST_F(LifetimeTest, MemoryOfAKilledClientIsBack) {
  StartDaemon();
  auto victim = StartClient();
  auto other = StartClient();
  // Neither can grow ahead of its need.
  ASSERT_THAT(Ask(*victim, absl::StrCat("open c limit=", 200 * kMiB)), StartsWith("ok "));
  ASSERT_THAT(Ask(*other, absl::StrCat("open c limit=", 20 * kMiB)), StartsWith("ok "));
  ASSERT_THAT(Ask(*victim, absl::StrCat("alloc c t ", 200 * kMiB)), StartsWith("ok "));
  ASSERT_THAT(Ask(*other, absl::StrCat("alloc c t ", 20 * kMiB)), StartsWith("ok "));
  ASSERT_EQ(HeldBytes(), 220 * kMiB);
  ASSERT_EQ(ChunkBytesOpen(daemon_->pid()), 220 * kMiB);
  victim->Signal(SIGKILL);
  EXPECT_TRUE(Eventually([&] { return HeldBytes() == 20 * kMiB; })) << HeldBytes();
  EXPECT_TRUE(Eventually([&] { return ChunkBytesOpen(daemon_->pid()) == 20 * kMiB; }));
  EXPECT_TRUE(Eventually([&] { return Stats().leases_size() == 1; }));
  EXPECT_EQ(Stats().sessions_lost_total(), 1u);
  // The survivor did not notice, and can have it all.
  EXPECT_EQ(Ask(*other, "read t"), "ok 5.24288e+06");
  EXPECT_THAT(Ask(*other, "open d"), StartsWith("ok "));
  EXPECT_THAT(Ask(*other, absl::StrCat("alloc d u ", 900 * kMiB)), StartsWith("ok "));
  EXPECT_EQ(Ask(*other, "close d"), "ok");
  EXPECT_EQ(Ask(*other, "close c"), "ok");
}

TEST_F(LifetimeTest, AClosedContextGivesEverythingBackWhileItsProcessLivesOn) {
  StartDaemon();
  auto client = StartClient();
  ASSERT_THAT(Ask(*client, "open c"), StartsWith("ok "));
  ASSERT_THAT(Ask(*client, absl::StrCat("alloc c t ", 32 * kMiB)), StartsWith("ok "));
  EXPECT_GT(CountMappings(client->pid()), 0u);
  EXPECT_EQ(Ask(*client, "close c"), "ok");
  // All memory is back when the answer comes.
  EXPECT_EQ(HeldBytes(), 0u);
  EXPECT_EQ(ChunkBytesOpen(daemon_->pid()), 0u);
  EXPECT_EQ(ChunkBytesOpen(client->pid()), 0u);
  EXPECT_THAT(Ask(*client, "read t"), StartsWith("error FAILED_PRECONDITION"));
  EXPECT_THAT(Ask(*client, "alloc c u 512"), StartsWith("error FAILED_PRECONDITION"));
  // The two pages, with the last statistics, go with the objects themselves.
  EXPECT_EQ(Ask(*client, "free t"), "ok");
  EXPECT_EQ(Ask(*client, "drop c"), "ok");
  EXPECT_EQ(CountMappings(client->pid()), 0u);
  EXPECT_EQ(Stats().sessions_lost_total(), 0u);
}

TEST_F(LifetimeTest, AThousandContextsInOneProcessLeaveNothingBehind) {
  StartDaemon();
  auto client = StartClient();
  ASSERT_EQ(Ask(*client, "churn 50"), "ok");  // makes the things that exist once in a process
  const std::size_t descriptors = CountDescriptors(client->pid());
  const std::size_t threads = CountThreads(client->pid());
  const std::uint64_t memory = PrivateBytes(client->pid());
  const std::size_t daemon_descriptors = CountDescriptors(daemon_->pid());
  const std::uint64_t daemon_memory = PrivateBytes(daemon_->pid());
  ASSERT_EQ(Ask(*client, "churn 475"), "ok");
  ASSERT_EQ(Ask(*client, "churn 475"), "ok");
  // Libraries end threads of theirs when they come to it.
  EXPECT_TRUE(Eventually([&] { return CountDescriptors(client->pid()) <= descriptors; }))
      << CountDescriptors(client->pid()) << " against " << descriptors;
  EXPECT_TRUE(Eventually([&] { return CountThreads(client->pid()) <= threads; }))
      << CountThreads(client->pid());
  EXPECT_EQ(CountMappings(client->pid()), 0u);
  EXPECT_TRUE(Eventually([&] { return CountDescriptors(daemon_->pid()) <= daemon_descriptors; }))
      << CountDescriptors(daemon_->pid()) << " against " << daemon_descriptors;
  if (!kSanitized) {  // sanitizers keep what was freed
    // Neither side may keep memory for every context: a page for each would be 4 MB.
    EXPECT_LT(PrivateBytes(client->pid()), memory + 3 * kMiB);
    EXPECT_LT(PrivateBytes(daemon_->pid()), daemon_memory + 3 * kMiB);
  }
  EXPECT_EQ(Stats().leases_size(), 0);
}

TEST_F(LifetimeTest, AForkedChildsCopyIsDeadAndTheParentGoesOn) {
  StartDaemon();
  auto client = StartClient();
  ASSERT_THAT(Ask(*client, "open c"), StartsWith("ok "));
  ASSERT_THAT(Ask(*client, absl::StrCat("alloc c t ", 4 * kMiB)), StartsWith("ok "));
  const std::string child = Ask(*client, "fork c");
  EXPECT_THAT(child, StartsWith("ok error FAILED_PRECONDITION"));
  EXPECT_THAT(child.substr(std::min(child.find('|'), child.size())),
              StartsWith("|error FAILED_PRECONDITION"));
  EXPECT_THAT(child, HasSubstr("fork"));
  EXPECT_EQ(Ask(*client, "read t"), "ok 1.04858e+06");
  EXPECT_EQ(Ask(*client, "work c"), "ok");
  EXPECT_EQ(Ask(*client, "close c"), "ok");
}

TEST_F(LifetimeTest, AForkedChildThatLivesOnDoesNotKeepItsDeadParentsMemory) {
  StartDaemon();
  auto client = StartClient();
  ASSERT_THAT(Ask(*client, "open c"), StartsWith("ok "));
  ASSERT_THAT(Ask(*client, absl::StrCat("alloc c t ", 64 * kMiB)), StartsWith("ok "));
  const std::string answer = Ask(*client, "forkhold");
  ASSERT_THAT(answer, StartsWith("ok "));
  const pid_t child = static_cast<pid_t>(std::stoi(answer.substr(3)));
  client->Signal(SIGKILL);
  EXPECT_TRUE(Eventually([&] { return HeldBytes() == 0; }));
  EXPECT_EQ(CountMappings(child), 0u);
  EXPECT_EQ(::kill(child, SIGKILL), 0);
}

// The pid lives on, the program is another one: it attaches anew, and the memory of the first is back.
TEST_F(LifetimeTest, AProgramThatExecsHoldsNothingAndAttachesAnew) {
  StartDaemon();
  auto lease = control_->CreateLease(OneDevice(256 * kMiB, /*preallocate=*/false, /*lasting=*/true));
  ASSERT_TRUE(lease.ok()) << lease.status();
  auto client = StartClient({{"LGPU_LEASE", lease->name()}});
  ASSERT_EQ(Ask(*client, "open c"), "ok " + lease->id());
  ASSERT_THAT(Ask(*client, absl::StrCat("alloc c t ", 64 * kMiB)), StartsWith("ok "));
  client->WriteLine("exec");
  // Only now: input that the first program has read is lost to the second one.
  ASSERT_TRUE(Eventually([&] { return HeldBytes() == 0; }));
  EXPECT_EQ(CountMappings(client->pid()), 0u);
  ASSERT_EQ(Ask(*client, "open c"), "ok " + lease->id());
  ASSERT_THAT(Ask(*client, absl::StrCat("alloc c t ", 200 * kMiB)), StartsWith("ok "));
  EXPECT_TRUE(LedgerIsTrue({client->pid()}));
  client->Signal(SIGKILL);
  EXPECT_TRUE(Eventually([&] { return HeldBytes() == 0; }));
  EXPECT_TRUE(control_->RemoveLease(lease->id()).ok());
}

TEST_F(LifetimeTest, ADirectoryWithoutADaemonIsAClearError) {
  StartDaemon();
  auto client = StartClient();
  TempDir empty;
  EXPECT_THAT(Ask(*client, "open c endpoint=" + empty.path()),
              AllOf(StartsWith("error UNAVAILABLE"), HasSubstr(empty.path()), HasSubstr("try:")));
  EXPECT_THAT(Ask(*client, "open c endpoint=/nonexistent/lgpu"), StartsWith("error UNAVAILABLE"));
  EXPECT_THAT(Ask(*client, "open c lease=none"), StartsWith("error NOT_FOUND"));
}

TEST_F(LifetimeTest, ASecondDaemonOnTheSameDirectoryRefusesAndTheFirstGoesOn) {
  StartDaemon();
  const auto second = DaemonProcess::Start({.dir = daemon_->dir()});
  ASSERT_FALSE(second.ok());
  EXPECT_THAT(
      std::string(second.status().message()),
      AllOf(HasSubstr("another lgpud"), HasSubstr(absl::StrCat(daemon_->pid())), HasSubstr("code 1")));
  auto client = StartClient();
  ASSERT_THAT(Ask(*client, "open c"), StartsWith("ok "));
  EXPECT_EQ(Ask(*client, "close c"), "ok");
}

TEST_F(LifetimeTest, ASecondDaemonOnTheSameCardDoesNotServeIt) {
  TempDir locks;
  const std::string card = "[[simulated_device]]\nmemory = \"64MiB\"\nuuid = \"GPU-shared-1\"\n";
  StartDaemon({.simulate = "", .lock_dir = locks.path(), .config = card});
  const auto second = DaemonProcess::Start({.simulate = "", .lock_dir = locks.path(), .config = card});
  ASSERT_FALSE(second.ok());
  EXPECT_THAT(std::string(second.status().message()), AllOf(HasSubstr("GPU"), HasSubstr("code 9")));

  // With a card of its own it serves that one and lists the other as another daemon's.
  const std::string two_cards = card + "[[simulated_device]]\nmemory = \"64MiB\"\nuuid = \"GPU-own-2\"\n";
  const auto third = DaemonProcess::Start({.simulate = "", .lock_dir = locks.path(), .config = two_cards});
  ASSERT_TRUE(third.ok()) << third.status();
  auto control = Control::Open((*third)->dir());
  ASSERT_TRUE(control.ok());
  const auto stats = (*control)->GetStats();
  ASSERT_TRUE(stats.ok());
  ASSERT_EQ(stats->cards_size(), 2);
  for (const v1::CardStats& listed : stats->cards()) {
    EXPECT_EQ(listed.served(), listed.uuid() == "GPU-own-2");
    if (!listed.served()) {
      EXPECT_THAT(listed.not_served_because(), HasSubstr(absl::StrCat(daemon_->pid())));
    }
  }
  EXPECT_EQ((*third)->Stop(), 0);
}

TEST_F(LifetimeTest, StopsCleanlyWithClientsAttached) {
  StartDaemon();
  auto client = StartClient();
  ASSERT_THAT(Ask(*client, "open c timeout=0"), StartsWith("ok "));
  ASSERT_THAT(Ask(*client, absl::StrCat("alloc c t ", 16 * kMiB)), StartsWith("ok "));
  const std::string dir = daemon_->dir();
  EXPECT_EQ(daemon_->Stop(), 0) << daemon_->program().Errors();
  EXPECT_NE(::access((dir + "/control.sock").c_str(), F_OK), 0);
  EXPECT_NE(::access((dir + "/session.sock").c_str(), F_OK), 0);
  // The client is told, and is not killed by it.
  EXPECT_THAT(Ask(*client, absl::StrCat("alloc c u ", 16 * kMiB)), StartsWith("error UNAVAILABLE"));
  client->WriteLine("exit");
  EXPECT_EQ(client->Wait(), 0);
}

TEST_F(LifetimeTest, ADaemonStartsWhereAKilledOneLeftItsSockets) {
  TempDir base;
  const std::string dir = base.path() + "/run";
  {
    StartDaemon({.dir = dir});
    daemon_->program().Signal(SIGKILL);
    ASSERT_EQ(daemon_->program().Wait(), 128 + SIGKILL);
  }
  StartDaemon({.dir = dir});
  auto client = StartClient();
  ASSERT_THAT(Ask(*client, "open c"), StartsWith("ok "));
  EXPECT_EQ(Ask(*client, "close c"), "ok");
}

TEST_F(LifetimeTest, TheSteadyStateMakesNoSystemCall) {
  if (kSanitized) GTEST_SKIP() << "sanitizers make system calls of their own";
  StartDaemon();
  TempDir traces;
  const std::string trace = traces.path() + "/trace";
  const auto probe = RunProgram({.argv = {"strace", "-o", "/dev/null", "true"}});
  if (!probe.ok() || probe->code != 0) GTEST_SKIP() << "no strace here, or no right to trace";
  // One thread of OpenBLAS: with more of them, it is its own calls that would be seen.
  auto client = ChildProgram::Start(
      {.argv = {"strace", "-f", "-o", trace, LGPU_E2E_CLIENT},
       .environment = {{"LGPU_ENDPOINT", daemon_->dir()}, {"OPENBLAS_NUM_THREADS", "1"}}});
  ASSERT_TRUE(client.ok()) << client.status();
  ASSERT_THAT(Ask(**client, "open c"), StartsWith("ok "));
  ASSERT_EQ(Ask(**client, "ops c 5000"), "ok");  // two ops each
  ASSERT_EQ(Ask(**client, "close c"), "ok");
  (*client)->WriteLine("exit");
  ASSERT_EQ((*client)->Wait(), 0);
  std::ifstream in(trace);
  bool inside = false;
  bool seen = false;
  std::vector<std::string> calls, waits;
  std::string thread;  // that runs the ops; other threads may still be at work for the opening
  for (std::string line; std::getline(in, line);) {
    if (absl::StrContains(line, "/lgpu-ops-begin")) {
      inside = seen = true;
      thread = line.substr(0, line.find(' ') + 1);
      continue;
    }
    if (absl::StrContains(line, "/lgpu-ops-end")) inside = false;
    // The first marker's own end may stand on a line of its own.
    if (!inside || line.rfind(thread, 0) != 0 || absl::StrContains(line, "access resumed")) continue;
    // The session thread, which looks after the pool once a second, may hold its lock just then.
    (absl::StrContains(line, "futex") ? waits : calls).push_back(line);
  }
  EXPECT_TRUE(seen);
  EXPECT_LE(waits.size(), 8u);
  EXPECT_THAT(calls, ::testing::IsEmpty());
}

}  // namespace
}  // namespace lgpu::testing
