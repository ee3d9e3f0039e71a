#ifndef LGPU_TESTS_SIMULATION_DAEMON_PROGRAM_H_
#define LGPU_TESTS_SIMULATION_DAEMON_PROGRAM_H_

#include <string>

#include "absl/status/status.h"
#include "daemon/server/config.h"

namespace lgpu::simulation {

/// lgpud, as a process of the simulated machine.
class DaemonProgram {
 public:
  explicit DaemonProgram(const daemon::Config& config) : config_(config) {}

  /// The body of the process: as daemon/main.cc, until SendStop.
  void Run();
  /// As SIGTERM.
  void SendStop();
  bool serves() const { return serves_ && !stop_; }
  /// Why the start failed.
  const absl::Status& status() const { return status_; }

 private:
  absl::Status Serve();

  const daemon::Config config_;
  bool stop_ = false;
  bool serves_ = false;
  absl::Status status_;
};

}  // namespace lgpu::simulation

#endif  // LGPU_TESTS_SIMULATION_DAEMON_PROGRAM_H_
