#ifndef LGPU_TESTS_SIMULATION_MACHINE_PROCESSES_H_
#define LGPU_TESTS_SIMULATION_MACHINE_PROCESSES_H_

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "tests/simulation/machine/scheduler.h"

namespace lgpu::simulation {

/// How writes of a process to files fail.
struct FileFaults {
  std::uint64_t one_in = 0;  // 0: never
  int error = 0;
};

/// A MachineProcess is a process of the simulated machine: a group of threads of this program with a pid, a
/// user and descriptors of their own. Memory is shared: a process is told from another by these alone.
struct MachineProcess {
  pid_t pid = 0;
  pid_t parent = 1;
  uid_t uid = 0;
  std::string name;
  Time started{0};
  bool is_alive = true;
  bool is_stopped = false;
  std::uint64_t steps = 0;
  std::uint64_t dies_at_step = ~std::uint64_t{0};
  std::uint64_t acts_at_step = ~std::uint64_t{0};
  std::function<void()> action;          // at that step, on the thread whose step it is
  std::function<void()> on_connected;    // on the thread that has connected a socket
  std::function<void()> on_descriptors;  // on the thread that has received some
  std::function<void()> on_clear;        // on the thread that is about to clear an eventfd
  std::function<void()> on_end;          // where it dies, before another thread runs
  std::uint64_t most_descriptors = 1024;
  FileFaults file_faults;
  std::uint64_t number = 0;  // of all processes there ever were
};

/// The processes of the machine.
class Processes {
 public:
  static constexpr pid_t kFirstPid = 1000;

  static Processes& Get();
  /// One without a thread, for the scheduler's first thread.
  MachineProcess& MakeFirst(std::string name);
  /// A process that runs `body` on its first thread; it ends when `body` returns.
  MachineProcess& Start(std::string name, uid_t uid, std::function<void()> body);
  /// Ends the process where it is: closes its descriptors, unmaps its memory. Does not return to a thread of
  /// it.
  void Kill(MachineProcess& process);
  void Stop(MachineProcess& process) { process.is_stopped = true; }
  void Continue(MachineProcess& process);
  /// Null: no process of that pid lives.
  MachineProcess* Find(pid_t pid);
  const std::map<pid_t, MachineProcess*>& live() const { return live_; }
  std::uint64_t deaths() const { return deaths_; }

 private:
  MachineProcess& Add(std::string name, uid_t uid);

  std::map<pid_t, MachineProcess*> live_;
  std::map<std::uint64_t, std::unique_ptr<MachineProcess>> all_;
  pid_t last_pid_ = kFirstPid - 1;
  std::uint64_t deaths_ = 0;
};

}  // namespace lgpu::simulation

#endif  // LGPU_TESTS_SIMULATION_MACHINE_PROCESSES_H_
