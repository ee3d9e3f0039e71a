// Programs that share a lease, and the ways in which frameworks take memory, on the fake driver.

#include <signal.h>

#include "absl/strings/str_cat.h"
#include "tests/driver/shim_fixture.h"

namespace lgpu::testing {
namespace {

TEST_F(ShimTest, TwoProgramsOfALeaseShareItsLimit) {
  StartMachine();
  const std::string lease = CreateLease("64MiB");
  auto one = StartIn(lease);
  auto two = StartIn(lease);
  EXPECT_EQ(Ask(*one, absl::StrCat("alloc a plain ", 40 * kMiB)), "ok");
  EXPECT_EQ(Ask(*two, absl::StrCat("alloc a plain ", 40 * kMiB)), "error 2");
  one->Signal(SIGKILL);
  EXPECT_EQ(one->Wait(), 128 + SIGKILL);
  EXPECT_TRUE(Eventually([&] { return Ask(*two, absl::StrCat("alloc a plain ", 40 * kMiB)) == "ok"; }))
      << "what a killed program had is free";
  End(*two);
}

TEST_F(ShimTest, ChargesOutliveTheDaemon) {
  StartMachine();
  const std::string lease = CreateLease("64MiB");
  auto client = StartIn(lease);
  EXPECT_EQ(Ask(*client, absl::StrCat("alloc a plain ", 40 * kMiB)), "ok");
  RestartDaemon();
  EXPECT_EQ(Ask(*client, absl::StrCat("alloc b plain ", 40 * kMiB)), "error 2");
  EXPECT_EQ(Ask(*client, absl::StrCat("alloc b plain ", 20 * kMiB)), "ok");
  EXPECT_EQ(Ask(*client, "free a"), "ok");
  EXPECT_EQ(Ask(*client, absl::StrCat("alloc c plain ", 40 * kMiB)), "ok");
  End(*client);
}

TEST_F(ShimTest, MemoryThatAnotherProgramHasOpenStaysChargedAfterItsMaker) {
  StartMachine();
  const std::string lease = CreateLease("64MiB");
  auto maker = StartIn(lease);
  auto user = StartIn(lease);
  EXPECT_EQ(Ask(*maker, absl::StrCat("alloc a plain ", 40 * kMiB)), "ok");
  EXPECT_EQ(Ask(*maker, absl::StrCat("alloc b plain ", 14 * kMiB)), "ok");
  const std::string handle = Ask(*maker, "ipc_get a").substr(3);
  EXPECT_EQ(Ask(*user, "ipc_open c " + handle), "ok");
  RestartDaemon();
  // Both come back, and tell their shared memory again.
  EXPECT_EQ(Ask(*maker, absl::StrCat("alloc x plain ", 40 * kMiB)), "error 2");
  EXPECT_EQ(Ask(*user, absl::StrCat("alloc d plain ", 20 * kMiB)), "error 2") << "it is charged once";
  maker->Signal(SIGKILL);
  EXPECT_EQ(maker->Wait(), 128 + SIGKILL);
  EXPECT_TRUE(Eventually([&] { return Ask(*user, absl::StrCat("alloc d plain ", 20 * kMiB)) == "ok"; }))
      << "what was not shared is free";
  EXPECT_EQ(Ask(*user, absl::StrCat("alloc e plain ", 20 * kMiB)), "error 2");
  EXPECT_EQ(Ask(*user, "free c"), "ok");
  EXPECT_TRUE(Eventually([&] { return Ask(*user, absl::StrCat("alloc e plain ", 20 * kMiB)) == "ok"; }))
      << "no process has it open";
  End(*user);
}

TEST_F(ShimTest, AHandleThatIsOpenTwiceIsOneImportUntilItsLastClose) {
  StartMachine();
  const std::string lease = CreateLease("64MiB");
  auto maker = StartIn(lease);
  auto user = StartIn(lease);
  EXPECT_EQ(Ask(*maker, absl::StrCat("alloc a plain ", 40 * kMiB)), "ok");
  const std::string handle = Ask(*maker, "ipc_get a").substr(3);
  EXPECT_EQ(Ask(*user, "ipc_open one " + handle), "ok");
  EXPECT_EQ(Ask(*user, "ipc_open two " + handle), "ok");
  maker->Signal(SIGKILL);
  EXPECT_EQ(maker->Wait(), 128 + SIGKILL);
  EXPECT_TRUE(Eventually([&] {
    return Stats().leases(0).sessions_size() == 2 &&
           Stats().leases(0).sessions(0).state() == v1::SessionStats::STATE_DRAINING;
  }));
  EXPECT_EQ(Ask(*user, "free one"), "ok");
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(Ask(*user, absl::StrCat("alloc b plain ", 40 * kMiB)), "error 2") << "it is open once more";
  }
  EXPECT_EQ(Ask(*user, "free two"), "ok");
  EXPECT_TRUE(Eventually([&] { return Ask(*user, absl::StrCat("alloc b plain ", 40 * kMiB)) == "ok"; }));
  End(*user);
}

TEST_F(ShimTest, MemoryThatTheDriverListsStaysChargedAfterItsProcess) {
  StartMachine();
  const std::string lease = CreateLease("64MiB");
  auto killed = StartIn(lease);
  auto other = StartIn(lease);
  EXPECT_EQ(Ask(*killed, absl::StrCat("alloc a plain ", 40 * kMiB)), "ok");
  machine_.state().hold_freed = true;  // as while a child of the process has the driver's files open
  killed->Signal(SIGKILL);
  EXPECT_EQ(killed->Wait(), 128 + SIGKILL);
  EXPECT_TRUE(Eventually([&] {
    return Stats().leases(0).sessions_size() == 2 &&
           Stats().leases(0).sessions(0).state() == v1::SessionStats::STATE_DRAINING;
  }));
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(Ask(*other, absl::StrCat("alloc a plain ", 40 * kMiB)), "error 2") << "the card has it";
  }
  machine_.state().hold_freed = false;
  EXPECT_TRUE(Eventually([&] { return Ask(*other, absl::StrCat("alloc a plain ", 40 * kMiB)) == "ok"; }));
  End(*other);
}

TEST_F(ShimTest, AProgramThatBecomesAnotherOneHasTheWholeLimit) {
  StartMachine();
  auto client = StartIn(CreateLease("64MiB"));
  for (int i = 0; i < 5; ++i) {
    // The new program may ask before lgpud has seen the end of the one before it.
    EXPECT_TRUE(Eventually([&] { return Ask(*client, absl::StrCat("alloc a plain ", 60 * kMiB)) == "ok"; }))
        << i;
    EXPECT_EQ(Ask(*client, "become"), "ok");
  }
  End(*client);
}

TEST_F(ShimTest, AForkedChildThatLivesOnHoldsNoCharge) {
  StartMachine();
  const std::string lease = CreateLease("64MiB");
  auto parent = StartIn(lease);
  auto other = StartIn(lease);
  EXPECT_EQ(Ask(*parent, absl::StrCat("alloc a plain ", 40 * kMiB)), "ok");
  EXPECT_EQ(Ask(*parent, "fork_and_stay"), "ok");
  parent->Signal(SIGKILL);
  EXPECT_EQ(parent->Wait(), 128 + SIGKILL);
  EXPECT_TRUE(Eventually([&] { return Ask(*other, absl::StrCat("alloc a plain ", 40 * kMiB)) == "ok"; }))
      << "the driver lists nothing of the parent";
  End(*other);
}

TEST_F(ShimTest, AResetOfTheContextGivesItsMemoryBack) {
  StartMachine();
  auto client = Start("64MiB", {Client("dlopen"), "dlopen", "libcuda.so.1"});
  EXPECT_EQ(Ask(*client, absl::StrCat("alloc a plain ", 40 * kMiB)), "ok");
  EXPECT_EQ(Ask(*client, "forget_context"), "ok");
  EXPECT_EQ(Ask(*client, "info"), "error 201") << "there is no context now";
  EXPECT_TRUE(Eventually([&] { return Stats().leases(0).devices(0).held_bytes() <= 8 * kMiB; }))
      << "the allowance";
  End(*client);
}

TEST_F(ShimTest, AForkedChildLeavesItsParentsSessionAlone) {
  StartMachine();
  auto client = Start("64MiB", {Client("dlopen"), "dlopen", "libcuda.so.1"});
  EXPECT_EQ(Ask(*client, absl::StrCat("alloc a plain ", 40 * kMiB)), "ok");
  EXPECT_EQ(Ask(*client, "fork"), "ok");
  EXPECT_EQ(Ask(*client, absl::StrCat("alloc b plain ", 40 * kMiB)), "error 2");
  EXPECT_EQ(Ask(*client, "free a"), "ok");
  EXPECT_EQ(Ask(*client, absl::StrCat("alloc b plain ", 40 * kMiB)), "ok");
  End(*client);
}

TEST_F(ShimTest, ThreadsThatAllocateTogetherNeverPassTheLimit) {
  StartMachine();
  auto client = Start("64MiB", {Client("dlopen"), "dlopen", "libcuda.so.1"});
  EXPECT_EQ(Ask(*client, absl::StrCat("churn 4 200 ", 20 * kMiB)), "ok");
  EXPECT_EQ(Ask(*client, "info"), absl::StrCat("ok ", 64 * kMiB, " ", 64 * kMiB)) << "all of it is back";
  EXPECT_EQ(Ask(*client, absl::StrCat("fill plain ", 8 * kMiB)), "ok 8 2");
  End(*client);
}

TEST_F(ShimTest, ChildrenOfTheCommandShareItsLimit) {
  StartMachine();
  auto child = Start(
      "64MiB", {"/bin/sh", "-c", absl::StrCat("exec ", Client("dlopen"), " dlopen \"$0\""), "libcuda.so.1"});
  EXPECT_EQ(Ask(*child, absl::StrCat("alloc a plain ", 60 * kMiB)), "ok");
  EXPECT_EQ(Ask(*child, absl::StrCat("alloc b plain ", 20 * kMiB)), "error 2");
  End(*child);
}

TEST_F(ShimTest, ThreeQuartersOfTheTotalAreThereInOnePiece) {  // as JAX begins
  StartMachine();
  auto client = Start("64MiB", {Client("lookup"), "lookup", "libcuda.so.1"});
  EXPECT_EQ(Ask(*client, "total"), absl::StrCat("ok ", 64 * kMiB));
  EXPECT_EQ(Ask(*client, absl::StrCat("alloc pool plain ", 48 * kMiB)), "ok");
  EXPECT_EQ(Ask(*client, absl::StrCat("alloc more plain ", 24 * kMiB)), "error 2");
  End(*client);
}

TEST_F(ShimTest, SegmentsFillTheLimitAndAFreedCacheIsUsedAgain) {  // as PyTorch's three allocators do
  StartMachine();
  auto client = Start("64MiB", {Client("lookup"), "lookup", "libcuda.so.1"});
  for (const char* const kind : {"plain", "virtual"}) {
    EXPECT_EQ(Ask(*client, absl::StrCat("fill ", kind, " ", 20 * kMiB)), "ok 3 2") << kind;
    EXPECT_EQ(Ask(*client, absl::StrCat("fill ", kind, " ", 2 * kMiB)), "ok 2 2") << kind;
    EXPECT_EQ(Ask(*client, "free_all"), "ok");
  }
  // A pool reserves 32 MiB at once, of which 20 MiB fit in once.
  EXPECT_EQ(Ask(*client, absl::StrCat("fill async ", 20 * kMiB)), "ok 2 2");
  EXPECT_EQ(Ask(*client, absl::StrCat("fill async ", 2 * kMiB)), "ok 12 2");
  EXPECT_EQ(Ask(*client, "free_all"), "ok");
  EXPECT_EQ(Ask(*client, absl::StrCat("alloc a plain ", 64 * kMiB)), "ok")
      << "a pool's memory counts no more once it is back";
  End(*client);
}

TEST_F(ShimTest, FreeMovesWithTheProgramsOwnUse) {  // as vLLM measures
  StartMachine();
  auto client = StartIn(CreateLease("64MiB"));
  auto neighbour = StartIn(CreateLease("64MiB"));
  for (int i = 1; i <= 10; ++i) {
    ASSERT_EQ(Ask(*neighbour, absl::StrCat("alloc n", i, " plain ", 2 * kMiB)), "ok");
    ASSERT_EQ(Ask(*client, absl::StrCat("alloc a", i, " plain ", 4 * kMiB)), "ok");
    EXPECT_EQ(Ask(*client, "info"), absl::StrCat("ok ", (64 - 4 * i) * kMiB, " ", 64 * kMiB));
  }
  for (int i = 1; i <= 10; ++i) {
    ASSERT_EQ(Ask(*client, absl::StrCat("free a", i)), "ok");
    EXPECT_EQ(Ask(*client, "info"), absl::StrCat("ok ", (24 + 4 * i) * kMiB, " ", 64 * kMiB));
  }
  End(*client);
  End(*neighbour);
}
}  // namespace
}  // namespace lgpu::testing
