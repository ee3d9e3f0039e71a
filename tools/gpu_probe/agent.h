#ifndef LGPU_TOOLS_GPU_PROBE_AGENT_H_
#define LGPU_TOOLS_GPU_PROBE_AGENT_H_

#include <sys/types.h>

#include <chrono>
#include <map>
#include <string>

#include "base/spawn.h"
#include "base/unique_fd.h"

namespace lgpu::gpu_probe {

/// An agent's answer: whether the driver took the call, its words as pairs, and a descriptor.
struct Answer {
  bool ok = false;
  std::string error;
  std::map<std::string, double> numbers;
  std::map<std::string, std::string> words;  // words that are not numbers
  UniqueFd fd;
  std::string Word(const std::string& name) const {
    const auto found = words.find(name);
    return found == words.end() ? "" : found->second;
  }
  double operator[](const std::string& name) const {
    const auto found = numbers.find(name);
    return found == numbers.end() ? 0 : found->second;
  }
};

/// An Agent is another process that makes calls of the driver, one command at a time (agent.cc lists them).
/// The agent is killed with its owner.
class Agent {
 public:
  using Environment = SpawnOptions::Environment;
  /// `gpu`: where it is not the first one; a position in the driver's order.
  explicit Agent(const Environment& environment = {});

  pid_t pid() const { return process_.pid(); }
  Answer Ask(const std::string& command, int fd = -1);
  /// Sends without waiting for the answer; Await takes it.
  void Tell(const std::string& command);
  Answer Await();
  /// Whether an answer is there for Await within so many milliseconds.
  bool HasAnswered(int milliseconds);
  void Kill() { process_.Kill(); }
  /// After Kill: how long until its socket was closed, and until the process was gone.
  struct Death {
    double socket_ms = 0, process_ms = 0;
  };
  Death KillAndTime();

 private:
  SpawnedProcess process_;
  UniqueFd socket_, pidfd_;
};

/// The agent's side: obeys the commands that come on `socket` until it is closed.
int RunAgent(int socket);

double MillisecondsSince(std::chrono::steady_clock::time_point start);

}  // namespace lgpu::gpu_probe

#endif  // LGPU_TOOLS_GPU_PROBE_AGENT_H_
