#include "tests/support/turn_world.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "allocator/broker/lease_suspensions.h"
#include "allocator/broker/reservations.h"
#include "allocator/broker/session_releases.h"
#include "allocator/device/simulated/simulated_backend.h"
#include "lgpu/status.h"
#include "tests/support/broker_testing.h"

namespace lgpu {
namespace {

/// The words of a program that takes all of its memory at once.
class NoAllowance final : public Allowances {
 public:
  std::atomic<std::uint64_t>& Free(std::size_t) override { return free_; }
  std::atomic<std::uint64_t>& Keep(std::size_t) override { return keep_; }

 private:
  std::atomic<std::uint64_t> free_ = 0;
  std::atomic<std::uint64_t> keep_ = 0;
};

}  // namespace

struct TurnWorld::State {
  enum class At { kStart, kAsks, kWorks, kPauses, kEnded };
  enum class Place { kCard, kLeaves, kHost, kReturns };
  std::uint64_t number = 0;  // of lease, session and user
  Program program;
  LogicalId device;
  At at = At::kStart;
  Place place = Place::kCard;
  Time left{};       // of the work or the pause
  Time work_left{};  // in all
  Broker::TimePoint move_ends = {};
  std::optional<ReleaseOrder> order = {};
  std::optional<WaiterId> request = {};
  std::optional<WaiterId> room = {};
  std::optional<Broker::TimePoint> wants_since = {};
  std::shared_ptr<FlagWaker> waker = std::make_shared<FlagWaker>();

  LeaseKey lease() const { return LeaseKey{number}; }
  SessionId session() const { return SessionId{number}; }
};

TurnWorld::TurnWorld(Bytes card, Bytes rate) : rate_(rate) {
  SimulatedBackendOptions simulated;
  simulated.devices = {SimulatedDevice(0, card, "turn_world")};
  simulated.sparse = true;
  backend_ = MakeSimulatedBackend(std::move(simulated));
  Broker::Options options = AllCardsOf(*backend_);
  options.clock = [this] { return now_; };
  broker_ = *Broker::Create(*backend_, log_, options);
  card_ = broker_->Cards().front().id;
  uuid_ = backend_->devices().front().uuid;
}

TurnWorld::~TurnWorld() = default;

void TurnWorld::Add(const Program& program) {
  auto state = std::make_unique<State>();
  state->number = programs_.size() + 1;
  state->program = program;
  state->work_left = program.work;
  const std::string name = absl::StrCat("program-", state->number);
  state->device = *broker_->AddDevice({.card = card_,
                                       .limit = program.bytes,
                                       .lease = state->lease(),
                                       .device_name = "/device:GPU:0",
                                       .lease_name = name,
                                       .owner = name,
                                       .preemptible = program.preemptible});
  broker_->AddSession(
      state->session(),
      {.pid = static_cast<std::int64_t>(1000 + state->number), .waker = state->waker, .waits_longer = true});
  broker_->AttachSession(state->session(), state->lease());
  broker_->ShareAllowances(state->session(), std::make_shared<NoAllowance>());
  programs_.push_back(std::move(state));
}

TurnWorld::Time TurnWorld::MoveTime(const State& program) const {
  const double seconds =
      static_cast<double>(program.program.bytes.count()) / static_cast<double>(rate_.count());
  return Time(static_cast<std::int64_t>(1000 * seconds));
}

absl::Status TurnWorld::Run(Time limit, std::uint64_t most_moves) {
  const Broker::TimePoint began = now_;
  const auto is_over = [](const auto& program) { return program->at == State::At::kEnded; };
  while (!std::all_of(programs_.begin(), programs_.end(), is_over) && figures_.moves < most_moves) {
    if (now_ - began > limit) return absl::DeadlineExceededError("not all programs have ended");
    LGPU_RETURN_IF_ERROR(Step());
  }
  figures_.makespan = std::chrono::duration_cast<Time>(now_ - began);
  return broker_->CheckInvariants();
}

absl::Status TurnWorld::Step() {
  const std::uint64_t moves = figures_.moves;
  for (const std::unique_ptr<State>& program : programs_) StepProgram(*program);
  TakeOrders();
  now_ += kStep;
  broker_->Tick();
  return figures_.moves == moves ? absl::OkStatus() : broker_->CheckInvariants();
}

void TurnWorld::StepProgram(State& program) {
  if (program.at == State::At::kEnded) return;
  FinishMove(program);
  const bool wants = program.at == State::At::kWorks || program.at == State::At::kAsks;
  if (program.place == State::Place::kHost && wants) BringBack(program);
  if (program.at == State::At::kStart) Ask(program);
  if (program.at == State::At::kAsks && program.place == State::Place::kCard) {
    std::optional<Broker::Answer> answer = broker_->TakeAnswer(*program.request);
    if (answer && answer->status.ok()) {
      program.at = State::At::kWorks;
      program.left = program.program.busy;
    } else if (answer) {
      ++figures_.refused;
      End(program);
    }
  }
  Work(program);
}

void TurnWorld::Ask(State& program) {
  const Broker::Answer answer = broker_->ChargeCard({.session = program.session(),
                                                     .card_uuid = uuid_,
                                                     .bytes = program.program.bytes,
                                                     .what = "cuMemAlloc_v2",
                                                     .asked_at = now_,
                                                     .deadline = now_ + program.program.patience});
  program.wants_since = now_;
  if (answer.wait) {
    program.request = answer.wait;
    program.at = State::At::kAsks;
  } else if (answer.status.ok()) {
    program.at = State::At::kWorks;
    program.left = program.program.busy;
  } else {
    ++figures_.refused;
    End(program);
  }
}

void TurnWorld::Work(State& program) {
  if (program.at == State::At::kPauses) {
    program.left -= kStep;
    if (program.left > Time(0)) return;
    program.at = State::At::kWorks;
    program.left = program.program.busy;
    program.wants_since = now_;
  }
  if (program.at != State::At::kWorks || program.place != State::Place::kCard) return;
  if (program.wants_since) {
    figures_.longest_wait =
        std::max(figures_.longest_wait, std::chrono::duration_cast<Time>(now_ - *program.wants_since));
    program.wants_since.reset();
  }
  broker_->NoteLastUses({{.device = program.device, .at = now_}});
  program.left -= kStep;
  program.work_left -= kStep;
  if (program.work_left <= Time(0)) {
    End(program);
  } else if (program.left <= Time(0)) {
    program.at = State::At::kPauses;
    program.left = program.program.pause;
  }
}

void TurnWorld::End(State& program) {
  broker_->Uncharge(program.session(), uuid_, program.program.bytes).IgnoreError();
  broker_->RemoveSession(program.session());
  broker_->RemoveDevice(program.device);
  program.at = State::At::kEnded;
}

void TurnWorld::TakeOrders() {
  for (const ReleaseOrder& order : broker_->releases().TakeOrders(SessionId())) {
    State& program = *programs_.at(order.lease.value - 1);
    if (program.at == State::At::kEnded || !broker_->suspensions().Begin(order.lease).ok()) {
      broker_->releases().Answer(SessionId(), order.id, ReleaseOutcome::kFailed).IgnoreError();
      continue;
    }
    program.order = order;
    program.place = State::Place::kLeaves;
    program.move_ends = now_ + MoveTime(program);
    figures_.moving += MoveTime(program);
    if (program.at == State::At::kWorks && !program.wants_since) program.wants_since = now_;
  }
}

void TurnWorld::FinishMove(State& program) {
  if (now_ < program.move_ends) return;
  if (program.place == State::Place::kLeaves) {
    broker_->suspensions().Park(program.lease(), /*keeps_room=*/true);
    broker_->releases().Answer(SessionId(), program.order->id, ReleaseOutcome::kDone).IgnoreError();
    program.place = State::Place::kHost;
    ++figures_.moves;
  } else if (program.place == State::Place::kReturns) {
    broker_->suspensions().End(program.lease());
    program.place = State::Place::kCard;
  }
}

void TurnWorld::BringBack(State& program) {
  const std::map<CardId, Bytes> need = broker_->suspensions().NeedOf(program.lease());
  if (!program.room && !need.empty()) {
    program.room = broker_->reservations().Queue({.card = card_,
                                                  .bytes = need.begin()->second,
                                                  .lease_name = absl::StrCat("program-", program.number),
                                                  .owner = absl::StrCat("program-", program.number),
                                                  .waker = program.waker,
                                                  .preemptible = program.program.preemptible,
                                                  .lease = program.lease()});
  }
  if (program.room) {
    const std::optional<Broker::Answer> answer = broker_->TakeAnswer(*program.room);
    if (!answer) return;
  }
  std::vector<WaiterId> rooms;
  if (program.room) rooms.push_back(*program.room);
  const absl::Status back = broker_->suspensions().TakeBack(program.lease(), rooms);
  if (program.room) broker_->reservations().Leave(*std::exchange(program.room, std::nullopt));
  if (!back.ok()) return;
  program.place = State::Place::kReturns;
  program.move_ends = now_ + MoveTime(program);
  figures_.moving += MoveTime(program);
}

}  // namespace lgpu
