#ifndef LGPU_TESTS_SIMULATION_DAEMON_PROGRAM_H_
#define LGPU_TESTS_SIMULATION_DAEMON_PROGRAM_H_

#include <functional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "daemon/server/config.h"

namespace lgpu::simulation {

/// lgpud, as a process of the simulated machine.
class DaemonProgram {
 public:
  /// `on_start` is called on lgpud's first thread, just before lgpud serves.
  DaemonProgram(const daemon::Config& config, std::function<void()> on_start)
      : config_(config), on_start_(std::move(on_start)) {}

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
  const std::function<void()> on_start_;
  bool stop_ = false;
  bool serves_ = false;
  absl::Status status_;
};

}  // namespace lgpu::simulation

#endif  // LGPU_TESTS_SIMULATION_DAEMON_PROGRAM_H_
