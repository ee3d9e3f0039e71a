#ifndef LGPU_TESTS_SIMULATION_MACHINE_MACHINE_H_
#define LGPU_TESTS_SIMULATION_MACHINE_MACHINE_H_

#include <functional>
#include <string>

#include "tests/simulation/machine/scheduler.h"

namespace lgpu::simulation {

/// Makes this program the simulated machine, with `body` on its first thread, in a process of its own. Once
/// in a program. The scheduler lives on, as threads of the machine may.
void RunMachine(const Scheduler::Options& options, const std::function<void(Scheduler&)>& body);

/// What a machine that ran in a child of this program has written, and its exit code.
struct MachineRun {
  int exit_code = -1;
  std::string output;
};
/// The exit code is 0 where `body` returns. With `is_traced` the output has the trace.
MachineRun RunMachineInChild(Scheduler::Options options, bool is_traced,
                             const std::function<void(Scheduler&)>& body);

/// Starts this program again where the kernel gives it addresses at random. Gives it the same environment
/// everywhere, and keeps it on one CPU, which makes the change between threads cheap.
void FixSurroundings(char** argv);

}  // namespace lgpu::simulation

#endif  // LGPU_TESTS_SIMULATION_MACHINE_MACHINE_H_
