// The checkpoint calls that lgpu makes for others, on the fake driver: each in a child of its own.

#include "cli/checkpoint_calls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <string>

#include "absl/strings/str_split.h"
#include "lgpu/status.h"
#include "tests/fake_cuda/fake_machine.h"

namespace lgpu::cli {
namespace {

using fake_cuda::FakeMachine;
using std::chrono::milliseconds;
using testing::ChildProgram;
using ::testing::HasSubstr;
using State = CheckpointCalls::State;

constexpr milliseconds kLong{60'000}, kShort{300};

class CheckpointCallsTest : public ::testing::Test {
 protected:
  CheckpointCallsTest() {
    machine_.state().any_program = true;
    for (const auto& [name, value] : machine_.environment()) {
      if (value) ::setenv(name.c_str(), value->c_str(), 1);
    }
    // The child asks for all devices of the machine.
    ::setenv("CUDA_VISIBLE_DEVICES", "", 1);
    target_ = Start();
    for (const char* const line : {"start", "alloc 4194304", "alloc 100000"}) {
      EXPECT_EQ(Ask(line), "ok") << line;
    }
  }
  ~CheckpointCallsTest() override {
    // Each child was waited for.
    EXPECT_TRUE(target_->running() || target_->Wait().has_value());
    target_.reset();
    EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1);
    EXPECT_EQ(errno, ECHILD);
  }
  std::unique_ptr<ChildProgram> Start() {
    auto started =
        ChildProgram::Start({.argv = {LGPU_CHECKPOINT_CLIENT}, .environment = machine_.environment()});
    EXPECT_TRUE(started.ok()) << started.status();
    return *std::move(started);
  }
  std::string Ask(const std::string& line) {
    target_->WriteLine(line);
    return target_->ReadLine().value_or("no answer");
  }
  State StateNow() {
    const absl::StatusOr<State> state = calls_.GetState(target_->pid(), kLong);
    EXPECT_TRUE(state.ok()) << state.status();
    return state.value_or(State::kFailed);
  }
  void Suspend() {
    EXPECT_EQ(calls_.Lock(pid(), kLong), absl::OkStatus());
    EXPECT_EQ(calls_.Checkpoint(pid(), kLong), absl::OkStatus());
  }
  pid_t pid() const { return target_->pid(); }
  std::string About(const std::string& call) const {
    return absl::StrCat(call, " of process ", pid(), " (checkpoint_clie): ");
  }

  FakeMachine machine_{{{.total = 24_MiB, .context = 4_MiB}}};
  const CheckpointCalls calls_{LGPU_PROGRAM};
  std::unique_ptr<ChildProgram> target_;
};

TEST_F(CheckpointCallsTest, ProgramIsSuspendedAndComesBack) {
  EXPECT_EQ(StateNow(), State::kRunning);
  EXPECT_EQ(calls_.Lock(pid(), kLong), absl::OkStatus());
  EXPECT_EQ(StateNow(), State::kLocked);
  EXPECT_EQ(calls_.Checkpoint(pid(), kLong), absl::OkStatus());
  EXPECT_EQ(StateNow(), State::kCheckpointed);
  EXPECT_EQ(machine_.Used(0), Bytes());
  target_->WriteLine("compare");
  EXPECT_EQ(target_->ReadLine(kShort), std::nullopt);
  EXPECT_EQ(calls_.Restore(pid(), kLong), absl::OkStatus());
  EXPECT_EQ(StateNow(), State::kLocked);
  EXPECT_EQ(calls_.Unlock(pid(), kLong), absl::OkStatus());
  EXPECT_EQ(target_->ReadLine(), "same");
}

TEST_F(CheckpointCallsTest, BusyProgramIsUnavailableAndRunsOn) {
  EXPECT_EQ(Ask("busy"), "ok");
  EXPECT_EQ(calls_.Lock(pid(), milliseconds(50)),
            absl::UnavailableError(About("lock") + "cuCheckpointProcessLock gave CUDA_ERROR_NOT_READY (600): "
                                                   "its work did not end in time"));
  EXPECT_EQ(Ask("touch"), "ok");
  EXPECT_EQ(Ask("idle"), "ok");
}

TEST_F(CheckpointCallsTest, WrongStateIsAFailedPrecondition) {
  EXPECT_EQ(calls_.Restore(pid(), kLong),
            absl::FailedPreconditionError(
                About("restore") +
                "cuCheckpointProcessRestore gave CUDA_ERROR_ILLEGAL_STATE (401): it is in another state"));
  EXPECT_TRUE(absl::IsFailedPrecondition(calls_.Unlock(pid(), kLong)));
}

TEST_F(CheckpointCallsTest, ProcessWithoutTheDriverIsNotFound) {
  EXPECT_TRUE(absl::IsNotFound(calls_.Lock(::getpid(), kLong)));
  EXPECT_TRUE(absl::IsNotFound(calls_.GetState(0x3fffffff, kLong).status()));
}

TEST_F(CheckpointCallsTest, RestoreWithoutRoomIsResourceExhausted) {
  Suspend();
  machine_.state().cards[0].total = (8_MiB).count();
  EXPECT_THAT(calls_.Restore(pid(), kLong).ToString(),
              HasSubstr("RESOURCE_EXHAUSTED: " + About("restore") +
                        "cuCheckpointProcessRestore gave CUDA_ERROR_OUT_OF_MEMORY (2)"));
  machine_.state().cards[0].total = (24_MiB).count();
  EXPECT_THAT(calls_.Restore(pid(), kLong).ToString(),
              HasSubstr("INTERNAL: " + About("restore") +
                        "cuCheckpointProcessRestore gave CUDA_ERROR_OPERATING_SYSTEM (304)"));
}

// A restore by a process without the driver would end the target.
TEST_F(CheckpointCallsTest, NothingIsRestoredWhereTheDriverDoesNotStart) {
  Suspend();
  machine_.state().init_result = 999;
  EXPECT_EQ(calls_.Restore(pid(), kLong),
            absl::InternalError(About("restore") + "cuInit gave CUDA_ERROR_UNKNOWN (999)"));
  machine_.state().init_result = 0;
  EXPECT_EQ(StateNow(), State::kCheckpointed);
  EXPECT_EQ(calls_.Restore(pid(), kLong), absl::OkStatus());
  EXPECT_EQ(calls_.Unlock(pid(), kLong), absl::OkStatus());
  EXPECT_EQ(Ask("compare"), "same");
}

TEST_F(CheckpointCallsTest, CallOnAStoppedProcessEndsAtItsLimit) {
  machine_.Stop(*target_);
  EXPECT_EQ(calls_.GetState(pid(), milliseconds(200)).status(),
            absl::DeadlineExceededError(About("state") + "the driver did not answer in 200 ms"));
  EXPECT_TRUE(absl::IsDeadlineExceeded(calls_.Lock(pid(), milliseconds(200))));
  target_->Signal(SIGCONT);
  EXPECT_EQ(Ask("compare"), "same") << "the lock's time was over";
  EXPECT_EQ(StateNow(), State::kRunning);
}

TEST_F(CheckpointCallsTest, RestoreThatHangsEndsAtItsLimit) {
  Suspend();
  machine_.state().restore_hangs = true;
  EXPECT_TRUE(absl::IsDeadlineExceeded(calls_.Restore(pid(), milliseconds(200))));
  machine_.state().restore_hangs = false;
  EXPECT_EQ(StateNow(), State::kLocked) << "the driver does what it was asked";
  EXPECT_EQ(calls_.Unlock(pid(), kLong), absl::OkStatus());
  EXPECT_EQ(Ask("compare"), "same");
}

TEST_F(CheckpointCallsTest, LockThatKillsItsTargetIsAnError) {
  machine_.state().lock_kills = true;
  EXPECT_TRUE(absl::IsNotFound(calls_.Lock(pid(), kLong)));
  EXPECT_EQ(target_->Wait(), 128 + SIGSEGV);
}

TEST_F(CheckpointCallsTest, RefusedMemoryIsUnimplementedAndTheProgramRunsOn) {
  EXPECT_EQ(Ask("managed 2097152"), "ok");
  EXPECT_EQ(calls_.Lock(pid(), kLong), absl::OkStatus());
  EXPECT_EQ(calls_.Checkpoint(pid(), kLong),
            absl::UnimplementedError(
                About("checkpoint") +
                "cuCheckpointProcessCheckpoint gave CUDA_ERROR_NOT_SUPPORTED (801): the driver does not "
                "support it, or not for this process"));
  EXPECT_EQ(calls_.Unlock(pid(), kLong), absl::OkStatus());
  EXPECT_EQ(Ask("compare"), "same");
}

TEST_F(CheckpointCallsTest, DriverWithoutTheCallsIsNamed) {
  ::setenv("LD_LIBRARY_PATH", LGPU_DRIVER_WITHOUT_CHECKPOINTS, 1);
  EXPECT_EQ(
      calls_.Lock(pid(), kLong),
      absl::UnimplementedError(About("lock") + "the NVIDIA driver here has no cuCheckpointProcessLock"));
}

TEST_F(CheckpointCallsTest, LibrariesThatThisProcessPreloadsAreNotForTheChild) {
  ::setenv("LD_PRELOAD", "/no/such/library.so", 1);
  EXPECT_EQ(StateNow(), State::kRunning);
  ::unsetenv("LD_PRELOAD");
}

// Ctrl-C ends the program and not the call on it: the child is in a session of its own.
TEST_F(CheckpointCallsTest, ChildIsNoPartOfTheProcessGroup) {
  machine_.state().lock_hangs = true;
  const auto child =
      ChildProgram::Start({.argv = {LGPU_PROGRAM, kCheckpointVerb, "lock", absl::StrCat(pid()), "0"},
                           .environment = machine_.environment()});
  ASSERT_TRUE(child.ok()) << child.status();
  EXPECT_TRUE(testing::Eventually([&] { return ::getsid((*child)->pid()) == (*child)->pid(); }));
  machine_.state().lock_hangs = false;
  EXPECT_EQ((*child)->ReadLine(), "ok");
  EXPECT_EQ((*child)->Wait(), 0);
}

TEST(CheckpointVerbTest, WrongArgumentsAreRefused) {
  for (const char* const words : {"", "lock", "lock x 1", "lock 0 1", "lock 5 -1", "kill 5 1"}) {
    std::vector<std::string> argv = absl::StrSplit(words, ' ', absl::SkipEmpty());
    argv.insert(argv.begin(), {LGPU_PROGRAM, kCheckpointVerb});
    const auto result = testing::RunProgram({.argv = argv});
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->code, 2) << words;
    EXPECT_EQ(result->err, "lgpu __checkpoint is a part of `lgpu run`\n");
  }
}

}  // namespace
}  // namespace lgpu::cli
