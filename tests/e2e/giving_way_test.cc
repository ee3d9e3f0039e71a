// Programs of liblgpu that give way as lgpud tells them: `lgpu suspend`, `lgpu resume`, and `--preemptible`.

#include <signal.h>

#include <chrono>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/e2e/harness.h"

namespace lgpu::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr std::chrono::minutes kTurn{5};  // a program waits for its memory at most so long here

/// A card of 32 MiB: a turn lasts ten times what its moves take, so small programs have short turns.
class GivingWayTest : public E2eTest {
 protected:
  void StartShortTurns() {
    DaemonProcess::Options options = InDirectory("32MiB");
    options.config = "[memory]\nmin_run = \"200ms\"\n";
    StartDaemon(options);
  }
  /// A lease of the whole card.
  std::string MakeLease(const std::string& name, v1::Preemptible preemptible = v1::PREEMPTIBLE_NEVER) {
    v1::CreateLeaseRequest request = OneDevice(32 * kMiB, /*preallocate=*/false, /*lasting=*/true);
    request.set_name(name);
    request.set_preemptible(preemptible);
    const auto lease = control_->CreateLease(request);
    EXPECT_TRUE(lease.ok()) << lease.status();
    return lease.ok() ? lease->id() : "";
  }
  struct Program {
    std::string lease;
    std::unique_ptr<ChildProgram> child = {};
    std::string digest = {};
  };
  Program StartIn(const std::string& lease) {
    Program program{.lease = lease, .child = StartClient()};
    EXPECT_THAT(Ask(*program.child, absl::StrCat("open c timeout=30000 lease=", lease)), StartsWith("ok "));
    return program;
  }
  static std::string Numbers(int mib, int seed) {
    return absl::StrCat("numbers c t ", mib * kMiB, " ", seed);
  }
  static std::string AskInTurn(Program& program, const std::string& line) {
    program.child->WriteLine(line);
    return program.child->ReadLine(kTurn).value_or("no answer");
  }
  void Fill(Program& program, int mib, int seed) {
    program.digest = AskInTurn(program, Numbers(mib, seed));
    EXPECT_THAT(program.digest, StartsWith("ok 0x"));
  }
  void End(Program& program) {
    EXPECT_EQ(AskInTurn(program, "close c"), "ok");
    EXPECT_TRUE(control_->RemoveLease(program.lease).ok());
  }
  /// Each has its contents, in its turn.
  void EndBoth(Program& ann, Program& bob) {
    EXPECT_EQ(AskInTurn(ann, "digest t"), ann.digest);
    EXPECT_EQ(AskInTurn(bob, "digest t"), bob.digest);
    EXPECT_TRUE(LedgerIsTrue({ann.child->pid(), bob.child->pid()}));
    End(bob);
    End(ann);
  }
  bool IsSuspended(const std::string& lease) {
    const v1::StatsSnapshot stats = Stats();
    for (const v1::LeaseStats& shown : stats.leases()) {
      if (shown.id() == lease) return shown.suspension().in_host_memory();
    }
    return false;
  }
};

TEST_F(GivingWayTest, ASuspendedProgramWaitsUntilItIsResumed) {
  StartDaemon({.simulate = "32MiB"});
  Program ann = StartIn(MakeLease("ann"));
  Fill(ann, 18, 7);
  const auto suspended = control_->SuspendLease(ann.lease);
  ASSERT_TRUE(suspended.ok()) << suspended.status();
  EXPECT_EQ(suspended->bytes(), 18 * kMiB);
  EXPECT_EQ(HeldBytes(), 0u);
  EXPECT_EQ(ChunkBytesOpen(ann.child->pid()), 0u);
  EXPECT_TRUE(IsSuspended(ann.lease));
  EXPECT_THAT(control_->SuspendLease(ann.lease).status().message(), HasSubstr("suspended already"));
  ann.child->WriteLine("digest t");
  Program bob = StartIn(MakeLease("bob"));
  Fill(bob, 26, 1);
  EXPECT_THAT(control_->ResumeLease(ann.lease).status().message(), HasSubstr("no room for lease ann"));
  EXPECT_EQ(ann.child->ReadLine(std::chrono::milliseconds(300)), std::nullopt) << "it waits";
  End(bob);
  const auto resumed = control_->ResumeLease(ann.lease);
  ASSERT_TRUE(resumed.ok()) << resumed.status();
  EXPECT_EQ(resumed->bytes(), 18 * kMiB);
  EXPECT_EQ(ann.child->ReadLine(kTurn), ann.digest);
  EXPECT_EQ(HeldBytes(), 18 * kMiB);
  EXPECT_EQ(Ask(*ann.child, "work c"), "ok");
  EXPECT_TRUE(LedgerIsTrue({ann.child->pid()}));
  End(ann);
}

TEST_F(GivingWayTest, ItsOwnSuspendAndResumeGoWithIt) {
  StartDaemon({.simulate = "32MiB"});
  Program ann = StartIn(MakeLease("ann"));
  Fill(ann, 18, 7);
  ASSERT_TRUE(control_->SuspendLease(ann.lease).ok());
  EXPECT_EQ(Ask(*ann.child, "suspend c"), "ok") << "it is suspended";
  ann.child->WriteLine("resume c");
  ASSERT_TRUE(control_->ResumeLease(ann.lease).ok());
  EXPECT_EQ(ann.child->ReadLine(kTurn), "ok");
  EXPECT_EQ(Ask(*ann.child, "digest t"), ann.digest);
  ASSERT_EQ(Ask(*ann.child, "suspend c"), "ok");
  EXPECT_THAT(control_->SuspendLease(ann.lease).status().message(), HasSubstr("suspended already"));
  EXPECT_THAT(control_->ResumeLease(ann.lease).status().message(), HasSubstr("has suspended itself"));
  EXPECT_EQ(Ask(*ann.child, "resume c"), "ok");
  EXPECT_EQ(Ask(*ann.child, "digest t"), ann.digest);
  End(ann);
}

TEST_F(GivingWayTest, ItEndsBySigkillAndByClose) {
  StartDaemon({.simulate = "32MiB"});
  const std::string lease = MakeLease("ann");
  Program killed = StartIn(lease);
  Fill(killed, 18, 7);
  ASSERT_TRUE(control_->SuspendLease(lease).ok());
  killed.child->Signal(SIGKILL);
  EXPECT_TRUE(Eventually([&] { return !IsSuspended(lease); }));
  Program closed = StartIn(lease);
  Fill(closed, 18, 7);
  ASSERT_TRUE(control_->SuspendLease(lease).ok());
  EXPECT_EQ(AskInTurn(closed, "close c"), "ok");
  EXPECT_TRUE(Eventually([&] { return !IsSuspended(lease); }));
  EXPECT_TRUE(control_->RemoveLease(lease).ok());
}

TEST_F(GivingWayTest, ARestartOfLgpudKeepsTheSuspension) {
  StartInDirectory("32MiB");
  Program ann = StartIn(MakeLease("ann"));
  Fill(ann, 18, 7);
  ASSERT_TRUE(control_->SuspendLease(ann.lease).ok());
  Restart();
  ASSERT_TRUE(Eventually([&] { return IsBack(ann.child->pid()); }));
  EXPECT_TRUE(IsSuspended(ann.lease));
  EXPECT_EQ(HeldBytes(), 0u);
  ann.child->WriteLine("digest t");
  EXPECT_EQ(ann.child->ReadLine(std::chrono::milliseconds(300)), std::nullopt) << "it waits";
  ASSERT_TRUE(control_->ResumeLease(ann.lease).ok());
  EXPECT_EQ(ann.child->ReadLine(kTurn), ann.digest);
  End(ann);
}

TEST_F(GivingWayTest, BlocksOfTheProgramsOwnStay) {
  StartDaemon({.simulate = "32MiB"});
  Program ann = StartIn(MakeLease("ann"));
  Fill(ann, 12, 7);
  ASSERT_EQ(Ask(*ann.child, "block c 4096"), "ok");
  EXPECT_THAT(control_->SuspendLease(ann.lease).status().message(), HasSubstr("cannot be suspended"));
  EXPECT_FALSE(IsSuspended(ann.lease));
  EXPECT_EQ(Ask(*ann.child, "digest t"), ann.digest);
  EXPECT_EQ(Ask(*ann.child, "unblock"), "ok");
  End(ann);
}

TEST_F(GivingWayTest, TwoIdleProgramsThatEachNeedTheCardTakeTurns) {
  StartShortTurns();
  Program ann = StartIn(MakeLease("ann", v1::PREEMPTIBLE_IDLE));
  Program bob = StartIn(MakeLease("bob", v1::PREEMPTIBLE_IDLE));
  Fill(ann, 20, 7);
  Fill(bob, 18, 8);
  EXPECT_TRUE(IsSuspended(ann.lease)) << "it was idle";
  EXPECT_EQ(AskInTurn(ann, "digest t"), ann.digest);
  EXPECT_TRUE(IsSuspended(bob.lease));
  EXPECT_EQ(AskInTurn(bob, "digest t"), bob.digest);
  EXPECT_TRUE(IsSuspended(ann.lease));
  EndBoth(ann, bob);
}

TEST_F(GivingWayTest, RoomIsKeptForWhoGaveWay) {
  StartShortTurns();
  Program ann = StartIn(MakeLease("ann", v1::PREEMPTIBLE_IDLE));
  Program bob = StartIn(MakeLease("bob", v1::PREEMPTIBLE_IDLE));
  Fill(ann, 26, 7);
  Fill(bob, 20, 8);
  ASSERT_TRUE(IsSuspended(ann.lease));
  // Beside what bob's program gives ann's needs at least 4 of the 10 or 12 MiB that are free.
  Program cyd{.lease = MakeLease("cyd"), .child = StartClient()};
  EXPECT_THAT(Ask(*cyd.child, absl::StrCat("open c timeout=100 lease=", cyd.lease)), StartsWith("ok "));
  EXPECT_THAT(AskInTurn(cyd, Numbers(9, 9)), HasSubstr("is kept for lease ann"));
  EXPECT_THAT(AskInTurn(cyd, Numbers(4, 9)), StartsWith("ok 0x"));
  EXPECT_EQ(AskInTurn(ann, "digest t"), ann.digest);
  End(cyd);
  EndBoth(ann, bob);
}

TEST_F(GivingWayTest, TwoThatWaitForMemoryAtWorkBothGoOn) {
  StartShortTurns();
  Program ann = StartIn(MakeLease("ann", v1::PREEMPTIBLE_ALWAYS));
  Program bob = StartIn(MakeLease("bob", v1::PREEMPTIBLE_ALWAYS));
  Fill(ann, 12, 7);
  Fill(bob, 12, 8);
  // Each has some, waits for more, and can have it only if the other gives way while it waits.
  ann.child->WriteLine(absl::StrCat("numbers c more ", 14 * kMiB, " 1"));
  bob.child->WriteLine(absl::StrCat("numbers c more ", 16 * kMiB, " 2"));
  EXPECT_THAT(ann.child->ReadLine(kTurn).value_or("no answer"), StartsWith("ok 0x"));
  EXPECT_THAT(bob.child->ReadLine(kTurn).value_or("no answer"), StartsWith("ok 0x"));
  EndBoth(ann, bob);
}

TEST_F(GivingWayTest, AProgramThatIsAwayOutlivesLgpud) {
  StartShortTurns();
  Program ann = StartIn(MakeLease("ann", v1::PREEMPTIBLE_IDLE));
  Program bob = StartIn(MakeLease("bob", v1::PREEMPTIBLE_IDLE));
  Fill(ann, 20, 7);
  Fill(bob, 18, 8);
  ASSERT_TRUE(IsSuspended(ann.lease));
  KillDaemon();
  ann.child->WriteLine("digest t");
  StartShortTurns();
  EXPECT_EQ(ann.child->ReadLine(kTurn), ann.digest);
  EXPECT_EQ(AskInTurn(bob, "digest t"), bob.digest);
  End(bob);
  End(ann);
}

}  // namespace
}  // namespace lgpu::testing
