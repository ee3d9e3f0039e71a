// What `lgpu run` does with lgpud's orders to suspend and resume its programs, on the fake driver.

#include "cli/program_suspender.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/process.h"
#include "tests/client/fake_daemon.h"
#include "tests/fake_cuda/fake_machine.h"

namespace lgpu::cli {
namespace {

using fake_cuda::FakeMachine;
using ::testing::AllOf;
using testing::ChildProgram;
using testing::Eventually;
using testing::FakePeer;
using ::testing::HasSubstr;

constexpr int kRuns = 0, kIsLocked = 1, kIsInHostMemory = 2;  // CUprocessState
constexpr int kFails = 999;                                   // CUDA_ERROR_UNKNOWN

/// Two programs with memory on one card, and lgpud's end of the session that gives orders about them.
class ProgramSuspenderTest : public ::testing::Test {
 protected:
  ProgramSuspenderTest() {
    machine_.state().any_program = true;
    for (const auto& [name, value] : machine_.environment()) {
      if (value) ::setenv(name.c_str(), value->c_str(), 1);
    }
    options_.quiet = true;
    first_ = StartProgram();
    second_ = StartProgram();
    if (second_->pid() < first_->pid()) std::swap(first_, second_);  // programs are moved by their numbers
    int pair[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    lgpud_.emplace(UniqueFd(pair[1]));
    std::thread greeting([this] { lgpud_->Greet(); });
    auto session = DaemonConnection::Open(UniqueFd(pair[0]), {.directory = "/fake",
                                                              .answer_timeout = std::chrono::seconds(20),
                                                              .greeting_timeout = std::chrono::seconds(20)});
    greeting.join();
    EXPECT_TRUE(session.ok()) << session.status();
    session_ = *std::move(session);
    suspender_.emplace(*session_, options_, LGPU_PROGRAM);
  }

  std::unique_ptr<ChildProgram> StartProgram() {
    auto started =
        ChildProgram::Start({.argv = {LGPU_CHECKPOINT_CLIENT}, .environment = machine_.environment()});
    EXPECT_TRUE(started.ok()) << started.status();
    for (const char* const line : {"start", "alloc 4194304"}) EXPECT_EQ(Ask(**started, line), "ok") << line;
    return *std::move(started);
  }
  static std::string Ask(ChildProgram& program, const std::string& line) {
    program.WriteLine(line);
    return program.ReadLine().value_or("no answer");
  }
  static v1::ProcessName NameOf(const ChildProgram& program) {
    v1::ProcessName name;
    name.set_pid(program.pid());
    name.set_start_time(ProcessStartTime(program.pid()).value_or(0));
    return name;
  }
  std::vector<v1::ProcessName> Both() const { return {NameOf(*first_), NameOf(*second_)}; }
  v1::Suspended Suspend(const std::vector<v1::ProcessName>& processes,
                        const std::function<void()>& meanwhile = {}) {
    return Order(/*resume=*/false, processes, meanwhile);
  }
  v1::Suspended Resume(const std::vector<v1::ProcessName>& processes) {
    return Order(/*resume=*/true, processes, {});
  }
  int StateOf(const ChildProgram& program) { return machine_.CheckpointsOf(program.pid())->state; }
  int TimesInHostMemory(const ChildProgram& program) {
    return machine_.CheckpointsOf(program.pid())->checkpoints;
  }
  void FailFor(const ChildProgram& program, const std::string& call) {
    machine_.FailCall(absl::StrCat("cuCheckpointProcess", call), kFails, 0, 1, program.pid());
  }
  void ExpectBothRunWithTheirContents() {
    for (ChildProgram* const program : {first_.get(), second_.get()}) {
      EXPECT_EQ(StateOf(*program), kRuns);
      EXPECT_EQ(Ask(*program, "compare"), "same");
    }
  }

  FakeMachine machine_{{{.total = 64_MiB, .context = 4_MiB}}};
  CommonOptions options_;
  std::unique_ptr<ChildProgram> first_, second_;
  std::optional<FakePeer> lgpud_;
  std::unique_ptr<DaemonConnection> session_;
  std::optional<ProgramSuspender> suspender_;

 private:
  v1::Suspended Order(bool resume, const std::vector<v1::ProcessName>& processes,
                      const std::function<void()>& meanwhile) {
    v1::Frame frame;
    frame.mutable_suspend()->set_order_id(++last_order_);
    frame.mutable_suspend()->set_resume(resume);
    frame.mutable_suspend()->set_limit_ms(15'000);
    for (const v1::ProcessName& process : processes) *frame.mutable_suspend()->add_processes() = process;
    lgpud_->Send(frame);
    std::atomic<bool> is_answered = false;
    std::thread looking([&] {
      while (!is_answered) {
        suspender_->Look();
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    });
    if (meanwhile) meanwhile();
    const v1::Frame answer = lgpud_->Read();
    is_answered = true;
    looking.join();
    EXPECT_TRUE(answer.has_suspended()) << answer.DebugString();
    EXPECT_EQ(answer.suspended().order_id(), last_order_);
    return answer.suspended();
  }

  std::uint64_t last_order_ = 0;
};

TEST_F(ProgramSuspenderTest, ProgramsGiveTheirMemoryUpAndComeBackWithTheirContents) {
  const v1::Suspended suspended = Suspend(Both());
  EXPECT_EQ(suspended.code(), 0) << suspended.message();
  EXPECT_EQ(StateOf(*first_), kIsInHostMemory);
  EXPECT_EQ(StateOf(*second_), kIsInHostMemory);
  EXPECT_EQ(machine_.Used(0), Bytes());
  const v1::Suspended resumed = Resume(Both());
  EXPECT_EQ(resumed.code(), 0) << resumed.message();
  ExpectBothRunWithTheirContents();
}

TEST_F(ProgramSuspenderTest, AProgramThatTheOrderDoesNotNameRunsOn) {
  EXPECT_EQ(Suspend({NameOf(*first_)}).code(), 0);
  EXPECT_EQ(Ask(*second_, "compare"), "same");
  EXPECT_EQ(Resume({NameOf(*first_)}).code(), 0);
  ExpectBothRunWithTheirContents();
}

TEST_F(ProgramSuspenderTest, AProcessWithAnotherStartTimeIsNotTouched) {
  std::vector<v1::ProcessName> processes = Both();
  processes[1].set_start_time(processes[1].start_time() + 1);
  const v1::Suspended refused = Suspend(processes);
  EXPECT_EQ(refused.code(), static_cast<int>(absl::StatusCode::kNotFound));
  EXPECT_EQ(refused.message(), absl::StrCat("process ", second_->pid(),
                                            " has ended, or is not in the pid namespace of this lgpu"));
  EXPECT_EQ(machine_.CallsOf("cuCheckpointProcessLock"), 0u) << "of neither";
  ExpectBothRunWithTheirContents();
}

TEST_F(ProgramSuspenderTest, NoneIsLockedWhereOneIsStopped) {
  machine_.Stop(*second_);
  const v1::Suspended refused = Suspend(Both());
  EXPECT_EQ(refused.code(), static_cast<int>(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(refused.message(), HasSubstr("is stopped"));
  EXPECT_EQ(machine_.CallsOf("cuCheckpointProcessLock"), 0u);
  second_->Signal(SIGCONT);
  ExpectBothRunWithTheirContents();
}

TEST_F(ProgramSuspenderTest, AProcessThatThisLgpuDidNotStartIsRefused) {
  v1::ProcessName parent;
  parent.set_pid(::getppid());
  parent.set_start_time(ProcessStartTime(::getppid()).value_or(0));
  EXPECT_THAT(Suspend({parent}).message(), HasSubstr("was not started by this lgpu"));
}

TEST_F(ProgramSuspenderTest, NoneIsMovedWhereOneCannotBeLocked) {
  FailFor(*second_, "Lock");
  EXPECT_THAT(Suspend(Both()).message(), HasSubstr("cuCheckpointProcessLock gave"));
  EXPECT_EQ(TimesInHostMemory(*first_), 0);
  ExpectBothRunWithTheirContents();
}

TEST_F(ProgramSuspenderTest, AProgramInHostMemoryComesBackWhereTheNextOneFails) {
  FailFor(*second_, "Checkpoint");
  const v1::Suspended failed = Suspend(Both());
  EXPECT_THAT(failed.message(), HasSubstr("cuCheckpointProcessCheckpoint gave"));
  EXPECT_TRUE(failed.left().empty());
  EXPECT_EQ(TimesInHostMemory(*first_), 1);
  ExpectBothRunWithTheirContents();
  EXPECT_EQ(Suspend(Both()).code(), 0) << "the next order is followed as ever";
  EXPECT_EQ(Resume(Both()).code(), 0);
  ExpectBothRunWithTheirContents();
}

TEST_F(ProgramSuspenderTest, AnUndoingThatFailsIsToldWithTheProgramsThatItLeft) {
  FailFor(*second_, "Checkpoint");
  FailFor(*first_, "Restore");
  const v1::Suspended failed = Suspend(Both());
  EXPECT_EQ(failed.code(), static_cast<int>(absl::StatusCode::kInternal));
  EXPECT_THAT(failed.message(), AllOf(HasSubstr("cuCheckpointProcessCheckpoint gave"),
                                      HasSubstr("; and it cannot be undone: restore of process ")));
  ASSERT_EQ(failed.left_size(), 1);
  EXPECT_EQ(failed.left(0).SerializeAsString(), NameOf(*first_).SerializeAsString());
  EXPECT_EQ(Ask(*second_, "compare"), "same");
  // As an lgpud that starts gives it.
  EXPECT_EQ(Resume({}).code(), 0) << "all that are suspended";
  ExpectBothRunWithTheirContents();
}

TEST_F(ProgramSuspenderTest, OthersComeBackWhereOneCannotBeRestored) {
  ASSERT_EQ(Suspend(Both()).code(), 0);
  FailFor(*first_, "Restore");
  const v1::Suspended failed = Resume(Both());
  EXPECT_THAT(failed.message(), HasSubstr("cuCheckpointProcessRestore gave"));
  ASSERT_EQ(failed.left_size(), 1);
  EXPECT_EQ(failed.left(0).pid(), first_->pid());
  EXPECT_EQ(Ask(*second_, "compare"), "same");
  EXPECT_TRUE(Resume(Both()).left().empty()) << "what one order left is not the next one's";
  ExpectBothRunWithTheirContents();
}

TEST_F(ProgramSuspenderTest, AProgramThatDiesBetweenItsLockAndItsMoveFailsTheOrderAndNoOtherProgram) {
  ASSERT_EQ(Ask(*second_, "busy"), "ok");
  const v1::Suspended failed = Suspend(Both(), [this] {
    // The second lock waits for the work.
    EXPECT_TRUE(Eventually([this] { return StateOf(*first_) == kIsLocked; }));
    EXPECT_TRUE(Eventually([this] { return machine_.CallsOf("cuCheckpointProcessLock") == 2; }));
    first_->Signal(SIGKILL);
    EXPECT_EQ(first_->Wait(), 128 + SIGKILL);
    EXPECT_EQ(Ask(*second_, "idle"), "ok");
  });
  EXPECT_THAT(failed.message(), HasSubstr(absl::StrCat("checkpoint of process ", first_->pid(), ": ")));
  EXPECT_THAT(failed.message(), HasSubstr("it does not use the driver, or has ended"));
  EXPECT_TRUE(failed.left().empty());
  EXPECT_EQ(StateOf(*second_), kRuns);
  EXPECT_EQ(Ask(*second_, "compare"), "same");
  EXPECT_EQ(Suspend({NameOf(*second_)}).code(), 0);
  EXPECT_EQ(Resume({NameOf(*second_)}).code(), 0);
  EXPECT_EQ(Ask(*second_, "compare"), "same");
}

TEST_F(ProgramSuspenderTest, AProgramThatDiesInHostMemoryKeepsNoOtherOneThere) {
  const std::vector<v1::ProcessName> both = Both();
  ASSERT_EQ(Suspend(both).code(), 0);
  first_->Signal(SIGKILL);
  first_->Wait();
  const v1::Suspended resumed = Resume(both);
  EXPECT_EQ(resumed.code(), 0) << resumed.message();
  EXPECT_EQ(Ask(*second_, "compare"), "same");
}

TEST_F(ProgramSuspenderTest, AProgramThatIsUnlockedTooLateIsOnItsGpuAndNotLeft) {
  ASSERT_EQ(Suspend({NameOf(*first_)}).code(), 0);
  FailFor(*first_, "Unlock");
  const v1::Suspended failed = Resume({NameOf(*first_)});
  EXPECT_THAT(failed.message(), HasSubstr("cuCheckpointProcessUnlock gave"));
  EXPECT_TRUE(failed.left().empty());
  EXPECT_EQ(StateOf(*first_), kIsLocked);
  EXPECT_EQ(Resume({}).code(), 0);
  ExpectBothRunWithTheirContents();
}

}  // namespace
}  // namespace lgpu::cli
