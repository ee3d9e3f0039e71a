#include "daemon/leases/lease_suspender.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "allocator/broker/lease_suspensions.h"
#include "tests/daemon/daemon_parts.h"
#include "tests/daemon/temporary_directory.h"

namespace lgpu::daemon {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr std::uint32_t kAnna = 61301;
constexpr std::uint32_t kBen = 61302;

/// An `lgpu run` whose answers the test chooses. It answers as soon as it is woken, on lgpud's own thread.
class Runner final : public Waker {
 public:
  /// Nothing: it does not answer this order.
  using Way = std::function<std::optional<absl::Status>(const wire::Suspend&)>;

  Runner(LeaseSuspender& suspender, SessionId id) : suspender_(suspender), id_(id) {}

  void Wake() const override {
    for (const wire::Suspend& order : suspender_.TakeOrders(id_)) {
      orders_.push_back(order);
      if (const std::optional<absl::Status> answer = way_(order)) Answer(order, *answer);
    }
  }
  void Answer(const wire::Suspend& order, const absl::Status& answer) const {
    suspender_.Answer(id_, order.order_id, answer);
  }
  void Follow(Way way) { way_ = std::move(way); }
  const std::vector<wire::Suspend>& orders() const { return orders_; }

 private:
  LeaseSuspender& suspender_;
  const SessionId id_;
  Way way_ = [](const wire::Suspend&) { return absl::OkStatus(); };
  mutable std::vector<wire::Suspend> orders_;
};

/// anna's lease "train": a process that is a runner and, by another session, a program with 16 MiB of the
/// card. The others have 48 MiB of it.
class LeaseSuspenderTest : public ::testing::Test {
 protected:
  static constexpr Bytes kHas = 16_MiB;

  LeaseSuspenderTest() {
    runner_session_ = AddRunner(1, runner_, child_);
    train_ = *parts_.CreateLease({.uid = kAnna, .session = runner_session_}, "train");
    program_ = AddProgram(2, child_, kHas);
  }
  ~LeaseSuspenderTest() override {
    const absl::Status status = parts_.broker().CheckInvariants();
    EXPECT_TRUE(status.ok()) << status;
  }

  std::shared_ptr<SessionState> AddRunner(std::uint64_t number, std::shared_ptr<Runner>& runner,
                                          const IdleChild& child) {
    runner = std::make_shared<Runner>(suspender_, SessionId{number});
    return parts_.AddSession(kAnna, child.Hold(), number, runner, /*suspends=*/true);
  }
  std::shared_ptr<SessionState> AddProgram(std::uint64_t number, const IdleChild& child, Bytes bytes) {
    std::shared_ptr<SessionState> session = parts_.AddSession(kAnna, child.Hold(), number);
    EXPECT_TRUE(parts_.leases().Attach({.uid = kAnna, .session = session}, "train").ok());
    Charge(*session, bytes);
    return session;
  }
  void Charge(const SessionState& session, Bytes bytes) {
    parts_.broker().ShareAllowances(session.id(), std::make_shared<NoAllowances>());
    const auto now = std::chrono::steady_clock::now();
    const Broker::Answer answer =
        parts_.broker().ChargeCard({.session = session.id(),
                                    .card_uuid = parts_.broker().Cards()[0].card.device.uuid,
                                    .bytes = bytes,
                                    .what = "cuMemAlloc_v2",
                                    .asked_at = now,
                                    .deadline = now});
    EXPECT_TRUE(answer.status.ok() && !answer.wait) << answer.status;
  }
  /// Another runner of the lease, with a program of 8 MiB.
  void AddSecondRunner() {
    const std::shared_ptr<SessionState> session = AddRunner(3, second_runner_, second_child_);
    ASSERT_TRUE(parts_.leases().Attach({.uid = kAnna, .session = session}, "train").ok());
    AddProgram(4, second_child_, 8_MiB);
  }
  /// Takes the card for another lease: 56 MiB are gone.
  void FillTheCard() {
    other_ = parts_.AddSession(kBen, second_child_.Hold(), 5);
    const absl::StatusOr<v1::Lease> lease = parts_.CreateLease({.uid = kBen, .session = other_}, "other",
                                                               56_MiB, v1::LogicalDeviceSpec::MODE_GROWTH);
    ASSERT_TRUE(lease.ok()) << lease.status();
    Charge(*other_, 56_MiB);
  }
  void EmptyTheCard() {
    const std::string card = parts_.broker().Cards()[0].card.device.uuid;
    EXPECT_EQ(parts_.broker().Uncharge(other_->id(), card, 56_MiB), absl::OkStatus());
  }
  void StopRunner() {
    const pid_t pid = static_cast<pid_t>(runner_session_->process().pid);
    EXPECT_EQ(::kill(pid, SIGSTOP), 0);
    EXPECT_EQ(::waitpid(pid, nullptr, WUNTRACED), pid);
  }

  absl::StatusOr<v1::SuspendLeaseResponse> Suspend() { return suspender_.Suspend(anna_, "train"); }
  absl::StatusOr<v1::ResumeLeaseResponse> Resume(milliseconds wait = {}) {
    return suspender_.Resume(anna_, "train", LeaseSuspender::Clock::now() + wait, is_given_up_);
  }
  std::optional<LeaseSuspensions::Info> State() {
    return parts_.broker().suspensions().Find(runner_session_->lease());
  }
  static std::string Text(const absl::Status& status) { return std::string(status.message()); }
  std::vector<std::string> Events() {
    std::vector<std::string> texts;
    for (const v1::Event& event : parts_.events().Read(0, kAnna, 100).events) {
      if (event.kind() == v1::Event::KIND_SUSPENDED) texts.push_back(event.text());
    }
    return texts;
  }

  const TemporaryDirectory directory_;
  DaemonParts parts_{directory_.path()};
  LeaseSuspender suspender_{parts_.broker(),
                            parts_.leases(),
                            parts_.sessions(),
                            {.settle = {}, .slack = milliseconds(20), .restore_slack = milliseconds(20)}};
  IdleChild child_;
  IdleChild second_child_;
  std::shared_ptr<Runner> runner_;
  std::shared_ptr<Runner> second_runner_;
  std::shared_ptr<SessionState> runner_session_;
  std::shared_ptr<SessionState> program_;
  std::shared_ptr<SessionState> other_;
  v1::Lease train_;
  /// Asked each second while a call waits for memory.
  std::function<bool()> is_given_up_ = [] { return false; };
  const Caller anna_{.uid = kAnna, .session = nullptr};
};

TEST_F(LeaseSuspenderTest, TheRunnerMovesTheProgramAndTheAccountFollows) {
  const absl::StatusOr<v1::SuspendLeaseResponse> suspended = Suspend();
  ASSERT_TRUE(suspended.ok()) << suspended.status();
  EXPECT_EQ(suspended->lease_name(), "train");
  EXPECT_EQ(suspended->bytes(), kHas.count());
  EXPECT_EQ(parts_.FreeOfCard(), DaemonParts::kCard);
  ASSERT_THAT(runner_->orders(), SizeIs(1));
  EXPECT_FALSE(runner_->orders()[0].resume);
  ASSERT_THAT(runner_->orders()[0].processes, SizeIs(1));
  EXPECT_EQ(runner_->orders()[0].processes[0].pid, program_->process().pid);
  EXPECT_EQ(runner_->orders()[0].processes[0].start_time, program_->process().start_time);
  const std::vector<Lease> leases = parts_.leases().Snapshot(anna_);
  const std::optional<v1::LeaseSuspension> told = SuspensionOf(leases.at(0), parts_.broker());
  ASSERT_TRUE(told);
  EXPECT_TRUE(told->in_host_memory());
  EXPECT_EQ(told->bytes(), kHas.count());

  const absl::StatusOr<v1::ResumeLeaseResponse> resumed = Resume();
  ASSERT_TRUE(resumed.ok()) << resumed.status();
  EXPECT_EQ(resumed->bytes(), kHas.count());
  EXPECT_EQ(parts_.FreeOfCard(), DaemonParts::kCard - kHas);
  ASSERT_THAT(runner_->orders(), SizeIs(2));
  EXPECT_TRUE(runner_->orders()[1].resume);
  EXPECT_EQ(State(), std::nullopt);
  EXPECT_EQ(suspender_.counters().suspensions, 1u);
  EXPECT_EQ(suspender_.counters().resumptions, 1u);
  EXPECT_EQ(suspender_.counters().failures, 0u);
  EXPECT_EQ(suspender_.counters().bytes, 2 * kHas.count());
  EXPECT_THAT(Events(),
              ::testing::ElementsAre(HasSubstr("suspended: 16.00MiB"), HasSubstr("resumed: 16.00MiB")));
}

TEST_F(LeaseSuspenderTest, ARunnerThatFailsHasTheOthersUndoTheirPart) {
  AddSecondRunner();
  second_runner_->Follow([](const wire::Suspend&) { return absl::InternalError("the driver says 999"); });
  const absl::Status failed = Suspend().status();
  EXPECT_TRUE(absl::IsInternal(failed)) << failed;
  EXPECT_THAT(Text(failed), HasSubstr("999"));
  ASSERT_THAT(runner_->orders(), SizeIs(2));
  EXPECT_TRUE(runner_->orders()[1].resume);
  EXPECT_THAT(second_runner_->orders(), SizeIs(1)) << "it has undone its part by itself";
  EXPECT_EQ(State(), std::nullopt);
  EXPECT_EQ(parts_.FreeOfCard(), DaemonParts::kCard - kHas - 8_MiB);
  EXPECT_EQ(suspender_.counters().failures, 1u);
  EXPECT_THAT(Events(), ::testing::ElementsAre(HasSubstr("could not be suspended")));
}

TEST_F(LeaseSuspenderTest, AFailedSuspensionThatCannotBeUndoneIsToldWithTheWayOut) {
  AddSecondRunner();
  second_runner_->Follow([](const wire::Suspend&) { return absl::InternalError("the driver says 999"); });
  runner_->Follow([](const wire::Suspend& order) {
    return order.resume ? absl::InternalError("the restore failed") : absl::OkStatus();
  });
  const absl::Status failed = Suspend().status();
  EXPECT_TRUE(absl::IsInternal(failed)) << failed;
  EXPECT_THAT(Text(failed), AllOf(HasSubstr("999"), HasSubstr("the restore failed"),
                                  HasSubstr("try: lgpu rm --kill train")));
}

TEST_F(LeaseSuspenderTest, ASilentRunnerIsToldToUndoWhatItMayStillDo) {
  runner_->Follow([](const wire::Suspend&) { return std::nullopt; });
  const absl::Status failed = Suspend().status();
  EXPECT_TRUE(absl::IsFailedPrecondition(failed)) << failed;
  EXPECT_THAT(Text(failed), HasSubstr("did not answer within"));
  ASSERT_THAT(runner_->orders(), SizeIs(2));
  EXPECT_TRUE(runner_->orders()[1].resume);
  EXPECT_EQ(State(), std::nullopt) << "its requests go on";
  runner_->Answer(runner_->orders()[0], absl::OkStatus());  // nobody waits for it
  runner_->Answer(runner_->orders()[1], absl::OkStatus());
  EXPECT_EQ(State(), std::nullopt);
  EXPECT_EQ(parts_.FreeOfCard(), DaemonParts::kCard - kHas);
}

TEST_F(LeaseSuspenderTest, ALateAnswerThatProgramsAreLostFailsTheLease) {
  runner_->Follow([](const wire::Suspend&) { return std::nullopt; });
  ASSERT_FALSE(Suspend().ok());
  runner_->Answer(runner_->orders()[1], absl::InternalError("the restore failed"));
  ASSERT_TRUE(State());
  EXPECT_TRUE(State()->is_parked);
  EXPECT_EQ(parts_.FreeOfCard(), DaemonParts::kCard - kHas) << "nobody knows that it has left the card";
  EXPECT_THAT(Text(Resume().status()), AllOf(HasSubstr("cannot be resumed any more: the restore failed"),
                                             HasSubstr("try: lgpu rm --kill train")));
  EXPECT_THAT(Events().back(), HasSubstr("cannot be resumed: the restore failed"));
}

TEST_F(LeaseSuspenderTest, TheLeaseGoesOnWhenTheLateRunnerHasResumedItsPrograms) {
  ASSERT_TRUE(Suspend().ok());
  runner_->Follow([](const wire::Suspend&) { return std::nullopt; });
  const absl::Status late = Resume().status();
  EXPECT_TRUE(absl::IsFailedPrecondition(late)) << late;
  EXPECT_THAT(Text(late), HasSubstr("its programs go on as soon as that one answers"));
  EXPECT_EQ(parts_.FreeOfCard(), DaemonParts::kCard - kHas) << "it has its memory";
  ASSERT_TRUE(State()) << "its requests wait still";
  EXPECT_FALSE(State()->is_parked);
  EXPECT_THAT(Text(Suspend().status()), HasSubstr("being suspended or resumed already"));
  runner_->Answer(runner_->orders().back(), absl::OkStatus());
  EXPECT_EQ(State(), std::nullopt);
  EXPECT_THAT(Events().back(), HasSubstr("is being resumed: its `lgpu run` did not answer"));
}

TEST_F(LeaseSuspenderTest, TheLeaseGoesOnWhereTheLateRunnerEnds) {
  ASSERT_TRUE(Suspend().ok());
  runner_->Follow([](const wire::Suspend&) { return std::nullopt; });
  ASSERT_FALSE(Resume().ok());
  ASSERT_TRUE(State());
  suspender_.RunnerGone(runner_session_->id());
  EXPECT_EQ(State(), std::nullopt);
}

TEST_F(LeaseSuspenderTest, ARunnerThatEndsMeanwhileAnswersNoOrder) {
  runner_->Follow([this](const wire::Suspend&) -> std::optional<absl::Status> {
    suspender_.RunnerGone(runner_session_->id());
    return std::nullopt;
  });
  const absl::Status failed = Suspend().status();
  EXPECT_TRUE(absl::IsFailedPrecondition(failed)) << failed;
  EXPECT_THAT(Text(failed), HasSubstr("ended during the move"));
  EXPECT_EQ(State(), std::nullopt);
}

TEST_F(LeaseSuspenderTest, ALeaseWhoseProgramsCannotComeBackHasFailed) {
  ASSERT_TRUE(Suspend().ok());
  runner_->Follow([](const wire::Suspend&) { return absl::InternalError("the restore failed"); });
  const absl::Status failed = Resume().status();
  EXPECT_TRUE(absl::IsInternal(failed)) << failed;
  EXPECT_THAT(Text(failed), AllOf(HasSubstr("the restore failed"), HasSubstr("try: lgpu rm --kill train")));
  EXPECT_EQ(parts_.FreeOfCard(), DaemonParts::kCard - kHas) << "nobody knows that it has left the card";
  EXPECT_EQ(suspender_.counters().failures, 1u);
  const std::vector<Lease> leases = parts_.leases().Snapshot(anna_);
  EXPECT_EQ(SuspensionOf(leases.at(0), parts_.broker())->failed(), "the restore failed");
}

TEST_F(LeaseSuspenderTest, WithoutRoomNowItSaysWhatTheCardHasAndWhatTheLeaseNeeds) {
  ASSERT_TRUE(Suspend().ok());
  FillTheCard();
  const absl::Status refused = Resume().status();
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_THAT(Text(refused), AllOf(HasSubstr("there is no room for lease train now"),
                                   HasSubstr("8.00MiB free"), HasSubstr("the lease needs 16.00MiB")));
  EXPECT_TRUE(State()->is_parked);
  EXPECT_THAT(runner_->orders(), SizeIs(1)) << "the runner was told nothing";
}

TEST_F(LeaseSuspenderTest, AResumptionWaitsForMemoryUntilItsTimeIsOver) {
  ASSERT_TRUE(Suspend().ok());
  FillTheCard();
  const absl::Status late = Resume(milliseconds(50)).status();
  EXPECT_TRUE(absl::IsResourceExhausted(late)) << late;
  EXPECT_THAT(Text(late), HasSubstr("there was no room for lease train in that time"));
  EXPECT_TRUE(State()->is_parked);
  EmptyTheCard();
  EXPECT_TRUE(Resume().ok()) << "nothing is set aside for the call that is over";
}

TEST_F(LeaseSuspenderTest, AResumptionWhoseCallerIsGoneEnds) {
  ASSERT_TRUE(Suspend().ok());
  FillTheCard();
  is_given_up_ = [] { return true; };
  EXPECT_TRUE(absl::IsCancelled(Resume(std::chrono::hours(1)).status()));
  EXPECT_TRUE(State()->is_parked);
}

TEST_F(LeaseSuspenderTest, ASecondResumptionAtTheSameTimeIsRefused) {
  ASSERT_TRUE(Suspend().ok());
  FillTheCard();
  absl::Status second;
  is_given_up_ = [&] {
    second = Resume().status();
    return true;
  };
  EXPECT_TRUE(absl::IsCancelled(Resume(std::chrono::hours(1)).status()));
  EXPECT_TRUE(absl::IsFailedPrecondition(second)) << second;
  EXPECT_THAT(Text(second), HasSubstr("is being resumed already, by another call or by lgpud"));
}

TEST_F(LeaseSuspenderTest, ALeaseWhoseRunnerWasStoppedWhileItWaitedStaysSuspended) {
  ASSERT_TRUE(Suspend().ok());
  FillTheCard();
  is_given_up_ = [&] {
    StopRunner();
    EmptyTheCard();
    return false;
  };
  const absl::Status refused = Resume(std::chrono::hours(1)).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(Text(refused), HasSubstr("is stopped"));
  ASSERT_TRUE(State());
  EXPECT_TRUE(State()->is_parked);
  EXPECT_EQ(parts_.FreeOfCard(), DaemonParts::kCard);
  EXPECT_THAT(runner_->orders(), SizeIs(1)) << "the runner was told nothing";
}

TEST_F(LeaseSuspenderTest, AProgramWithoutARunnerStaysWhereItIs) {
  AddProgram(6, second_child_, 8_MiB);
  const absl::Status refused = Suspend().status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(Text(refused), HasSubstr("has no `lgpu run` or `lgpu exec` above it"));
  EXPECT_THAT(runner_->orders(), IsEmpty());
  EXPECT_EQ(State(), std::nullopt);
}

TEST_F(LeaseSuspenderTest, AStoppedRunnerIsNamedBeforeAnythingIsMoved) {
  StopRunner();
  const absl::Status refused = Suspend().status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(Text(refused), AllOf(HasSubstr("is stopped"), HasSubstr("try: kill -CONT ")));
  EXPECT_THAT(runner_->orders(), IsEmpty());
}

TEST_F(LeaseSuspenderTest, ARunnerThatIsBackResumesProgramsOfALeaseThatIsNotSuspended) {
  suspender_.RunnerBack(*runner_session_);
  ASSERT_THAT(runner_->orders(), SizeIs(1));
  EXPECT_TRUE(runner_->orders()[0].resume);
  EXPECT_THAT(runner_->orders()[0].processes, IsEmpty()) << "all that it has suspended";
  ASSERT_TRUE(Suspend().ok());
  suspender_.RunnerBack(*runner_session_);
  EXPECT_THAT(runner_->orders(), SizeIs(2)) << "a suspended lease waits for its call";
}

TEST_F(LeaseSuspenderTest, ARunnerThatIsBackAndCannotResumeFailsTheLease) {
  runner_->Follow([](const wire::Suspend&) { return absl::InternalError("the restore failed"); });
  suspender_.RunnerBack(*runner_session_);
  ASSERT_TRUE(State());
  EXPECT_TRUE(State()->is_parked);
  EXPECT_EQ(parts_.FreeOfCard(), DaemonParts::kCard - kHas);
}

TEST_F(LeaseSuspenderTest, WhatALgpudThatStopsHadBegunIsTheNextOnes) {
  ASSERT_TRUE(Suspend().ok());
  runner_->Follow([this](const wire::Suspend&) {
    suspender_.Close();
    return absl::InternalError("the connection is lost");
  });
  const absl::Status stopping = Resume().status();
  EXPECT_TRUE(absl::IsUnavailable(stopping)) << stopping;
  EXPECT_EQ(suspender_.counters().failures, 0u) << "the lease has not failed";
  ASSERT_TRUE(State());
  EXPECT_FALSE(State()->is_parked);
}

TEST_F(LeaseSuspenderTest, AWaitForMemoryEndsWithLgpud) {
  ASSERT_TRUE(Suspend().ok());
  FillTheCard();
  suspender_.Close();
  EXPECT_TRUE(absl::IsUnavailable(Resume(std::chrono::hours(1)).status()));
}

}  // namespace
}  // namespace lgpu::daemon
