// A MirroredStrategy over real processes of a lease.

#include <signal.h>
#include <sys/stat.h>

#include <chrono>
#include <cmath>
#include <future>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "tests/e2e/harness.h"

namespace lgpu::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class ProcessesTest : public E2eTest {
 protected:
  void SetUp() override { StartDaemon({.simulate = "1GiB"}); }
  void TearDown() override {
    processes_.clear();
    const v1::StatsSnapshot stats = Stats();
    for (const v1::LeaseStats& lease : stats.leases()) {
      EXPECT_TRUE(!lease.lasting() || control_->RemoveLease(lease.id()).ok());
    }
    E2eTest::TearDown();
  }
  std::string Lease(int devices) {
    v1::CreateLeaseRequest request = OneDevice(64 * kMiB, /*preallocate=*/false, /*lasting=*/true);
    for (int i = 1; i < devices; ++i) *request.add_devices() = request.devices(0);
    const auto lease = control_->CreateLease(request);
    EXPECT_TRUE(lease.ok()) << lease.status();
    return lease.ok() ? lease->id() : "";
  }
  std::unique_ptr<ChildProgram> Process(const std::string& lease) {
    auto process =
        ChildProgram::Start({.argv = {DaemonProcess::ProgramPath(LGPU_STRATEGY_CLIENT)},
                             .environment = {{"LGPU_ENDPOINT", daemon_->dir()}, {"LGPU_LEASE", lease}}});
    EXPECT_TRUE(process.ok());
    return *std::move(process);
  }
  std::string OpenLine(int rank, int count, int timeout_ms = 50'000) const {
    return absl::StrCat("open ", rank, " ", count, " ", Meeting(), " ", timeout_ms);
  }
  std::string Meeting() const { return meeting_.path() + "/meeting"; }
  bool MeetingExists() const {
    struct stat info = {};
    return ::stat(Meeting().c_str(), &info) == 0;
  }
  /// `count` processes with a replica on each device of the lease.
  void Start(int count, const std::string& lease, int timeout_ms = 50'000) {
    processes_.clear();
    for (int rank = 0; rank < count; ++rank) processes_.push_back(Process(lease));
    for (int rank = count - 1; rank >= 0; --rank) {
      processes_[rank]->WriteLine(OpenLine(rank, count, timeout_ms));
    }
    for (const std::string& answer : Answers()) ASSERT_THAT(answer, StartsWith("ok "));
    EXPECT_FALSE(MeetingExists());
  }
  std::vector<std::string> Answers() {
    std::vector<std::string> answers;
    for (const auto& process : processes_) answers.push_back(process->ReadLine().value_or("nothing"));
    return answers;
  }
  std::vector<std::string> AskAll(const std::string& command) {
    for (const auto& process : processes_) process->WriteLine(command);
    return Answers();
  }
  static std::vector<double> Weights(const std::string& answer) {
    std::istringstream in(answer);
    std::string word;
    in >> word;
    EXPECT_EQ(word, "ok") << answer;
    std::vector<double> weights;
    while (in >> word) weights.push_back(std::strtod(word.c_str(), nullptr));
    return weights;
  }

  TempDir meeting_;
  std::vector<std::unique_ptr<ChildProgram>> processes_;
};

TEST_F(ProcessesTest, TrainingGoesOnAfterOneReplicasProcessWasSuspended) {
  Start(2, Lease(1));
  const std::vector<std::string> plain = AskAll("train 5 10");
  ASSERT_THAT(plain.front(), StartsWith("ok "));
  processes_[0]->WriteLine("train 5 10 3");
  processes_[1]->WriteLine("train 5 10");
  for (const std::string& answer : Answers()) EXPECT_EQ(answer, plain.front()) << "equal bits";
}

// A batch of 10 rows is uneven for 4 replicas.
TEST_F(ProcessesTest, SeveralProcessesLearnTheSameAsOneProcess) {
  Start(1, Lease(4));
  const std::vector<double> alone = Weights(AskAll("train 5 10").front());
  ASSERT_EQ(alone.size(), 6u * 4 + 4);
  for (const int count : {2, 4}) {
    Start(count, Lease(4 / count));
    const std::vector<std::string> answers = AskAll("train 5 10");
    for (const std::string& answer : answers) {
      EXPECT_EQ(answer, answers.front()) << "equal bits in all processes";
    }
    const std::vector<double> weights = Weights(answers.front());
    ASSERT_EQ(weights.size(), alone.size());
    for (std::size_t i = 0; i < alone.size(); ++i) EXPECT_NEAR(weights[i], alone[i], 1e-6) << i;
  }
}

TEST_F(ProcessesTest, LargeSumsAreMadeInRoomThatGrows) {
  Start(3, Lease(1));
  for (const int elements : {1, 3, 100'000, 50, 1'000'000}) {
    for (const std::string& answer : AskAll(absl::StrCat("sum ", elements))) {
      EXPECT_EQ(answer, absl::StrCat("ok ", 3 * elements));
    }
  }
}

TEST_F(ProcessesTest, ProcessesThatDoNotDoTheSameHaveOneErrorAndGoOn) {
  Start(3, Lease(1));
  for (int rank = 0; rank < 3; ++rank) processes_[rank]->WriteLine(rank == 2 ? "sum 4" : "sum 3");
  for (const std::string& answer : Answers()) {
    EXPECT_THAT(answer,
                AllOf(StartsWith("error INVALID_ARGUMENT"), HasSubstr("process 0 has float[3]"),
                      HasSubstr(absl::StrCat("process 2 (pid ", processes_[2]->pid(), ") has float[4]"))));
  }
  for (const std::string& answer : AskAll("sum 5")) EXPECT_EQ(answer, "ok 15");
  // One runs a step, the others make variables.
  for (int rank = 0; rank < 3; ++rank) processes_[rank]->WriteLine(rank == 1 ? "train 1 6" : "sum 3");
  for (const std::string& answer : Answers()) EXPECT_THAT(answer, StartsWith("error INVALID_ARGUMENT"));
  for (const std::string& answer : AskAll("sum 5")) EXPECT_EQ(answer, "ok 15");
}

TEST_F(ProcessesTest, ALimitThatOneProcessHitsEndsTheStepOfAll) {
  Start(2, Lease(2));
  for (const int failing : {0, 1}) {
    for (int rank = 0; rank < 2; ++rank) processes_[rank]->WriteLine(rank == failing ? "fail" : "sum 3");
    for (const std::string& answer : Answers()) {
      EXPECT_THAT(
          answer,
          AllOf(StartsWith("error RESOURCE_EXHAUSTED"),
                HasSubstr(absl::StrCat("process ", failing, " (pid ", processes_[failing]->pid(),
                                       "): replica 1 (/job:localhost/replica:0/task:0/device:GPU:1)")),
                HasSubstr("OOM")));
    }
    for (const std::string& answer : AskAll("sum 5")) EXPECT_EQ(answer, "ok 20") << "training goes on";
  }
}

TEST_F(ProcessesTest, TheDeathOfOneEndsTheStrategyOfAll) {
  for (const int dead : {0, 1, 2}) {
    Start(3, Lease(1));
    ASSERT_EQ(AskAll("sum 2").front(), "ok 6");
    for (int rank = 0; rank < 3; ++rank) {
      if (rank != dead) processes_[rank]->WriteLine("sum 3");
    }
    processes_[dead]->Signal(SIGKILL);
    for (int rank = 0; rank < 3; ++rank) {
      if (rank == dead) continue;
      const std::string named =
          absl::StrCat("process ", dead, " (pid ", processes_[dead]->pid(), ") has ended");
      EXPECT_THAT(processes_[rank]->ReadLine().value_or(""),
                  AllOf(StartsWith("error UNAVAILABLE"), HasSubstr(named)));
      EXPECT_THAT(Ask(*processes_[rank], "sum 3"), HasSubstr(named)) << "for good";
    }
  }
}

TEST_F(ProcessesTest, AStoppedProcessCostsTheOtherProcessesTheirTimeout) {
  // Long enough for both to come, also on a slow machine.
  constexpr int kTimeoutMs = kSanitized ? 15'000 : 5'000;
  Start(2, Lease(1), kTimeoutMs);
  ASSERT_EQ(AskAll("sum 2").front(), "ok 4");
  processes_[1]->Signal(SIGSTOP);
  EXPECT_THAT(Ask(*processes_[0], "sum 3"),
              AllOf(StartsWith("error DEADLINE_EXCEEDED"), HasSubstr("process 1 (pid"),
                    HasSubstr(absl::StrCat(kTimeoutMs, " ms"))));
  processes_[1]->Signal(SIGCONT);
  EXPECT_THAT(Ask(*processes_[1], "sum 3"), HasSubstr("did not come to the sum")) << "it hears why";
}

TEST_F(ProcessesTest, TheMeetingTakesEachRankOnceAndOnlyProcessesThatFit) {
  const std::string lease = Lease(1);
  const auto zero = Process(lease);
  const auto one = Process(lease);
  zero->WriteLine(OpenLine(0, 3));
  one->WriteLine(OpenLine(1, 3));
  ASSERT_TRUE(Eventually([&] { return MeetingExists(); }));
  const auto other = Process(lease);
  EXPECT_THAT(Ask(*other, OpenLine(0, 3)),
              AllOf(StartsWith("error ALREADY_EXISTS"), HasSubstr("rank 0 is taken")));
  // Whichever of the two comes first has the rank. The other one is refused while the meeting lasts.
  const auto twin = Process(lease);
  twin->WriteLine(OpenLine(1, 3));
  const auto answer_of = [](ChildProgram& process) {
    return std::async(std::launch::async, [&process] { return process.ReadLine().value_or(""); });
  };
  std::future<std::string> first = answer_of(*one);
  std::future<std::string> second = answer_of(*twin);
  const auto is_there = [](const std::future<std::string>& answer) {
    return answer.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  };
  ASSERT_TRUE(Eventually([&] { return is_there(first) || is_there(second); }));
  EXPECT_THAT(Ask(*other, OpenLine(2, 4)),
              AllOf(StartsWith("error INVALID_ARGUMENT"), HasSubstr("one of 3")));
  EXPECT_THAT(Ask(*other, OpenLine(3, 3)), StartsWith("error INVALID_ARGUMENT"));
  const auto stranger = Process(Lease(1));
  EXPECT_THAT(Ask(*stranger, OpenLine(2, 3)), HasSubstr("start all with one LGPU_LEASE"));
  const auto wide = Process(Lease(2));
  EXPECT_THAT(Ask(*wide, OpenLine(2, 3)), HasSubstr("all processes have equally many"));
  EXPECT_EQ(Ask(*other, OpenLine(2, 3)), "ok 3");
  EXPECT_EQ(zero->ReadLine(), "ok 3");
  std::vector<std::string> answers = {first.get(), second.get()};
  std::sort(answers.begin(), answers.end());
  EXPECT_THAT(answers[0], AllOf(StartsWith("error ALREADY_EXISTS"), HasSubstr("rank 1 is taken by pid")));
  EXPECT_EQ(answers[1], "ok 3");
}

TEST_F(ProcessesTest, MissingProcessesAreNamed) {
  const std::string lease = Lease(1);
  const auto zero = Process(lease);
  EXPECT_THAT(
      Ask(*zero, OpenLine(0, 3, 300)),
      AllOf(StartsWith("error DEADLINE_EXCEEDED"), HasSubstr("rank 1, 2 did not come"), HasSubstr("300 ms")));
  EXPECT_FALSE(MeetingExists());
  const auto one = Process(lease);
  EXPECT_THAT(Ask(*one, OpenLine(1, 2, 300)), HasSubstr("process 0 did not come"));
  // The socket path of a killed process 0 does not stop the next one.
  zero->WriteLine(OpenLine(0, 2));
  ASSERT_TRUE(Eventually([&] { return MeetingExists(); }));
  zero->Signal(SIGKILL);
  EXPECT_EQ(zero->Wait(), 128 + SIGKILL);
  ASSERT_TRUE(MeetingExists());
  Start(2, lease);
  EXPECT_EQ(AskAll("sum 2").back(), "ok 4");
}

}  // namespace
}  // namespace lgpu::testing
