// The leases of a Scenario, and the programs that use them.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/simulation/control_calls.h"
#include "tests/simulation/scenario.h"
#include "tests/simulation/tensor_program.h"
#include "tests/simulation/turn_program.h"

namespace lgpu::simulation {

void Scenario::MakeLeases() {
  // An idle lease gives way to one that waits.
  const bool has_hooks = gives_way_;
  const std::uint64_t users = options_.pace == Options::Pace::kOfTheSeed ? 1 + Below(4) : 4;
  const std::uint64_t count = std::max(users, 1 + Below(4) + (has_hooks ? 1 : 0));
  for (std::uint64_t i = 0; i < count; ++i) {
    const auto user = static_cast<uid_t>(kFirstUser + i % users);
    v1::CreateLeaseRequest request;
    request.set_name(absl::StrCat("lease", i));
    request.set_lasting(true);
    v1::LogicalDeviceSpec& device = *request.add_devices();
    const bool has_hook = has_hooks && (i == 0 || OneIn(3));
    // What a lease without turns takes for good while others are suspended, these do not get back.
    const bool is_preallocated = !has_hook && turns_ == Turns::kNone && OneIn(3);
    // Leases that may have the whole card compete for it.
    const Bytes limit = is_preallocated         ? kUnit * (1 + Below(4))
                        : !has_hook && OneIn(3) ? kUnit * (4 + Below(card_ / kUnit - 4))
                                                : card_;
    device.set_memory_limit_bytes(limit.count());
    device.set_mode(is_preallocated ? v1::LogicalDeviceSpec::MODE_PREALLOCATE
                                    : v1::LogicalDeviceSpec::MODE_GROWTH);
    if (!is_preallocated && turns_ == Turns::kNone && OneIn(2)) {
      device.set_guarantee_bytes((kUnit * (1 + Below(4))).count());
    }
    const absl::Status made = CallControl([&](daemon::LeaseTable& table) {
      return table.Create({.uid = user, .session = nullptr}, request, InTwoSeconds()).status();
    });
    if (!made.ok()) Fail(absl::StrCat("a lease cannot be made: ", made.ToString()));
    leases_.push_back({.name = request.name(), .user = user, .has_hook = has_hook});
  }
}

// Each of them may have most of the card, or all of it.
void Scenario::MakeTurnLeases() {
  const std::uint64_t count = 2 + Below(3);
  for (std::uint64_t i = 0; i < count; ++i) {
    const auto user = static_cast<uid_t>(kFirstUser + Below(3));
    v1::CreateLeaseRequest request;
    request.set_name(absl::StrCat("turns", i));
    request.set_lasting(true);
    const bool is_idle_only = turns_ == Turns::kAmongOthers && OneIn(3);
    request.set_preemptible(is_idle_only ? v1::PREEMPTIBLE_IDLE : v1::PREEMPTIBLE_ALWAYS);
    v1::LogicalDeviceSpec& device = *request.add_devices();
    device.set_memory_limit_bytes(card_.count());
    device.set_mode(v1::LogicalDeviceSpec::MODE_GROWTH);
    const absl::Status made = CallControl([&](daemon::LeaseTable& table) {
      return table.Create({.uid = user, .session = nullptr}, request, InTwoSeconds()).status();
    });
    if (!made.ok()) Fail(absl::StrCat("a preemptible lease cannot be made: ", made.ToString()));
    leases_.push_back({.name = request.name(), .user = user, .has_turns = true});
  }
}

void Scenario::SpawnTurners() {
  for (const LeaseOfUser& lease : leases_) {
    const bool has_one = std::any_of(turners_.begin(), turners_.end(), [&](const Turner& turner) {
      return turner.program->lease() == lease.name;
    });
    if (!lease.has_turns || has_one) continue;
    turners_.push_back(StartTurner(lease));
  }
}

// Threads begin when this one sleeps.
Scenario::Turner Scenario::StartTurner(const LeaseOfUser& lease) {
  const TurnTaker::Options options{.seed = random_(),
                                   .directory = config_.runtime_dir,
                                   .lease = lease.name,
                                   .need = kUnit * (card_ / kUnit / 3 + Below(card_ / kUnit / 2)),
                                   .fails = turns_ == Turns::kAmongOthers,
                                   .fail = [this](const std::string& what) { Fail(what); }};
  if (OneIn(3)) {
    auto* const program = new TensorProgram(options);
    return {.program = program,
            .process = &Processes::Get().Start("tensors", lease.user, [program] { program->Run(); })};
  }
  auto* const program = new TurnProgram(options);
  Turner turner{.program = program,
                .parent = &Processes::Get().Start("parent", lease.user, [program] { program->RunParent(); }),
                .process = &Processes::Get().Start("turner", lease.user, [program] { program->Run(); })};
  turner.process->parent = turner.parent->pid;
  program->SetProcess(*turner.process);
  return turner;
}

Bytes Scenario::OfTurnersOnCard() const {
  Bytes sum;
  for (const Turner& turner : turners_) sum += turner.program->OnCard();
  return sum;
}

void Scenario::SpawnClient() {
  const std::size_t plain = static_cast<std::size_t>(std::count_if(
      leases_.begin(), leases_.end(), [](const LeaseOfUser& lease) { return !lease.has_turns; }));
  const LeaseOfUser& lease = leases_[Below(plain)];  // these come first
  Client& client = clients_.emplace_back();
  client.program = new ClientProgram(ClientProgram::Options{
      .seed = random_(),
      .directory = config_.runtime_dir,
      .lease = lease.name,
      .card = card_,
      .pause_factor = options_.pace == Options::Pace::kQuiet ? 200u : 1u,
      .is_sleepy = lease.has_hook,
      .most_time = [this](Time took, const GrowRequest& request) { return MostTime(took, request); },
      .on_return = [this] { StrikeReturning(); },
      .fail = [this](const std::string& what) { Fail(what); }});
  client.process =
      &Processes::Get().Start("program", lease.user, [program = client.program] { program->Run(); });
  client.process->on_end = [this] {
    if (OneIn(4)) StandStill([this](const MachineProcess& process) { return &process == daemon_process_; });
  };
  client.process->on_connected = [this, process = client.process] { StrikeConnected(*process); };
  client.process->on_descriptors = [this] { StrikeGranted(); };
  ++counts_.clients;
}

void Scenario::SpawnHooks() {
  for (const LeaseOfUser& lease : leases_) {
    const bool has_one = std::any_of(hooks_.begin(), hooks_.end(), [&](const Hook& hook) {
      return hook.process->is_alive && hook.program->lease() == lease.name;
    });
    if (!lease.has_hook || has_one) continue;
    Hook& hook = hooks_.emplace_back();
    hook.program = new HookProgram(HookProgram::Options{
        .seed = random_(),
        .directory = config_.runtime_dir,
        .lease = lease.name,
        .let_go = [this, name = lease.name](std::uint64_t percent) { LetGo(name, percent); },
        .kill_programs = [this, name = lease.name] { KillPrograms(name); },
        .held = [this, name = lease.name] { return HeldByPrograms(name); },
        .fail = [this](const std::string& what) { Fail(what); }});
    hook.process = &Processes::Get().Start("hook", lease.user, [program = hook.program] { program->Run(); });
    hook.process->on_connected = [this, process = hook.process] { StrikeConnected(*process); };
  }
}

void Scenario::LetGo(const std::string& lease, std::uint64_t percent) const {
  for (const Client& client : ProgramsOf(lease)) client.program->LetGo(percent);
}

void Scenario::KillPrograms(const std::string& lease) const {
  for (const Client& client : ProgramsOf(lease)) Processes::Get().Kill(*client.process);
}

std::vector<Scenario::Client> Scenario::ProgramsOf(const std::string& lease) const {
  std::vector<Client> programs;
  for (const Client& client : clients_) {
    if (client.process->is_alive && client.program->lease() == lease) programs.push_back(client);
  }
  return programs;
}

Bytes Scenario::HeldByPrograms(const std::string& lease) const {
  Bytes held;
  for (const Client& client : ProgramsOf(lease)) held += client.program->held();
  return held;
}

void Scenario::DropDead() {
  for (auto client = clients_.begin(); client != clients_.end();) {
    if (client->process->is_alive) {
      ++client;
      continue;
    }
    counts_.grants += client->program->grants();
    counts_.refusals += client->program->refusals();
    counts_.waits += client->program->waits();
    client = clients_.erase(client);
  }
  std::erase_if(turners_, [this](const Turner& turner) {
    if ((turner.parent != nullptr && turner.parent->is_alive) || turner.process->is_alive) return false;
    counts_.suspensions += turner.program->suspensions();
    counts_.refusals += turner.program->refusals();
    return true;
  });
  std::erase_if(hooks_, [this](const Hook& hook) {
    if (hook.process->is_alive) return false;
    counts_.hook_runs += hook.program->runs();
    return true;
  });
}

}  // namespace lgpu::simulation
