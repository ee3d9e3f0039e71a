#include "tests/simulation/scenario.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "allocator/broker/broker.h"
#include "lgpu/status.h"
#include "tests/simulation/control_calls.h"
#include "tests/simulation/machine/descriptors.h"
#include "tests/simulation/machine/mutex_watch.h"

namespace lgpu::simulation {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Programs end, and memory comes back, within this much simulated time.
constexpr seconds kEndPatience{120};
// lgpud is started again within this much of a quiet day.
constexpr seconds kRestart{1};
// Of programs that are asked for idle memory, and of sessions that make granted memory.
constexpr seconds kTurn{20};  // of one program, with its moves
constexpr milliseconds kTrimPatience{3000}, kMakePatience{4000};
// A run without a length begins its end after these: it takes no more than two seconds of CPU time.
constexpr std::uint64_t kMostSteps = 250'000;

daemon::Caller Root() { return {.uid = 0, .session = nullptr}; }

// The bytes of chunks that are open, mapped or on their way anywhere.
Bytes ChunksOfMachine() {
  static Bytes sum;
  static std::uint64_t changes = 0;
  if (std::exchange(changes, RealFile::changes()) == RealFile::changes()) return sum;
  std::map<std::uint64_t, std::uint64_t> bytes;
  for (const RealFile* file : RealFile::All()) {
    if (file->memfd_name().starts_with("lgpu-chunk:")) bytes[file->inode()] = file->size();
  }
  sum = {};
  for (const auto& [inode, size] : bytes) sum += Bytes(size);
  return sum;
}

}  // namespace

void TellFailure(const Scheduler& scheduler, std::uint64_t seed, const std::string& what) {
  std::fflush(stdout);
  std::fprintf(stderr,
               "lgpu_simulation: seed %llu fails at step %llu, after %.6f s of the machine's time: %s\n%s",
               static_cast<unsigned long long>(seed), static_cast<unsigned long long>(scheduler.steps()),
               std::chrono::duration<double>(scheduler.now()).count(), what.c_str(),
               scheduler.DescribeThreads().c_str());
  std::fflush(stderr);
}

Scenario::Scenario(const Options& options, Scheduler& scheduler)
    : options_(options), scheduler_(scheduler), random_(options.seed * 2 + 1) {
  card_ = kUnit * (16 + Below(49));
  config_.runtime_dir = options_.folder + "/run";
  config_.state_dir = options_.folder + "/state";
  config_.lock_dir = options_.folder + "/locks";
  config_.socket_group.clear();
  config_.simulated = {{.memory = card_, .uuid = "GPU-simulation"}};
  constexpr seconds kGiveWayWaits[] = {seconds(2), seconds(5), seconds(20)};
  gives_way_ = OneIn(3);
  // By the number of the seed: all others are what they were before there were turns.
  if (options.pace == Options::Pace::kOfTheSeed && options.seed % 4 == 3) {
    gives_way_ = false;
    turns_ = options.seed % 8 == 3 ? Turns::kAlone : Turns::kAmongOthers;
  }
  has_bad_disk_ = options.pace == Options::Pace::kOfTheSeed && options.seed % 4 == 1;
  config_.give_way_wait = kGiveWayWaits[Below(std::size(kGiveWayWaits))];
  config_.max_drain = milliseconds(100 + Below(2000));
}

void Scenario::Fail(const std::string& what) {
  scheduler_.on_end(what);
  std::abort();
}

Time Scenario::MostTime(Time took, const GrowRequest& request) const {
  // Leases give way for it so long.
  const bool waits_longer = gives_way_ && request.timeout.count() != 0 && !request.ahead;
  const Time timeout =
      waits_longer ? std::max<Time>(request.timeout, config_.give_way_wait) : Time(request.timeout);
  if (scheduler_.stalls() || !Serves() || disturbed_at_ == Time::max()) return timeout + seconds(8);
  // Programs are asked for idle memory for a second.
  const Time asked_at = scheduler_.now() - took;
  // A thread may stand still before its request begins.
  const Time stood = std::max(stood_at_ - asked_at, Time(0));
  return std::max(timeout + stood, disturbed_at_ - asked_at) + milliseconds(1500);
}

void Scenario::Pass(Time time) {
  const Time until = scheduler_.now() + time;
  while (scheduler_.now() < until) {
    Sleep(std::min<Time>(until - scheduler_.now(), kRestart));
    // As the service manager does. In a storm it comes late.
    if (time > kRestart) AwaitDaemon();
  }
}

void Scenario::Sleep(std::chrono::nanoseconds time) { std::this_thread::sleep_for(time); }

void Scenario::Run() {
  CheckBounds();
  StartDaemon(/*waits=*/true);
  if (turns_ != Turns::kAlone) MakeLeases();
  if (turns_ != Turns::kNone) MakeTurnLeases();
  using Pace = Options::Pace;
  const std::uint64_t programs = turns_ == Turns::kAlone                          ? 0
                                 : turns_ == Turns::kAmongOthers                  ? 1 + Below(3)
                                 : has_bad_disk_                                  ? 16
                                 : options_.pace == Pace::kOfTheSeed && !OneIn(8) ? 2 + Below(7)
                                                                                  : 20;
  for (std::uint64_t i = 0; i < programs; ++i) SpawnClient();
  SpawnHooks();
  SpawnTurners();
  // Days have as many strikes as come in them.
  const bool has_length = options_.length.count() != 0;
  const Time end = has_length ? scheduler_.now() + options_.length : Time::max();
  const std::uint64_t strikes = std::min(options_.most_strikes, has_length ? kNever : 5 + Below(60));
  // From a storm, in which lgpud hardly comes to serve, to a quiet day.
  constexpr std::uint64_t kMostPauses[] = {20'000, 100'000, 300'000, 1'000'000};
  // Leases give way when they have been idle for a while.
  const std::uint64_t pause = options_.pace == Pace::kQuiet ? 60'000'000
                              : turns_ != Turns::kNone      ? 10'000'000
                              : has_bad_disk_               ? 20'000
                              : gives_way_                  ? kMostPauses[2 + Below(2)]
                                                            : kMostPauses[Below(std::size(kMostPauses))];
  daemon_strikes_ = has_bad_disk_ ? 9 : 1 + Below(7);
  const std::uint64_t steps = has_length ? kNever : kMostSteps;
  while (scheduler_.now() < end && counts_.strikes < strikes && scheduler_.steps() < steps) {
    Pass(std::chrono::microseconds(Below(pause)));
    ++counts_.strikes;
    Strike();
    if (OneIn(6)) Settle();
    DropDead();
    while (clients_.size() < programs) SpawnClient();
    SpawnHooks();
    SpawnTurners();
  }
  End();
}

void Scenario::StartDaemon(bool waits) {
  StopWatchingMutex();
  if (daemon_ != nullptr) past_daemons_.push_back(std::move(daemon_));
  daemon_ = std::make_unique<DaemonProgram>(config_, [this] {
    const Broker& broker = *ServingBroker();
    WatchMutex([&broker] { (void)broker.CheckInvariants(); }, [this] { Check(); });
  });
  had_faults_ = false;
  disturbed_at_ = Time::max();
  ahead_since_.reset();
  leaving_since_.reset();
  trims_ignored_ = 0;
  daemon_process_ = &Processes::Get().Start("lgpud", 0, [program = daemon_.get()] { program->Run(); });
  // Wake-ups that come between a look and its clearing are lost.
  daemon_process_->on_clear = [this] {
    if (OneIn(12)) StandBriefly();
  };
  // What programs are in the middle of may end when the next lgpud serves.
  daemon_process_->on_end = [this] {
    disturbed_at_ = Time::max();
    ++counts_.daemon_deaths;
    if (!OneIn(3)) StandStill([](const MachineProcess& process) { return process.name == "program"; });
  };
  if (waits) AwaitDaemon();
}

void Scenario::AwaitDaemon() {
  const Time deadline = scheduler_.now() + seconds(30);
  while (!Serves()) {
    if (!daemon_process_->is_alive) {
      if (!daemon_->status().ok() && !had_faults_) {
        Fail(absl::StrCat("lgpud does not start: ", daemon_->status().ToString()));
      }
      StartDaemon(/*waits=*/false);
    }
    if (scheduler_.now() > deadline) Fail("lgpud does not serve 30 s after its start");
    Sleep(milliseconds(5));
  }
  if (disturbed_at_ == Time::max()) disturbed_at_ = scheduler_.now();
  LetStandingGoOn();
}

// Every change of the ledger ends with its mutex being given up.
void Scenario::Check() {
  const Broker* const broker = ServingBroker();
  if (broker == nullptr) return;
  ++counts_.checks;
  if (const absl::Status status = broker->CheckInvariants(); !status.ok()) {
    Fail(absl::StrCat("the ledger: ", status.ToString()));
  }
  const Broker::CardInfo card = broker->Cards().front();
  const Bytes truth = ChunksOfMachine() + OfTurnersOnCard();
  if (truth > card.view.held) {
    Fail(absl::StrCat("the machine has chunks of ", truth.count(), " bytes, the ledger ",
                      card.view.held.count()));
  }
  if (truth > card.view.total) Fail(absl::StrCat("chunks of ", truth.count(), " bytes are beyond the card"));
  // The ledger counts what unmodified programs may charge without asking, too.
  if (card.view.held > truth + card.draining && turns_ == Turns::kNone) {
    if (!ahead_since_) ahead_since_ = scheduler_.now();
  } else {
    ahead_since_.reset();
  }
  // Memory of programs that died or gave it back becomes free piece by piece.
  if (card.draining.is_zero() || card.draining < leaving_) leaving_since_.reset();
  leaving_ = card.draining;
  if (!leaving_.is_zero() && !leaving_since_) leaving_since_ = scheduler_.now();
  const std::uint64_t ignored = broker->counters().trims_ignored;
  const bool is_answered = ignored <= std::exchange(trims_ignored_, ignored);
  if (!is_answered && IsCalm(kTrimPatience)) Fail("a program that runs ignored a request for idle memory");
}

bool Scenario::IsCalm(Time time) const {
  return !scheduler_.stalls() && disturbed_at_ != Time::max() && scheduler_.now() > disturbed_at_ + time;
}

void Scenario::CheckBounds() {
  if (ahead_since_ && scheduler_.now() > *ahead_since_ + kMakePatience && IsCalm(kMakePatience)) {
    Fail(absl::StrCat("the ledger counts memory that is not there, for ",
                      (scheduler_.now() - *ahead_since_) / milliseconds(1), " ms"));
  }
  if (leaving_since_ && scheduler_.now() > *leaving_since_ + kMakePatience && IsCalm(kMakePatience)) {
    Fail(absl::StrCat(leaving_.count(), " bytes are on their way back for ",
                      (scheduler_.now() - *leaving_since_) / milliseconds(1), " ms"));
  }
  CheckTurns();
  scheduler_.At(scheduler_.now() + milliseconds(200), [this] { CheckBounds(); });
}

void Scenario::CheckTurns() {
  if (turns_ != Turns::kAlone) return;
  const seconds bound = kTurn * static_cast<std::int64_t>(turners_.size() + 1);
  for (const Turner& turner : turners_) {
    const auto since = turner.program->waits_since();
    if (!turner.process->is_alive || !since || !IsCalm(bound)) continue;
    const Time waited = scheduler_.now() - Time(since->time_since_epoch());
    if (waited > bound) {
      Fail(absl::StrCat("the program of ", turner.program->lease(), " waits for its turn for ",
                        waited / seconds(1), " s"));
    }
  }
}

void Scenario::Resize() {
  v1::ResizeLeaseRequest request;
  const LeaseOfUser lease = leases_[Below(leases_.size())];
  request.set_lease(lease.name);
  v1::ResizeLeaseRequest::Device& device = *request.add_devices();
  device.set_memory_limit_bytes((kUnit * (1 + Below(card_ / kUnit))).count());
  const absl::Status resized = CallControl(
      [&](daemon::LeaseTable& table) { return table.Resize(Root(), request, InTwoSeconds()).status(); });
  if (!resized.ok() && !absl::IsUnavailable(resized) && !absl::IsResourceExhausted(resized) &&
      !absl::IsInvalidArgument(resized) && !(lease.has_turns && absl::IsFailedPrecondition(resized))) {
    Fail(absl::StrCat("a lease cannot be resized: ", resized.ToString()));
  }
}

void Scenario::Settle() {
  is_resting_ = true;
  daemon_process_->dies_at_step = kNever;
  for (const Client& client : clients_) {
    client.process->dies_at_step = kNever;
    client.process->acts_at_step = kNever;
  }
  AwaitDaemon();
  for (const Client& client : clients_) client.program->Pause(true);
  AwaitRest();
  for (const Client& client : clients_) client.program->Pause(false);
  is_resting_ = false;
}

void Scenario::AwaitRest() {
  const auto is_at_rest = [](const Client& client) {
    return !client.process->is_alive || client.program->is_at_rest();
  };
  Time deadline = scheduler_.now() + seconds(60);
  bool is_at_rest_now = false;
  std::string difference = "programs are at work still";
  while (!difference.empty()) {
    if (scheduler_.now() > deadline) Fail(absl::StrCat("programs rest for long, and ", difference));
    Sleep(milliseconds(200));
    if (!std::all_of(clients_.begin(), clients_.end(), is_at_rest)) continue;
    // A program that lost its session has a second of grace.
    if (!std::exchange(is_at_rest_now, true)) {
      deadline = std::max(scheduler_.now(), disturbed_at_) + (scheduler_.stalls() ? seconds(20) : seconds(4));
    }
    difference = Difference();
  }
}

std::string Scenario::Difference() {
  const Broker* const broker = ServingBroker();
  if (broker == nullptr) return "lgpud is gone";
  for (const auto& entry : leases_) {
    const std::string& name = entry.name;
    if (entry.has_turns) continue;
    v1::Lease lease;
    const absl::Status got = CallControl([&](daemon::LeaseTable& table) -> absl::Status {
      LGPU_ASSIGN_OR_RETURN(lease, table.Get(Root(), name));
      return absl::OkStatus();
    });
    if (!got.ok()) return absl::StrCat("lease ", name, ": ", got.ToString());
    const std::optional<Broker::DeviceInfo> device = broker->Find(LogicalId{lease.devices(0).id()});
    if (!device) return absl::StrCat("lease ", name, " has no device");
    const Bytes held = HeldByPrograms(name);
    // A preallocated device has spare chunks beside those of programs.
    const bool is_preallocated = lease.devices(0).mode() == v1::LogicalDeviceSpec::MODE_PREALLOCATE;
    const bool is_right = is_preallocated ? held <= device->held : held == device->held;
    if (!is_right) {
      return absl::StrCat("programs of ", name, " hold ", held.count(), " bytes, the ledger has ",
                          device->held.count());
    }
  }
  return "";
}

void Scenario::End() {
  scheduler_.Note("the end begins");
  is_resting_ = true;
  for (Client& client : clients_) {
    Processes::Get().Continue(*client.process);
    client.process->acts_at_step = kNever;
    client.program->Finish();
  }
  for (const Hook& hook : hooks_) hook.program->Finish();
  for (const Turner& turner : turners_) turner.program->Finish();
  daemon_process_->dies_at_step = kNever;
  AwaitDaemon();
  const Time deadline = scheduler_.now() + kEndPatience;
  for (DropDead(); !clients_.empty() || !hooks_.empty() || !turners_.empty(); DropDead()) {
    if (scheduler_.now() > deadline) {
      Fail(absl::StrCat(clients_.size(), " programs, ", hooks_.size(), " with hooks and ", turners_.size(),
                        " with turns do not end", DescribeTurners()));
    }
    Sleep(milliseconds(50));
  }
  AwaitRest();  // the leases are there still, and have nothing
  RemoveLeases();
  AwaitMemoryBack();
  GrantWholeCard();
  AwaitMemoryBack();
}

// Each lease of a program with turns, as lgpud has it.
std::string Scenario::DescribeTurners() const {
  std::string text;
  for (const Turner& turner : turners_) {
    v1::Lease lease;
    const absl::Status got = CallControl([&](daemon::LeaseTable& table) -> absl::Status {
      LGPU_ASSIGN_OR_RETURN(lease, table.Get(Root(), turner.program->lease()));
      return absl::OkStatus();
    });
    absl::StrAppend(&text, "\n  ", got.ok() ? lease.ShortDebugString() : got.ToString());
  }
  return text;
}

void Scenario::RemoveLeases() {
  for (const LeaseOfUser& lease : leases_) {
    const absl::Status removed = CallControl(
        [&](daemon::LeaseTable& table) { return table.Remove(Root(), lease.name, InTwoSeconds()); });
    if (!removed.ok()) Fail(absl::StrCat("a lease cannot be removed: ", removed.ToString()));
  }
  leases_.clear();
}

void Scenario::AwaitMemoryBack() {
  const Time deadline = scheduler_.now() + kEndPatience;
  while (true) {
    const Broker* const broker = ServingBroker();
    if (broker == nullptr) Fail("lgpud is gone");
    const Broker::CardInfo card = broker->Cards().front();
    const Bytes truth = ChunksOfMachine();
    if (card.view.held.is_zero() && card.view.promised.is_zero() && truth.is_zero()) return;
    if (scheduler_.now() > deadline) {
      Fail(absl::StrCat("all programs have ended, and ", card.view.held.count(), " bytes are held, ",
                        card.view.promised.count(), " promised; the machine has ", truth.count()));
    }
    Sleep(milliseconds(50));
  }
}

// A lease with a guarantee of all of it proves that the card is free.
void Scenario::GrantWholeCard() {
  v1::CreateLeaseRequest request;
  request.set_name("all");
  request.set_lasting(true);
  v1::LogicalDeviceSpec& device = *request.add_devices();
  device.set_memory_limit_bytes(card_.count());
  device.set_mode(v1::LogicalDeviceSpec::MODE_PREALLOCATE);
  const absl::Status made = CallControl(
      [&](daemon::LeaseTable& table) { return table.Create(Root(), request, InTwoSeconds()).status(); });
  if (!made.ok()) Fail(absl::StrCat("the card is not free at the end: ", made.ToString()));
  leases_ = {{.name = "all"}};
  RemoveLeases();
}

}  // namespace lgpu::simulation
