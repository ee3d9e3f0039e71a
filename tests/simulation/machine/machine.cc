#include "tests/simulation/machine/machine.h"

#include <sched.h>
#include <sys/personality.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "tests/simulation/machine/processes.h"

namespace lgpu::simulation {
namespace {

// Programs look for lgpud in each folder of PATH, and what a run does depends on nothing but its seed.
// Sanitizers read their variables in the program that is started in the place of this one.
void FixEnvironment() {
  std::vector<std::string> kept;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    if (std::string_view(*variable).find("SAN_OPTIONS=") != std::string_view::npos) kept.push_back(*variable);
  }
  ::clearenv();
  ::setenv("PATH", "/usr/bin:/bin", 1);
  for (const std::string& variable : kept) {
    const std::size_t end = variable.find('=');
    ::setenv(variable.substr(0, end).c_str(), variable.c_str() + end + 1, 1);
  }
}

}  // namespace

void RunMachine(const Scheduler::Options& options, const std::function<void(Scheduler&)>& body) {
  auto* const scheduler = new Scheduler(options);
  scheduler->Enter(Processes::Get().MakeFirst("machine"));
  body(*scheduler);
  Scheduler::Exit();
}

MachineRun RunMachineInChild(Scheduler::Options options, bool is_traced,
                             const std::function<void(Scheduler&)>& body) {
  std::array<int, 2> ends;
  if (::pipe(ends.data()) != 0) return {};
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(ends[1], STDOUT_FILENO);
    ::dup2(ends[1], STDERR_FILENO);
    if (is_traced) options.trace = stdout;
    RunMachine(options, body);
    std::fflush(stdout);
    ::_exit(EXIT_SUCCESS);
  }
  ::close(ends[1]);
  MachineRun run;
  std::array<char, 4096> part;
  for (ssize_t got = 0; (got = ::read(ends[0], part.data(), part.size())) > 0;) {
    run.output.append(part.data(), static_cast<std::size_t>(got));
  }
  ::close(ends[0]);
  int status = 0;
  if (::waitpid(child, &status, 0) == child && WIFEXITED(status)) run.exit_code = WEXITSTATUS(status);
  return run;
}

void FixSurroundings(char** argv) {
  FixEnvironment();
  // One thread runs at a time: on one CPU the next one starts at once.
  if (const int cpu = ::sched_getcpu(); cpu >= 0) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    ::sched_setaffinity(0, sizeof one, &one);
  }
  const int persona = ::personality(0xffffffff);
  if (persona == -1 || (persona & ADDR_NO_RANDOMIZE) != 0) return;
  if (::personality(static_cast<unsigned long>(persona) | ADDR_NO_RANDOMIZE) == -1) return;
  ::execv("/proc/self/exe", argv);
}

}  // namespace lgpu::simulation
