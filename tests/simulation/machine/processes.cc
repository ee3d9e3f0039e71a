#include "tests/simulation/machine/processes.h"

#include <utility>

#include "tests/simulation/machine/descriptors.h"
#include "tests/simulation/machine/mappings.h"

namespace lgpu::simulation {
namespace {

struct Main {
  MachineProcess* process;
  std::function<void()> body;
};

void* RunMain(void* argument) {
  const std::unique_ptr<Main> main(static_cast<Main*>(argument));
  main->body();
  Processes::Get().Kill(*main->process);  // as exit() does
  return nullptr;
}

}  // namespace

Processes& Processes::Get() {
  static Processes* const processes = new Processes();
  return *processes;
}

MachineProcess& Processes::Add(std::string name, uid_t uid) {
  auto process = std::make_unique<MachineProcess>();
  MachineProcess& added = *process;
  added.number = all_.size();
  added.pid = ++last_pid_;
  added.uid = uid;
  added.name = std::move(name);
  if (const Scheduler* const scheduler = Scheduler::Here(); scheduler != nullptr) {
    added.started = scheduler->now();
  }
  live_[added.pid] = &added;
  all_[added.number] = std::move(process);
  return added;
}

MachineProcess& Processes::MakeFirst(std::string name) { return Add(std::move(name), 0); }

MachineProcess& Processes::Start(std::string name, uid_t uid, std::function<void()> body) {
  MachineProcess& process = Add(name, uid);
  auto main = std::make_unique<Main>(Main{.process = &process, .body = std::move(body)});
  pthread_t thread;
  Scheduler::Here()->StartThread(process, "main", &RunMain, main.release(), nullptr, &thread);
  return process;
}

void Processes::Kill(MachineProcess& process) {
  if (!std::exchange(process.is_alive, false)) return;
  Scheduler& scheduler = *Scheduler::Here();
  scheduler.Note(process.name + " " + std::to_string(process.pid) + " ends");
  ++deaths_;
  if (process.on_end) process.on_end();
  live_.erase(process.pid);
  scheduler.KillThreads(process);
  Descriptors::Get().CloseAll(process);
  Mappings::Get().RemoveAll(process);
  scheduler.DescriptorsChanged();
  if (Scheduler::Self().process == &process && Scheduler::Self().state == SimulatedThread::State::kDead &&
      !scheduler.is_in_event()) {
    scheduler.Leave();
  }
}

void Processes::Continue(MachineProcess& process) { process.is_stopped = false; }

MachineProcess* Processes::Find(pid_t pid) {
  const auto found = live_.find(pid);
  return found == live_.end() ? nullptr : found->second;
}

}  // namespace lgpu::simulation
