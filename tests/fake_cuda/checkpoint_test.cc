// The fake driver's checkpoint calls, between processes: what a program has is the same after a suspension in
// which another one had its memory, each fault is as public threads report it, and no death of a process
// leaves others waiting.

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "lgpu/status.h"
#include "tests/fake_cuda/fake_machine.h"

namespace lgpu::fake_cuda {
namespace {

using testing::ChildProgram;
using testing::Eventually;

constexpr int kRunning = 0, kLocked = 1, kCheckpointed = 2;
constexpr std::chrono::milliseconds kShort{300};  // for what must not happen

/// A program that obeys the test.
class Client {
 public:
  explicit Client(FakeMachine& machine, const std::string& library_folder = "") {
    ChildProgram::Environment environment = machine.environment();
    if (!library_folder.empty()) environment["LD_LIBRARY_PATH"] = library_folder;
    environment["ASAN_OPTIONS"] = environment["TSAN_OPTIONS"] = "handle_segv=0";
    auto started = ChildProgram::Start({.argv = {LGPU_CHECKPOINT_CLIENT}, .environment = environment});
    EXPECT_TRUE(started.ok()) << started.status();
    program_ = *std::move(started);
  }
  void Tell(const std::string& line) { program_->WriteLine(line); }
  std::string Answer(std::chrono::milliseconds patience = ChildProgram::kPatience) {
    return program_->ReadLine(patience).value_or("no answer");
  }
  std::string Ask(const std::string& line) {
    Tell(line);
    return Answer();
  }
  /// The result of a checkpoint call on `target`.
  std::string Call(const std::string& call, const Client& target, const std::string& more = "") {
    return Ask("call " + call + " " + std::to_string(target.pid()) + " " + more);
  }
  void TellCall(const std::string& call, const Client& target, const std::string& more = "") {
    Tell("call " + call + " " + std::to_string(target.pid()) + " " + more);
  }
  void Kill() {
    program_->Signal(SIGKILL);
    EXPECT_TRUE(program_->Wait().has_value());
  }
  pid_t pid() const { return program_->pid(); }
  ChildProgram& program() { return *program_; }

 private:
  std::unique_ptr<ChildProgram> program_;
};

class CheckpointTest : public ::testing::Test {
 protected:
  CheckpointTest() { machine_.state().any_program = true; }
  /// A program with a context and 12 MiB of memory on the card.
  void Fill(Client& target) {
    EXPECT_EQ(target.Ask("start"), "ok");
    EXPECT_EQ(target.Ask("alloc 4194304"), "ok");
    EXPECT_EQ(target.Ask("alloc 100000"), "ok");
    EXPECT_EQ(target.Ask("create 4194304"), "ok");
    EXPECT_EQ(target.Ask("pooled 2097152"), "ok");
    EXPECT_EQ(target.Ask("compare"), "same");
  }
  void Suspend(Client& caller, Client& target) {
    EXPECT_EQ(caller.Call("lock", target, "10000"), "0");
    EXPECT_EQ(caller.Call("checkpoint", target), "0");
  }
  int StateOf(const Client& target) { return machine_.CheckpointsOf(target.pid())->state; }

  FakeMachine machine_{{{.total = 24_MiB, .context = 4_MiB}}};
};

TEST_F(CheckpointTest, ContentsAreTheSameAfterAnotherProgramHadTheMemory) {
  Client caller(machine_), target(machine_);
  Fill(target);
  EXPECT_EQ(machine_.Used(0), 16_MiB);
  EXPECT_EQ(caller.Call("state", target), "0 0");
  EXPECT_EQ(caller.Call("lock", target, "10000"), "0");
  EXPECT_EQ(caller.Call("state", target), "0 1");
  EXPECT_EQ(machine_.Used(0), 16_MiB);
  EXPECT_EQ(caller.Call("checkpoint", target), "0");
  EXPECT_EQ(caller.Call("state", target), "0 2");
  EXPECT_EQ(machine_.Used(0), Bytes());
  {
    Client other(machine_);
    EXPECT_EQ(other.Ask("start"), "ok");
    EXPECT_EQ(other.Ask("alloc 18874368"), "ok");
    EXPECT_EQ(other.Ask("compare"), "same");
    target.Tell("compare");  // it waits
    EXPECT_EQ(target.Answer(kShort), "no answer");
  }
  ASSERT_EQ(caller.Ask("start"), "ok");
  EXPECT_EQ(caller.Call("restore", target), "0");
  EXPECT_EQ(caller.Call("state", target), "0 1");
  EXPECT_EQ(target.Answer(kShort), "no answer");
  EXPECT_EQ(caller.Call("unlock", target), "0");
  EXPECT_EQ(target.Answer(), "same");
  EXPECT_EQ(caller.Call("state", target), "0 0");
  EXPECT_EQ(target.Ask("alloc 1048576"), "ok");
  EXPECT_EQ(target.Ask("compare"), "same");
  EXPECT_EQ(machine_.CheckpointsOf(target.pid())->restores, 1);
}

TEST_F(CheckpointTest, ProgramMayBeSuspendedAgainAndAgain) {
  Client caller(machine_), target(machine_);
  Fill(target);
  ASSERT_EQ(caller.Ask("start"), "ok");
  for (int i = 0; i < 10; ++i) {
    Suspend(caller, target);
    EXPECT_EQ(caller.Call("restore", target), "0");
    EXPECT_EQ(caller.Call("unlock", target), "0");
    EXPECT_EQ(target.Ask("compare"), "same");
  }
}

TEST_F(CheckpointTest, LockLetsCallsEndThatWereBegun) {
  Client caller(machine_), target(machine_);
  EXPECT_EQ(target.Ask("start"), "ok");
  EXPECT_EQ(target.Ask("alloc 1048576"), "ok");
  EXPECT_EQ(target.Ask("work 300"), "ok");
  const std::uint64_t before = machine_.CallsOf("cuStreamSynchronize");
  target.Tell("compare");
  ASSERT_TRUE(Eventually([&] { return machine_.CallsOf("cuStreamSynchronize") > before; }));
  EXPECT_EQ(caller.Call("lock", target), "0");
  EXPECT_EQ(target.Answer(), "same") << "while it is locked";
  EXPECT_EQ(caller.Call("state", target), "0 1");
}

TEST_F(CheckpointTest, ProgramThatHasBecomeAnotherOneIsNoTargetUntilItStartsTheDriver) {
  Client caller(machine_), target(machine_);
  Fill(target);
  EXPECT_EQ(caller.Call("lock", target), "0");
  target.Tell("exec");
  ASSERT_TRUE(Eventually([&] { return caller.Call("state", target) == "1"; }));
  EXPECT_EQ(target.Ask("start"), "ok");
  EXPECT_EQ(caller.Call("state", target), "0 0");
  EXPECT_EQ(caller.Ask("start"), "ok");
  EXPECT_EQ(caller.Ask("cycle " + std::to_string(target.pid()) + " 2"), "ok");
}

TEST_F(CheckpointTest, EachCallTakesItsStateAlone) {
  Client caller(machine_), target(machine_);
  Fill(target);
  ASSERT_EQ(caller.Ask("start"), "ok");
  for (const char* const call : {"checkpoint", "restore", "unlock"}) {
    EXPECT_EQ(caller.Call(call, target), "401") << call;
  }
  EXPECT_EQ(caller.Call("lock", target), "0");
  for (const char* const call : {"lock", "restore"}) EXPECT_EQ(caller.Call(call, target), "401") << call;
  EXPECT_EQ(caller.Call("checkpoint", target), "0");
  for (const char* const call : {"lock", "checkpoint", "unlock"}) {
    EXPECT_EQ(caller.Call(call, target), "401") << call;
  }
}

TEST_F(CheckpointTest, ProcessWithoutTheDriverIsAnInvalidValue) {
  Client caller(machine_), target(machine_);
  for (const char* const call : {"state", "lock", "checkpoint", "restore", "unlock"}) {
    EXPECT_EQ(caller.Call(call, target), "1") << call;
  }
}

TEST_F(CheckpointTest, ProcessOfAnotherUserIsNotPermitted) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root becomes another user";
  Client caller(machine_), target(machine_);
  Fill(target);
  ASSERT_EQ(caller.Ask("start"), "ok");
  ASSERT_EQ(caller.Ask("user"), "ok");
  for (const char* const call : {"state", "lock", "checkpoint", "restore", "unlock"}) {
    EXPECT_EQ(caller.Call(call, target), "800") << call;
  }
  EXPECT_EQ(target.Ask("compare"), "same");
}

TEST_F(CheckpointTest, LockWaitsForQueuedWork) {
  Client caller(machine_), target(machine_);
  Fill(target);
  EXPECT_EQ(target.Ask("busy"), "ok");
  EXPECT_EQ(caller.Call("lock", target, "50"), "600");
  EXPECT_EQ(caller.Call("state", target), "0 0");
  EXPECT_EQ(target.Ask("touch"), "ok");
  caller.TellCall("lock", target);
  EXPECT_EQ(caller.Answer(kShort), "no answer");
  EXPECT_EQ(target.Ask("idle"), "ok");
  EXPECT_EQ(caller.Answer(), "0");
  EXPECT_EQ(caller.Call("unlock", target), "0");
  EXPECT_EQ(target.Ask("compare"), "same");
}

TEST_F(CheckpointTest, NoRestoreSucceedsAfterOneWithoutRoom) {
  Client caller(machine_), target(machine_);
  Fill(target);
  ASSERT_EQ(caller.Ask("start"), "ok");
  Suspend(caller, target);
  {
    Client other(machine_);
    EXPECT_EQ(other.Ask("start"), "ok");
    EXPECT_EQ(other.Ask("alloc 8388608"), "ok");
    EXPECT_EQ(caller.Call("restore", target), "2");
    EXPECT_EQ(machine_.Used(0), 16_MiB) << "of the restore nothing is left";
  }
  EXPECT_EQ(caller.Call("restore", target), "304");
  EXPECT_EQ(caller.Call("unlock", target), "401");
  EXPECT_EQ(caller.Call("state", target), "0 2");
}

TEST_F(CheckpointTest, RestoreByACallerWithoutTheDriverKillsTheTarget) {
  Client caller(machine_), target(machine_);
  Fill(target);
  Suspend(caller, target);
  EXPECT_EQ(caller.Call("restore", target), "800");
  EXPECT_EQ(target.program().Wait(), 128 + SIGKILL);
}

TEST_F(CheckpointTest, LockMayKillItsTarget) {
  Client caller(machine_), target(machine_), other(machine_);
  Fill(target);
  machine_.state().lock_kills = true;
  machine_.state().checkpoint_faults_of = target.pid();
  EXPECT_EQ(other.Ask("start"), "ok");
  EXPECT_EQ(caller.Call("lock", other), "0");
  EXPECT_EQ(caller.Call("lock", target), "1");
  EXPECT_EQ(target.program().Wait(), 128 + SIGSEGV);
}

TEST_F(CheckpointTest, TargetOfALockThatHangsRunsOn) {
  Client caller(machine_), target(machine_);
  Fill(target);
  machine_.state().lock_hangs = true;
  caller.TellCall("lock", target, "10");
  EXPECT_EQ(caller.Answer(kShort), "no answer");
  EXPECT_EQ(target.Ask("compare"), "same");
  caller.Kill();
  machine_.state().lock_hangs = false;
  Client next(machine_);
  EXPECT_EQ(next.Call("state", target), "0 0") << "its time was over";
}

TEST_F(CheckpointTest, RestoreMayHang) {
  Client caller(machine_), target(machine_);
  Fill(target);
  ASSERT_EQ(caller.Ask("start"), "ok");
  Suspend(caller, target);
  machine_.state().restore_hangs = true;
  caller.TellCall("restore", target);
  EXPECT_EQ(caller.Answer(kShort), "no answer");
  Client next(machine_);
  next.TellCall("state", target);
  EXPECT_EQ(next.Answer(kShort), "no answer") << "the target serves one call at a time";
  target.Kill();
  EXPECT_EQ(caller.Answer(), "1");
  EXPECT_EQ(next.Answer(), "1");
}

TEST_F(CheckpointTest, FailedCheckpointLeavesTheProcessLocked) {
  Client caller(machine_), target(machine_);
  Fill(target);
  machine_.FailCall("cuCheckpointProcessCheckpoint", 999, 0, 1, target.pid());
  EXPECT_EQ(caller.Call("lock", target), "0");
  EXPECT_EQ(caller.Call("checkpoint", target), "999");
  EXPECT_EQ(caller.Call("state", target), "0 1");
  EXPECT_EQ(caller.Call("unlock", target), "0");
  EXPECT_EQ(target.Ask("compare"), "same");
}

TEST_F(CheckpointTest, ManagedMemoryIsNotSupported) {
  Client caller(machine_), target(machine_);
  Fill(target);
  EXPECT_EQ(target.Ask("managed 2097152"), "ok");
  EXPECT_EQ(caller.Call("lock", target), "0");
  EXPECT_EQ(caller.Call("checkpoint", target), "801");
  EXPECT_EQ(caller.Call("unlock", target), "0");
  EXPECT_EQ(target.Ask("compare"), "same");
}

TEST_F(CheckpointTest, SharedMemoryIsRefusedOrStaysOnTheCard) {
  Client caller(machine_), target(machine_);
  EXPECT_EQ(target.Ask("start"), "ok");
  EXPECT_EQ(target.Ask("shared 2097152"), "ok");
  ASSERT_EQ(caller.Ask("start"), "ok");
  EXPECT_EQ(caller.Call("lock", target), "0");
  machine_.state().checkpoint_refuses_shared = true;
  EXPECT_EQ(caller.Call("checkpoint", target), "801");
  machine_.state().checkpoint_refuses_shared = false;
  EXPECT_EQ(caller.Call("checkpoint", target), "0");
  EXPECT_EQ(machine_.Used(0), 6_MiB) << "the caller's context, and the shared memory";
  EXPECT_EQ(caller.Call("restore", target), "0");
  EXPECT_EQ(caller.Call("unlock", target), "0");
  EXPECT_EQ(target.Ask("compare"), "same");
}

TEST_F(CheckpointTest, StoppedTargetKeepsItsCallerWaiting) {
  Client caller(machine_), target(machine_);
  Fill(target);
  machine_.Stop(target.program());
  caller.TellCall("lock", target, "50");
  EXPECT_EQ(caller.Answer(kShort), "no answer");
  target.program().Signal(SIGCONT);
  EXPECT_EQ(caller.Answer(), "600") << "its time is over";
  EXPECT_EQ(target.Ask("compare"), "same");
}

TEST_F(CheckpointTest, TargetGoesOnAfterItsCallerWasKilled) {
  Client target(machine_);
  Fill(target);
  EXPECT_EQ(target.Ask("busy"), "ok");
  {
    Client caller(machine_);
    caller.TellCall("lock", target);
    EXPECT_EQ(caller.Answer(kShort), "no answer");
    caller.Kill();
  }
  EXPECT_EQ(target.Ask("idle"), "ok");
  EXPECT_TRUE(Eventually([&] { return StateOf(target) == kLocked; })) << "a call goes on without its caller";
  {
    Client caller(machine_);
    EXPECT_EQ(caller.Call("checkpoint", target), "0");
    caller.Kill();
  }
  EXPECT_EQ(StateOf(target), kCheckpointed);
  Client caller(machine_);
  ASSERT_EQ(caller.Ask("start"), "ok");
  EXPECT_EQ(caller.Call("restore", target), "0");
  EXPECT_EQ(caller.Call("unlock", target), "0");
  EXPECT_EQ(target.Ask("compare"), "same");
}

TEST_F(CheckpointTest, MemoryOfATargetThatWasKilledIsBackInEachState) {
  Client caller(machine_);
  ASSERT_EQ(caller.Ask("start"), "ok");
  for (int state = kRunning; state <= kCheckpointed; ++state) {
    Client target(machine_);
    Fill(target);
    for (const auto& [call, after] : {std::pair("lock", kLocked), std::pair("checkpoint", kCheckpointed)}) {
      EXPECT_EQ(state >= after ? caller.Call(call, target) : "0", "0") << call;
    }
    target.Kill();
    EXPECT_EQ(StateOf(target), state);
    EXPECT_EQ(machine_.Used(0), 4_MiB) << "the caller's context";
    EXPECT_EQ(caller.Call("unlock", target), "1");
  }
  Client target(machine_);
  Fill(target);
  EXPECT_EQ(target.Ask("busy"), "ok");
  caller.TellCall("lock", target);
  EXPECT_EQ(caller.Answer(kShort), "no answer");
  target.Kill();
  EXPECT_EQ(caller.Answer(), "1");
}

// Wherever the target or the caller is killed: memory is back, the other process goes on, and a later call
// ends.
TEST_F(CheckpointTest, DeathAtAnyMomentLeavesNothingBehind) {
  for (int i = 0; i < 16; ++i) {
    Client caller(machine_), target(machine_);
    ASSERT_EQ(caller.Ask("start"), "ok");
    Fill(target);
    caller.Tell("cycle " + std::to_string(target.pid()) + " 1000");
    std::this_thread::sleep_for(std::chrono::milliseconds(3 * (i / 2)));
    const bool kills_target = i % 2 == 0;
    (kills_target ? target : caller).Kill();
    if (kills_target) {
      EXPECT_NE(caller.Answer(), "ok");
      EXPECT_EQ(machine_.Used(0), 4_MiB) << "the caller's context";
      continue;
    }
    Client next(machine_);
    ASSERT_EQ(next.Ask("start"), "ok");
    const std::string state = next.Call("state", target);
    EXPECT_EQ(state == "0 2" ? next.Call("restore", target) : "0", "0");
    EXPECT_EQ(state != "0 0" ? next.Call("unlock", target) : "0", "0");
    EXPECT_EQ(target.Ask("compare"), "same");
    EXPECT_EQ(machine_.Used(0), 20_MiB);
  }
}

TEST_F(CheckpointTest, ProgramMaySuspendItself) {
  Client target(machine_);
  Fill(target);
  Suspend(target, target);
  EXPECT_EQ(machine_.Used(0), Bytes());
  EXPECT_EQ(target.Call("restore", target), "0");
  EXPECT_EQ(target.Call("unlock", target), "0");
  EXPECT_EQ(target.Ask("compare"), "same");
}

TEST_F(CheckpointTest, OldDriverDoesNotSupportTheCalls) {
  Client caller(machine_), target(machine_);
  Fill(target);
  machine_.state().driver_version = 12040;
  EXPECT_EQ(caller.Call("state", target), "801");
  EXPECT_EQ(caller.Call("lock", target), "801");
}

}  // namespace
}  // namespace lgpu::fake_cuda
