// `lgpu suspend` and `lgpu resume`: a program that does not know of lgpu gives all of its memory up for
// another one, and goes on later with the same contents. One file: the cases differ in what happens between
// the same two calls of the same two programs.

#include <signal.h>
#include <sys/stat.h>

#include <chrono>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/driver/shim_fixture.h"

namespace lgpu::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::chrono::milliseconds kShort{300};  // for what must not happen

/// A card of 1 GiB. A program holds 800 MiB of it; another one asks for 500.
class SuspendTest : public ShimTest {
 protected:
  explicit SuspendTest(std::size_t cards = 1) : ShimTest({.total = 1024_MiB}, cards) {}

  std::unique_ptr<ChildProgram> StartHolder(const std::string& verb = "run",
                                            std::uint64_t bytes = 800 * kMiB) {
    const std::vector<std::string> in = verb == "exec" ? std::vector<std::string>{"exec", "holder"}
                                                       : std::vector<std::string>{"run", "--name", "holder"};
    auto holder = StartCommand(in, {LGPU_CHECKPOINT_CLIENT});
    Allocate(*holder, bytes);
    return holder;
  }
  std::unique_ptr<ChildProgram> StartCommand(std::vector<std::string> words,
                                             const std::vector<std::string>& command) {
    words.emplace_back("--");
    words.insert(words.end(), command.begin(), command.end());
    const ChildProgram::Options options = Lgpu(words);
    return StartProgram(options.argv, options.environment);
  }
  static void Allocate(ChildProgram& holder, std::uint64_t bytes) {
    EXPECT_EQ(Ask(holder, "start"), "ok");
    EXPECT_EQ(Ask(holder, absl::StrCat("alloc ", bytes)), "ok");
  }
  void CreateHoldersLease() { EXPECT_EQ(Run({"create", "--name", "holder", "-m", "1GiB"}).code, 0); }
  std::unique_ptr<ChildProgram> StartAsker() {
    return Start("1GiB", {Client("dlopen"), "dlopen", "libcuda.so.1"});  // it waits 500 ms for memory
  }
  static std::string AskFor500() { return absl::StrCat("alloc b plain ", 500 * kMiB); }
  ProgramResult Suspend() { return Run({"suspend", "holder"}); }
  ProgramResult Resume(const std::vector<std::string>& more = {}) {
    std::vector<std::string> words = {"resume", "holder"};
    words.insert(words.end(), more.begin(), more.end());
    return Run(words);
  }
  /// lgpud dies while the lock waits for the program's work, and `lgpu run` follows the order to its end.
  void KillDaemonInASuspension(ChildProgram& holder, pid_t pid) {
    EXPECT_EQ(Ask(holder, "busy"), "ok");
    const ChildProgram::Options options = Lgpu({"suspend", "holder"});
    auto suspending = StartProgram(options.argv, options.environment);
    EXPECT_TRUE(Eventually([&] { return machine_.CallsOf("cuCheckpointProcessLock") > 0; }));
    KillDaemon();
    EXPECT_EQ(Ask(holder, "idle"), "ok");
    EXPECT_TRUE(Eventually([&] { return machine_.CheckpointsOf(pid)->state == 2; }));
    EXPECT_NE(suspending->Wait(), 0);
  }
  static std::string AnswerOf(ChildProgram& program, std::chrono::milliseconds patience = kShort) {
    return program.ReadLine(patience).value_or("no answer");
  }
  /// What each process of the lease "holder" is charged.
  std::map<pid_t, Bytes> HoldersCharges() {
    std::map<pid_t, Bytes> charges;
    const v1::StatsSnapshot stats = Stats();
    for (const v1::LeaseStats& lease : stats.leases()) {
      if (lease.name() != "holder") continue;
      for (const v1::SessionStats& session : lease.sessions()) {
        if (session.charged_bytes() == 0) continue;
        charges[static_cast<pid_t>(session.pid())] += Bytes(session.charged_bytes());
      }
    }
    return charges;
  }
  /// The process that holds the memory, below `lgpu run`.
  pid_t HolderPid() {
    const std::map<pid_t, Bytes> charges = HoldersCharges();
    return charges.empty() ? 0 : charges.begin()->first;
  }
};

TEST_F(SuspendTest, AnotherProgramHasTheMemoryMeanwhileAndTheContentsAreTheSame) {
  StartMachine();
  auto holder = StartHolder();
  auto asker = StartAsker();
  EXPECT_EQ(Ask(*asker, AskFor500()), "error 2") << "the card is full";
  const ProgramResult suspended = Suspend();
  ASSERT_EQ(suspended.code, 0) << suspended.err;
  EXPECT_THAT(suspended.out, HasSubstr("suspended holder: 800.00MiB in host memory after "));
  EXPECT_THAT(Run({"ls"}).out, HasSubstr("SUSPENDED"));
  EXPECT_THAT(Run({"inspect", "holder", "--json"}).out, HasSubstr("\"in_host_memory\":true"));
  EXPECT_EQ(Ask(*asker, AskFor500()), "ok");
  const ProgramResult refused = Resume();
  EXPECT_EQ(refused.code, 75) << refused.err;
  EXPECT_THAT(refused.err, HasSubstr("try: lgpu resume holder --wait"));
  holder->WriteLine("compare");
  EXPECT_EQ(AnswerOf(*holder), "no answer") << "it waits for its memory";
  auto waiting = StartProgram(Lgpu({"resume", "holder", "--wait=1m"}).argv,
                              Lgpu({"resume", "holder", "--wait=1m"}).environment);
  EXPECT_TRUE(Eventually([&] { return Run({"ls"}).out.find("holder  ") != std::string::npos; }));
  EXPECT_EQ(Ask(*asker, "free b"), "ok");
  EXPECT_EQ(waiting->Wait(), 0) << waiting->Errors();
  EXPECT_EQ(AnswerOf(*holder, ChildProgram::kPatience), "same");
  EXPECT_EQ(Ask(*asker, AskFor500()), "error 2") << "the card is full again";
  EXPECT_THAT(Run({"ls"}).out, Not(HasSubstr("SUSPENDED")));
  const std::string events = Run({"events"}).out;
  EXPECT_THAT(events, HasSubstr("suspended: 800.00MiB in host memory after "));
  EXPECT_THAT(events, HasSubstr("resumed: 800.00MiB back on its GPUs after "));
  End(*asker);
  End(*holder);
}

TEST_F(SuspendTest, ItIsResumedWhereTheOtherProgramEnds) {
  StartMachine();
  auto holder = StartHolder();
  ASSERT_EQ(Suspend().code, 0);
  auto asker = StartAsker();
  EXPECT_EQ(Ask(*asker, AskFor500()), "ok");
  asker->Signal(SIGTERM);  // lgpu run passes it on
  asker->Wait();
  const ProgramResult resumed = Resume({"--wait=1m"});
  EXPECT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_EQ(Ask(*holder, "compare"), "same");
  EXPECT_EQ(Ask(*holder, absl::StrCat("alloc ", 100 * kMiB)), "ok");
  End(*holder);
}

TEST_F(SuspendTest, AProgramThatAsksForMoreMemoryWaits) {
  StartMachine();
  auto holder = StartHolder();
  ASSERT_EQ(Suspend().code, 0);
  holder->WriteLine(absl::StrCat("alloc ", 100 * kMiB));
  EXPECT_EQ(AnswerOf(*holder, std::chrono::milliseconds(4000)), "no answer") << "longer than its own wait";
  ASSERT_EQ(Resume().code, 0);
  EXPECT_EQ(AnswerOf(*holder, ChildProgram::kPatience), "ok");
  EXPECT_EQ(Ask(*holder, "compare"), "same");
  End(*holder);
}

TEST_F(SuspendTest, AProgramThatJoinsASuspendedLeaseWaitsForItsMemory) {
  StartMachine();
  CreateHoldersLease();
  auto holder = StartHolder("exec", 100 * kMiB);
  ASSERT_EQ(Suspend().code, 0);
  auto newcomer = StartCommand({"exec", "holder"}, {LGPU_CHECKPOINT_CLIENT});
  EXPECT_EQ(Ask(*newcomer, "start"), "ok");
  newcomer->WriteLine(absl::StrCat("alloc ", 50 * kMiB));
  EXPECT_EQ(AnswerOf(*newcomer), "no answer");
  ASSERT_EQ(Resume().code, 0);
  EXPECT_EQ(AnswerOf(*newcomer, ChildProgram::kPatience), "ok");
  EXPECT_EQ(Suspend().code, 0) << "both";
  ASSERT_EQ(Resume().code, 0);
  EXPECT_EQ(Ask(*holder, "compare"), "same");
  EXPECT_EQ(Ask(*newcomer, "compare"), "same");
  End(*newcomer);
  End(*holder);
}

TEST_F(SuspendTest, TheNextDaemonKnowsOfIt) {
  StartMachine();
  auto holder = StartHolder();
  ASSERT_EQ(Suspend().code, 0);
  RestartDaemon();
  EXPECT_TRUE(Eventually([&] { return Run({"ls"}).out.find("SUSPENDED") != std::string::npos; }))
      << Run({"ls"}).out;
  auto asker = StartAsker();
  EXPECT_EQ(Ask(*asker, AskFor500()), "ok");
  End(*asker);
  EXPECT_TRUE(Eventually([&] { return Resume().code == 0; })) << Resume().err;
  EXPECT_EQ(Ask(*holder, "compare"), "same");
  EXPECT_NE(HolderPid(), 0) << "it is charged again";
  End(*holder);
}

TEST_F(SuspendTest, ProgramsThatWereSuspendedForADaemonThatDiedAreResumedByTheNext) {
  StartMachine();
  auto holder = StartHolder();
  const pid_t pid = HolderPid();
  KillDaemonInASuspension(*holder, pid);
  StartMachine();
  EXPECT_TRUE(Eventually([&] { return machine_.CheckpointsOf(pid)->state == 0; })) << holder->Errors();
  EXPECT_EQ(Ask(*holder, "compare"), "same");
  End(*holder);
}

TEST_F(SuspendTest, AFailedSuspensionLetsTheProgramGoOn) {
  StartMachine();
  auto holder = StartHolder();
  machine_.FailCall("cuCheckpointProcessCheckpoint", 999, 0, 1, HolderPid());
  const ProgramResult failed = Suspend();
  EXPECT_NE(failed.code, 0);
  EXPECT_THAT(failed.err, HasSubstr("cuCheckpointProcessCheckpoint"));
  EXPECT_EQ(Ask(*holder, "compare"), "same");
  EXPECT_EQ(Ask(*holder, absl::StrCat("alloc ", 100 * kMiB)), "ok");
  EXPECT_THAT(Run({"events"}).out, HasSubstr("could not be suspended: "));
  End(*holder);
}

TEST_F(SuspendTest, AProgramWhoseWorkDoesNotEndInTimeIsToldAsThat) {
  StartMachine();
  auto holder = StartHolder();
  EXPECT_EQ(Ask(*holder, "busy"), "ok");
  const ProgramResult failed = Suspend();
  EXPECT_NE(failed.code, 0);
  EXPECT_THAT(failed.err, HasSubstr("its work did not end in time"));
  EXPECT_THAT(failed.err, Not(HasSubstr("lgpud")));
  EXPECT_EQ(Ask(*holder, "idle"), "ok");
  EXPECT_EQ(Ask(*holder, "compare"), "same");
  End(*holder);
}

TEST_F(SuspendTest, ALeaseWhoseProgramsCannotBeMovedBackHasFailed) {
  StartMachine();
  auto holder = StartHolder();
  const pid_t pid = HolderPid();
  ASSERT_EQ(Suspend().code, 0);
  machine_.FailCall("cuCheckpointProcessRestore", 304, 0, 1, pid);
  const ProgramResult failed = Resume();
  EXPECT_NE(failed.code, 0);
  EXPECT_THAT(failed.err, HasSubstr("try: lgpu rm --kill holder"));
  EXPECT_THAT(Run({"ls"}).out, HasSubstr("FAILED"));
  EXPECT_THAT(Resume().err, HasSubstr("cannot be resumed any more"));
  auto asker = StartAsker();
  EXPECT_TRUE(Eventually([&] { return Ask(*asker, AskFor500()) == "ok"; })) << "its memory is the card's";
  EXPECT_EQ(Run({"rm", "--kill", "holder", "--wait=1m"}).code, 0);
  holder->Wait();
  End(*asker);
}

TEST_F(SuspendTest, ProgramsThatAreBackKeepTheirMemoryWhereAnotherOneCannotBeMovedBack) {
  StartMachine();
  CreateHoldersLease();
  const std::string fifo = home_.path() + "/second";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  const std::string client = LGPU_CHECKPOINT_CLIENT;
  auto holder =
      StartCommand({"exec", "holder"}, {"sh", "-c", absl::StrCat(client, " < '", fifo, "' & exec ", client)});
  std::ofstream second(fifo);
  Allocate(*holder, 100 * kMiB);
  const pid_t back = HolderPid();
  for (const std::string& line : {std::string("start"), absl::StrCat("alloc ", 150 * kMiB)}) {
    second << line << std::endl;
    EXPECT_EQ(AnswerOf(*holder, ChildProgram::kPatience), "ok");
  }
  std::map<pid_t, Bytes> charges = HoldersCharges();
  EXPECT_EQ(charges.erase(back), 1u);
  ASSERT_EQ(charges.size(), 1u);
  const pid_t left = charges.begin()->first;
  ASSERT_EQ(Suspend().code, 0);
  machine_.FailCall("cuCheckpointProcessRestore", 304, 0, 1, left);
  EXPECT_THAT(Resume().err, HasSubstr(absl::StrCat("kill -9 ", left, " to keep the lease's other programs")));
  EXPECT_EQ(Ask(*holder, "compare"), "same");
  const std::map<pid_t, Bytes> kept = {{back, 100_MiB}};
  EXPECT_EQ(HoldersCharges(), kept);
  RestartDaemon();
  EXPECT_THAT(Run({"ls"}).out, HasSubstr("FAILED"));
  EXPECT_EQ(HoldersCharges(), kept) << "in the journal, too";
  ::kill(left, SIGKILL);
  EXPECT_TRUE(Eventually([&] { return Run({"ls"}).out.find("FAILED") == std::string::npos; }));
  EXPECT_EQ(Ask(*holder, absl::StrCat("alloc ", 100 * kMiB)), "ok") << "it goes on as before";
  End(*holder);
}

TEST_F(SuspendTest, AProgramThatIsBackAndCannotBeUnlockedStaysCharged) {
  StartMachine();
  auto holder = StartHolder("run", 100 * kMiB);
  const pid_t pid = HolderPid();
  ASSERT_EQ(Suspend().code, 0);
  machine_.FailCall("cuCheckpointProcessUnlock", 999, 0, 1, pid);
  EXPECT_THAT(Resume().err, HasSubstr("cuCheckpointProcessUnlock"));
  EXPECT_EQ(HoldersCharges(), (std::map<pid_t, Bytes>{{pid, 100_MiB}}));
  const auto is_over = [&] { return Run({"ls"}).out.find("FAILED") == std::string::npos; };
  EXPECT_FALSE(Eventually(is_over, std::chrono::seconds(2)));
  EXPECT_EQ(Run({"rm", "--kill", "holder", "--wait=1m"}).code, 0);
  holder->Wait();
}

TEST_F(SuspendTest, AProgramThatIsKilledMeanwhileEndsItsLease) {
  StartMachine();
  auto holder = StartHolder();
  const pid_t pid = HolderPid();
  ASSERT_EQ(Suspend().code, 0);
  ::kill(pid, SIGKILL);
  EXPECT_EQ(holder->Wait(), 128 + SIGKILL);
  EXPECT_TRUE(Eventually([&] { return Run({"ls"}).out.find("holder") == std::string::npos; }));
  auto asker = StartAsker();
  EXPECT_EQ(Ask(*asker, absl::StrCat("alloc c plain ", 900 * kMiB)), "ok");
  End(*asker);
}

TEST_F(SuspendTest, ALeaseWhoseSuspendedProgramsHaveEndedIsAnOrdinaryOne) {
  StartMachine();
  EXPECT_EQ(Run({"create", "--name", "holder", "-m", "1GiB", "--growth", "--guarantee", "512MiB"}).code, 0);
  auto holder = StartHolder("exec", 100 * kMiB);
  const pid_t pid = HolderPid();
  ASSERT_EQ(Suspend().code, 0);
  auto asker = StartAsker();
  EXPECT_EQ(Ask(*asker, AskFor500()), "ok");
  const auto is_suspended = [&] { return Run({"ls"}).out.find("SUSPENDED") != std::string::npos; };
  ::kill(pid, SIGKILL);
  holder->Wait();
  EXPECT_FALSE(Eventually([&] { return !is_suspended(); }, std::chrono::seconds(3)))
      << "its guarantee has no room";
  EXPECT_EQ(Ask(*asker, "free b"), "ok");
  EXPECT_TRUE(Eventually([&] { return !is_suspended(); }));
  EXPECT_EQ(Ask(*asker, absl::StrCat("alloc c plain ", 600 * kMiB)), "error 2") << "512 MiB are set aside";
  EXPECT_THAT(Run({"events"}).out, HasSubstr("its suspended programs have ended"));
  EXPECT_EQ(Run({"rm", "holder"}).code, 0);
  End(*asker);
}

TEST_F(SuspendTest, WithoutTheParentThatMovesItAProgramStaysWhereItIs) {
  StartMachine();
  auto holder = StartHolder();
  const pid_t pid = HolderPid();
  ASSERT_EQ(Suspend().code, 0);
  holder->Signal(SIGKILL);  // lgpu run itself
  holder->Wait();
  EXPECT_TRUE(Eventually([&] {
    return Resume().err.find("has ended [FAILED_PRECONDITION]\n  try: kill -9 ") != std::string::npos;
  })) << Resume().err;
  ::kill(pid, SIGKILL);
}

TEST_F(SuspendTest, AProgramWithoutARunnerIsNamedAndTheOthersAreResumedWhenItHasEnded) {
  StartMachine();
  CreateHoldersLease();
  auto first = StartHolder("exec", 100 * kMiB);
  const pid_t lost = HolderPid();
  auto second = StartHolder("exec", 100 * kMiB);
  ASSERT_EQ(Suspend().code, 0);
  first->Signal(SIGKILL);  // lgpu exec itself
  first->Wait();
  const std::string advice = absl::StrCat("try: kill -9 ", lost, ", and lgpu resume holder");
  EXPECT_TRUE(Eventually([&] { return Resume().err.find(advice) != std::string::npos; })) << Resume().err;
  EXPECT_THAT(Run({"ls"}).out, HasSubstr("SUSPENDED"));
  ::kill(lost, SIGKILL);
  EXPECT_TRUE(Eventually([&] { return Resume().code == 0; })) << Resume().err;
  EXPECT_EQ(Ask(*second, "compare"), "same");
  End(*second);
}

TEST_F(SuspendTest, AProgramWhoseParentHasEndedIsResumedByTheRunnerThatMovedIt) {
  StartMachine();
  CreateHoldersLease();
  const std::string inner = absl::StrCat("echo $$; ", LGPU_CHECKPOINT_CLIENT, "; :");
  auto holder = StartCommand({"exec", "holder"},
                             {"sh", "-c", absl::StrCat("sh -c '", inner, "'; while sleep 0.1; do :; done")});
  const pid_t between = std::stoi(holder->ReadLine().value_or("0"));
  ASSERT_GT(between, 1);
  Allocate(*holder, 100 * kMiB);
  ASSERT_EQ(Suspend().code, 0);
  ::kill(between, SIGKILL);
  RestartDaemon();
  EXPECT_TRUE(Eventually([&] { return Resume().code == 0; })) << Resume().err;
  EXPECT_EQ(Ask(*holder, "compare"), "same");
  holder->WriteLine("exit");
  holder->Signal(SIGTERM);
  holder->Wait();
}

TEST_F(SuspendTest, ADriverThatIsKnownToEndProgramsIsNotAsked) {
  StartMachine();
  auto holder = StartHolder("run", 100 * kMiB);
  machine_.state().driver_branch = 610;
  EXPECT_THAT(Suspend().err,
              HasSubstr("NVIDIA driver 610.00.fake: the driver's lock call may crash the program"));
  EXPECT_EQ(machine_.CallsOf("cuCheckpointProcessLock"), 0u);
  EXPECT_EQ(Ask(*holder, "compare"), "same");
  machine_.state().driver_branch = 580;
  EXPECT_EQ(Suspend().code, 0);
  ASSERT_EQ(Resume().code, 0);
  End(*holder);
}

TEST_F(SuspendTest, WhatCannotBeSuspendedIsRefusedWithTheReason) {
  StartMachine();
  const ProgramResult unknown = Run({"suspend", "nobody"});
  EXPECT_NE(unknown.code, 0);
  auto holder = StartHolder();
  const pid_t pid = HolderPid();
  ::kill(pid, SIGSTOP);
  const ProgramResult stopped = Suspend();
  EXPECT_NE(stopped.code, 0);
  EXPECT_THAT(stopped.err, HasSubstr("is stopped"));
  ::kill(pid, SIGCONT);
  EXPECT_EQ(Ask(*holder, "compare"), "same");
  EXPECT_THAT(Run({"resume", "holder"}).err, HasSubstr("is not suspended"));
  ASSERT_EQ(Suspend().code, 0);
  EXPECT_THAT(Suspend().err, HasSubstr("suspended already"));
  EXPECT_THAT(Run({"resize", "holder", "-m", "900MiB"}).err, HasSubstr("try: lgpu resume holder"));
  ASSERT_EQ(Resume().code, 0);
  End(*holder);
}

TEST_F(SuspendTest, ARunnerInAnotherPidNamespaceIsNamedAsThat) {
  const absl::StatusOr<ProgramResult> tried = RunProgram({.argv = {"unshare", "--pid", "--fork", "true"}});
  ASSERT_TRUE(tried.ok()) << tried.status();
  if (tried->code != 0) GTEST_SKIP() << "this machine allows no pid namespace: " << tried->err;
  StartMachine();
  const ChildProgram::Options options = Lgpu({"run", "--name", "holder", "--", LGPU_CHECKPOINT_CLIENT});
  std::vector<std::string> argv = {"unshare", "--pid", "--fork", "--kill-child"};
  argv.insert(argv.end(), options.argv.begin(), options.argv.end());
  auto holder = StartProgram(argv, options.environment);
  Allocate(*holder, 100 * kMiB);
  EXPECT_THAT(Suspend().err, HasSubstr("is in another pid namespace than lgpud"));
  EXPECT_EQ(Ask(*holder, "compare"), "same");
  End(*holder);
}

TEST_F(SuspendTest, AParentThatIsStoppedMovesNothingAndLosesNothing) {
  StartMachine();
  auto holder = StartHolder();
  holder->Signal(SIGSTOP);  // lgpu run itself, as by Ctrl-Z
  EXPECT_THAT(Suspend().err, ::testing::AllOf(HasSubstr("is stopped"), HasSubstr("try: kill -CONT ")));
  holder->Signal(SIGCONT);
  ASSERT_TRUE(Eventually([&] { return Suspend().code == 0; }));
  holder->Signal(SIGSTOP);
  EXPECT_THAT(Resume().err, HasSubstr("is stopped"));
  EXPECT_THAT(Run({"ls"}).out, HasSubstr("SUSPENDED"));
  holder->Signal(SIGCONT);
  EXPECT_TRUE(Eventually([&] { return Resume().code == 0; })) << Resume().err;
  EXPECT_EQ(Ask(*holder, "compare"), "same");
  End(*holder);
}

TEST_F(SuspendTest, ProgramsThatTheNextDaemonCannotResumeKeepNothing) {
  StartMachine();
  auto holder = StartHolder();
  const pid_t pid = HolderPid();
  machine_.FailCall("cuCheckpointProcessRestore", 304, 0, 100, pid);  // also for the command, which undoes it
  KillDaemonInASuspension(*holder, pid);
  StartMachine();
  EXPECT_TRUE(Eventually([&] { return Run({"ls"}).out.find("FAILED") != std::string::npos; }));
  RestartDaemon();
  EXPECT_THAT(Run({"ls"}).out, HasSubstr("FAILED"));
  auto asker = StartAsker();
  EXPECT_TRUE(Eventually([&] { return Ask(*asker, AskFor500()) == "ok"; }));
  EXPECT_EQ(Run({"rm", "--kill", "holder", "--wait=1m"}).code, 0);
  holder->Wait();
  End(*asker);
}

TEST_F(SuspendTest, ALeaseIsNotRemovedUnderSuspendedProgramsThatLive) {
  StartMachine();
  auto holder = StartHolder();
  ASSERT_EQ(Suspend().code, 0);
  EXPECT_THAT(Run({"rm", "holder"}).err, HasSubstr("try: lgpu rm --kill holder, or lgpu resume holder"));
  EXPECT_EQ(Run({"rm", "--kill", "holder", "--wait=1m"}).code, 0);
  holder->Wait();
}

// As a public thread reports it: the machine hung when a process was killed that had been restored.
TEST_F(SuspendTest, AProgramThatWasResumedIsSuspendedBeforeRmKillsIt) {
  StartMachine();
  auto holder = StartHolder("run", 100 * kMiB);
  const pid_t pid = HolderPid();
  ASSERT_EQ(Suspend().code, 0);
  ASSERT_EQ(Resume().code, 0);
  RestartDaemon();
  EXPECT_EQ(Ask(*holder, absl::StrCat("alloc ", 50 * kMiB)), "ok") << "it is back";
  EXPECT_EQ(Run({"rm", "--kill", "holder", "--wait=1m"}).code, 0);
  holder->Wait();
  const auto last = machine_.CheckpointsOf(pid);
  ASSERT_TRUE(last);
  EXPECT_EQ(last->state, 2) << "in host memory";
  EXPECT_EQ(last->checkpoints, 2);
}

TEST_F(SuspendTest, ABusyProgramThatWasResumedIsKilledAllTheSame) {
  StartMachine();
  auto holder = StartHolder("run", 100 * kMiB);
  const pid_t pid = HolderPid();
  ASSERT_EQ(Suspend().code, 0);
  ASSERT_EQ(Resume().code, 0);
  EXPECT_EQ(Ask(*holder, "busy"), "ok");
  EXPECT_EQ(Run({"rm", "--kill", "holder", "--wait=1m"}).code, 0);
  holder->Wait();
  EXPECT_EQ(machine_.CheckpointsOf(pid)->checkpoints, 1);
}

TEST_F(SuspendTest, ASuspendedLeaseIsRemovedByItsRequestAsOthersAre) {
  StartMachine();
  EXPECT_EQ(Run({"create", "--name", "holder", "-m", "1GiB", "--request-id", "job-7"}).code, 0);
  auto holder = StartHolder("exec", 100 * kMiB);
  const pid_t pid = HolderPid();
  ASSERT_EQ(Suspend().code, 0);
  const ProgramResult removed = Run({"rm", "--request-id", "job-7"});
  EXPECT_EQ(removed.code, 0) << removed.err;
  const ProgramResult repeated = Run({"rm", "--request-id", "job-7", "--if-exists"});
  EXPECT_EQ(repeated.code, 0) << repeated.err;
  auto asker = StartAsker();
  EXPECT_EQ(Ask(*asker, absl::StrCat("alloc b plain ", 900 * kMiB)), "ok");
  ::kill(pid, SIGKILL);
  holder->Wait();
  EXPECT_TRUE(Eventually([&] { return Run({"ls"}).out.find("holder") == std::string::npos; }));
  End(*asker);
}

TEST_F(SuspendTest, ALeaseThatEndsByTimeStaysWhileItsProgramsAreSuspended) {
  StartMachine();
  // Enough for the suspension on a slow machine.
  EXPECT_EQ(Run({"create", "--name", "holder", "-m", "1GiB", "--ttl", "15s"}).code, 0);
  auto holder = StartHolder("exec");
  ASSERT_EQ(Suspend().code, 0);
  const auto has_ended = [&] { return Run({"events"}).out.find("time to live") != std::string::npos; };
  EXPECT_FALSE(Eventually(has_ended, std::chrono::seconds(17)));
  ASSERT_EQ(Resume().code, 0);
  EXPECT_TRUE(Eventually(has_ended));
  EXPECT_EQ(Ask(*holder, "compare"), "same") << "it keeps what it has";
  End(*holder);
}

TEST_F(SuspendTest, ProgramsOfLgpuExecAreSuspendedToo) {
  StartMachine();
  CreateHoldersLease();
  auto holder = StartHolder("exec");
  ASSERT_EQ(Suspend().code, 0);
  EXPECT_THAT(Run({"ls"}).out, HasSubstr("SUSPENDED"));
  ASSERT_EQ(Resume().code, 0);
  EXPECT_EQ(Ask(*holder, "compare"), "same");
  End(*holder);
}

TEST_F(SuspendTest, AProgramGoesOnWhoseRunnerIsKilledAmidItsSuspension) {
  StartMachine();
  auto holder = StartHolder("run", 100 * kMiB);
  const pid_t pid = HolderPid();
  EXPECT_EQ(Ask(*holder, "busy"), "ok");
  const ChildProgram::Options options = Lgpu({"suspend", "holder"});
  auto suspending = StartProgram(options.argv, options.environment);
  EXPECT_TRUE(Eventually([&] { return machine_.CallsOf("cuCheckpointProcessLock") > 0; }));
  holder->Signal(SIGKILL);  // lgpu run itself
  EXPECT_NE(suspending->Wait(), 0);
  EXPECT_THAT(suspending->Errors(), HasSubstr(absl::StrCat("try: if they do not go on, kill -9 ", pid)));
  EXPECT_EQ(Ask(*holder, "idle"), "ok");
  EXPECT_EQ(Ask(*holder, "compare"), "same");
  EXPECT_TRUE(Eventually([&] { return machine_.CheckpointsOf(pid)->state == 0; }));
  ::kill(pid, SIGKILL);
}

TEST_F(SuspendTest, AProgramGoesOnWhoseRunnerIsKilledAmidItsResumption) {
  StartMachine();
  auto holder = StartHolder("run", 100 * kMiB);
  const pid_t pid = HolderPid();
  ASSERT_EQ(Suspend().code, 0);
  machine_.state().restore_hangs = true;
  const ChildProgram::Options options = Lgpu({"resume", "holder"});
  auto resuming = StartProgram(options.argv, options.environment);
  EXPECT_TRUE(Eventually([&] { return machine_.CallsOf("cuCheckpointProcessRestore") > 0; }));
  holder->Signal(SIGKILL);
  EXPECT_NE(resuming->Wait(), 0);
  machine_.state().restore_hangs = false;
  EXPECT_EQ(Ask(*holder, "compare"), "same");
  EXPECT_EQ(HoldersCharges(), (std::map<pid_t, Bytes>{{pid, 100_MiB}}));
  EXPECT_THAT(Run({"ls"}).out, Not(::testing::AnyOf(HasSubstr("FAILED"), HasSubstr("SUSPENDED"))));
  ::kill(pid, SIGKILL);
}

class SuspendOnTwoCardsTest : public SuspendTest {
 protected:
  SuspendOnTwoCardsTest() : SuspendTest(2) {}
  std::unique_ptr<ChildProgram> StartAskerOn(const std::string& card) {
    return StartCommand({"run", "-m", "1GiB", "--gpus", card, "--memory-wait", "500ms"},
                        {Client("dlopen"), "dlopen", "libcuda.so.1"});
  }
};

// Else two leases could have each the room that the other one waits for.
TEST_F(SuspendOnTwoCardsTest, ALeaseThatWaitsForAGpuKeepsNoRoomOnLaterOnes) {
  StartMachine();
  const std::vector<std::string> create = {"create", "--name",   "holder",      "-n",     "2",      "-m",
                                           "1GiB",   "--growth", "--guarantee", "600MiB", "--gpus", "0,1"};
  ASSERT_EQ(Run(create).code, 0);
  auto holder = StartHolder("exec", 100 * kMiB);
  ASSERT_EQ(Suspend().code, 0);
  auto first = StartAskerOn("0");
  EXPECT_EQ(Ask(*first, absl::StrCat("alloc b plain ", 600 * kMiB)), "ok");
  const std::vector<std::string> words = {"resume", "holder", "--wait=10m"};
  auto waiting = StartProgram(Lgpu(words).argv, Lgpu(words).environment);
  EXPECT_TRUE(Eventually([&] { return Stats().cards(0).queue_size() == 1; }));
  auto second = StartAskerOn("1");
  EXPECT_EQ(Ask(*second, absl::StrCat("alloc b plain ", 600 * kMiB)), "ok");
  End(*first);
  EXPECT_TRUE(Eventually([&] { return Stats().cards(1).queue_size() == 1; }));
  End(*second);
  EXPECT_EQ(waiting->Wait(), 0) << waiting->Errors();
  EXPECT_EQ(Ask(*holder, "compare"), "same");
  End(*holder);
}

}  // namespace
}  // namespace lgpu::testing
