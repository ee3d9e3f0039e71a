#ifndef LGPU_TESTS_SUPPORT_DAEMON_PROCESS_H_
#define LGPU_TESTS_SUPPORT_DAEMON_PROCESS_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tests/support/child_program.h"

namespace lgpu::testing {

/// A DaemonProcess is a real lgpud with simulated GPUs in a directory of its own. It is killed with its
/// owner.
class DaemonProcess {
 public:
  struct Options {
    std::string simulate = "1GiB";  // empty: no --simulate
    std::string dir = {};           // the runtime directory; empty: a new one
    std::string lock_dir = {};      // of the cards; empty: a new one
    std::string state_dir = {};     // of lasting leases; empty: a new one
    std::string lgpud = {};         // another executable than this build's lgpud
    std::string config = {};        // further tables for its configuration file
    ChildProgram::Environment environment = {};
    std::uint64_t open_files = 0;    // not 0: RLIMIT_NOFILE, both of it
    bool open_to_everybody = false;  // other users may connect
  };
  /// Starts lgpud and waits until it says that it is ready; an error with its stderr if it ends instead.
  static absl::StatusOr<std::unique_ptr<DaemonProcess>> Start(const Options& options);
  static absl::StatusOr<std::unique_ptr<DaemonProcess>> Start() { return Start(Options()); }

  /// The runtime directory, for LGPU_ENDPOINT.
  const std::string& dir() const { return dir_; }
  ChildProgram& program() { return *program_; }
  pid_t pid() const { return program_->pid(); }
  /// SIGTERM; the exit code, or nothing if it does not end in time.
  std::optional<int> Stop(std::chrono::milliseconds patience = ChildProgram::kPatience);

  /// Where the executables of this build lie.
  static std::string LgpudPath();
  static std::string LgpuPath();
  /// Where a program of this build lies: `built`, or, in a bundle, its namesake in the folder LGPU_TEST_BIN.
  static std::string ProgramPath(const std::string& built);

 private:
  DaemonProcess() = default;
  std::unique_ptr<TempDir> temp_dir_;
  std::string dir_;
  std::unique_ptr<ChildProgram> program_;
};

}  // namespace lgpu::testing

#endif  // LGPU_TESTS_SUPPORT_DAEMON_PROCESS_H_
