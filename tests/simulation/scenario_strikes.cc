// What happens to the processes of a Scenario.

#include <cerrno>
#include <csignal>
#include <iterator>
#include <utility>

#include "tests/simulation/scenario.h"

namespace lgpu::simulation {

using std::chrono::milliseconds;

namespace {

constexpr milliseconds kLongestStand{3000};

}  // namespace

void Scenario::StandStill(const std::function<bool(const MachineProcess&)>& stops) {
  constexpr milliseconds kTimes[] = {milliseconds(5), milliseconds(50), milliseconds(500),
                                     milliseconds(1500)};
  const milliseconds at_most = kTimes[Below(std::size(kTimes))];
  const std::uint64_t one_in = 1 + Below(4);
  for (const auto& [pid, process] : Processes::Get().live()) {
    if (stops(*process)) scheduler_.StandStill(*process, one_in, at_most);
  }
  stood_at_ = std::max(stood_at_, scheduler_.now() + at_most);
  if (disturbed_at_ != Time::max()) disturbed_at_ = std::max(disturbed_at_, stood_at_);
}

void Scenario::Strike() {
  InAStepOf(*daemon_process_, 600, [this] { StandBriefly(); });
  const std::uint64_t dice = Below(10);
  if (dice < daemon_strikes_) {
    StrikeDaemon();
  } else if (!OneIn(4)) {
    StrikeClient();
  } else {
    Resize();
  }
  if (Serves() || OneIn(3)) AwaitDaemon();
}

void Scenario::StrikeDaemon() {
  if (!daemon_process_->is_alive) {
    // Also this one may die soon, or be cut in its recovery.
    StartDaemon(/*waits=*/false);
    if (OneIn(2)) daemon_process_->dies_at_step = Below(3000);
    return;
  }
  switch (has_bad_disk_ && !OneIn(8) ? 10 : Below(11)) {
    case 0:
    case 1:
    case 2:
      daemon_process_->dies_at_step = daemon_process_->steps + 1 + Below(1500);
      break;
    case 3:
    case 4:
    case 5: {
      if (clients_.empty()) return;
      const bool is_stop = OneIn(4);
      InAStepOf(*clients_[Below(clients_.size())].process, 300, [this, is_stop] {
        HitDaemon(is_stop);
        if (OneIn(2)) StandHere(milliseconds(1000));
      });
      break;
    }
    case 6:
      HitDaemon(/*is_stop=*/true);
      break;
    default: {
      had_faults_ = true;
      disturbed_at_ = Time::max();
      // Where most calls fail, the journal is soon written anew, and has all that was lost.
      const bool are_rare = has_bad_disk_ || OneIn(2);
      daemon_process_->file_faults = {.one_in = are_rare ? 4 + Below(30) : 1 + Below(4),
                                      .error = OneIn(2) ? ENOSPC : EIO};
      // The next lgpud knows what was written, and not what should have been.
      if (!has_bad_disk_ && OneIn(2)) {
        daemon_process_->dies_at_step = daemon_process_->steps + 1 + Below(2000);
      }
      Sleep(milliseconds(Below(has_bad_disk_ ? 2000 : are_rare || OneIn(4) ? 500 : 20)));
      daemon_process_->file_faults = {};
      if (Serves()) disturbed_at_ = scheduler_.now();
      if (has_bad_disk_ || OneIn(2)) daemon_process_->dies_at_step = daemon_process_->steps + 1 + Below(500);
      return;
    }
  }
}

void Scenario::HitDaemon(bool is_stop) {
  if (!Serves()) return;
  if (!is_stop) return Processes::Get().Kill(*daemon_process_);
  ++counts_.daemon_stops;
  disturbed_at_ = Time::max();
  daemon_->SendStop();
  StandStill([this](const MachineProcess& process) { return &process == daemon_process_; });
}

void Scenario::StandBriefly() {
  Scheduler::Self().stands_still_until = scheduler_.now() + milliseconds(1 + Below(30));
}

void Scenario::StandHere(Time at_most) {
  const Time until = scheduler_.now() + Time(Below(static_cast<std::uint64_t>(at_most.count())));
  Scheduler::Self().stands_still_until = until;
  stood_at_ = std::max(stood_at_, until);
  if (disturbed_at_ != Time::max()) disturbed_at_ = std::max(disturbed_at_, until);
}

void Scenario::InAStepOf(MachineProcess& process, std::uint64_t at_most, const std::function<void()>& act) {
  process.acts_at_step = process.steps + 1 + Below(at_most);
  process.action = act;
}

void Scenario::StrikeConnected(MachineProcess& process) {
  switch (Below(8)) {
    case 0:
      process.dies_at_step = process.steps + 1 + Below(100);
      break;
    case 1:
    case 2:
      InAStepOf(process, 100, [this] { StandHere(milliseconds(1000)); });
      break;
    default:
      break;
  }
}

void Scenario::StrikeGranted() {
  if (!is_resting_ && OneIn(20)) LoseDaemonHere(8);
}

void Scenario::StrikeReturning() {
  if (!is_resting_ && OneIn(40)) LoseDaemonHere(16);
}

void Scenario::LoseDaemonHere(std::uint64_t at_most) {
  SimulatedThread& thread = Scheduler::Self();
  thread.acts_in = 1 + Below(at_most);
  thread.action = [this, &thread] {
    if (is_resting_ || !Serves()) return;
    HitDaemon(OneIn(4));
    thread.stands_still_until = scheduler_.now() + kLongestStand;
    standing_.push_back(thread.number);
  };
}

// At any moment of their sessions' resuming.
void Scenario::LetStandingGoOn() {
  for (const std::uint32_t number : std::exchange(standing_, {})) {
    SimulatedThread* const thread = scheduler_.Find(number);
    if (thread == nullptr || thread->stands_still_until < scheduler_.now()) continue;
    thread->stands_still_until = scheduler_.now() + Time(Below(OneIn(2) ? 10'000'000 : 400'000'000));
    stood_at_ = std::max(stood_at_, thread->stands_still_until);
    disturbed_at_ = std::max(disturbed_at_, thread->stands_still_until);
  }
}

// The parent of a killed program ends by itself. A parent is killed together with its program only.
void Scenario::StrikeTurner() {
  const Turner& turner = turners_[Below(turners_.size())];
  if (!turner.process->is_alive) return;
  if (OneIn(4)) return turner.program->Finish();
  ++counts_.client_deaths;
  Processes::Get().Kill(*turner.process);
  if (turner.parent != nullptr && OneIn(2)) Processes::Get().Kill(*turner.parent);
}

void Scenario::StrikeClient() {
  if (!turners_.empty() && OneIn(3)) return StrikeTurner();
  if (!hooks_.empty() && OneIn(12)) {
    hooks_[Below(hooks_.size())].process->dies_at_step = 0;
    return;
  }
  if (clients_.empty()) return;
  const Client client = clients_[Below(clients_.size())];
  MachineProcess& process = *client.process;
  if (!process.is_alive) return;
  switch (Below(5)) {
    case 0:
      process.dies_at_step = process.steps + 1 + Below(2000);
      break;
    case 1:
      disturbed_at_ = Time::max();
      Processes::Get().Stop(process);
      Sleep(milliseconds(Below(OneIn(4) ? 3000 : 100)));
      Processes::Get().Continue(process);
      if (Serves()) disturbed_at_ = scheduler_.now();  // else AwaitDaemon sets it
      return;
    case 2:
      client.program->Finish();
      return;
    case 3:
      for (const Client& other : clients_) {
        if (OneIn(2)) Processes::Get().Kill(*other.process);
      }
      return;
    default:
      Processes::Get().Kill(process);
      break;
  }
  ++counts_.client_deaths;
}

}  // namespace lgpu::simulation
