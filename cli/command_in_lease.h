#ifndef LGPU_CLI_COMMAND_IN_LEASE_H_
#define LGPU_CLI_COMMAND_IN_LEASE_H_

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/spawn.h"
#include "base/unique_fd.h"
#include "cli/child_process.h"
#include "cli/commands/command.h"
#include "cli/connection.h"
#include "cli/driver_shim.h"
#include "lgpu/v1/control.pb.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace lgpu::cli {

/// lgpu's own session while a command runs: attached to the lease, it keeps the lease until the command has
/// ended.
struct OwnSession {
  UniqueFd changed;  // an eventfd that can be read after a change of the session
  std::unique_ptr<DaemonConnection> connection;

  /// Opens it, and makes later calls of `connection` in its name. `verb`: "lgpu run". Errors of OpenSession.
  static absl::StatusOr<OwnSession> Open(Connection& connection, const std::string& verb,
                                         const CommonOptions& options, bool runs_release = false);
};

/// A CommandInLease is what `run` and `exec` share: the flags of the command, the command inside a lease,
/// watched until it ends, and its release hook.
class CommandInLease {
 public:
  enum class Lease { kOwn, kShared };
  explicit CommandInLease(Lease lease) : lease_(lease) {}

  void AddTo(CLI::App& verb);
  /// Whether the command has a release hook.
  bool runs_release() const { return !release_.empty(); }
  /// Errors in the flags, before the daemon is asked.
  absl::Status CheckFlags();
  /// Runs `options.command` inside `lease`, to which `session` is attached. The result is the exit code of
  /// the process.
  absl::StatusOr<int> Run(const ForwardedSignals& signals, Connection& connection, const OwnSession& session,
                          const v1::Lease& lease, const CommonOptions& options) const;

 private:
  using Variables = SpawnOptions::Environment;

  absl::StatusOr<Variables> ParseVariables() const;
  static std::optional<std::string> ValueOf(const std::string& name, const Variables& given);
  std::optional<Isolation> IsolationFor(const LeaseEnvironment& environment, const Variables& variables,
                                        const CommonOptions& options) const;
  void AddVariables(const LeaseEnvironment& environment, Variables& variables) const;
  /// A program that takes memory from a driver is not limited on simulated GPUs.
  static void TellOfSimulated(Connection& connection, const v1::Lease& lease, const CommonOptions& options);
  absl::StatusOr<int> AfterCommand(Connection& connection, const DaemonConnection& session,
                                   const v1::Lease& lease, int code, const CommonOptions& options) const;

  const Lease lease_;
  std::string release_;
  bool require_attach_ = false;
  bool isolate_ = false;
  const CLI::Option* memory_wait_flag_ = nullptr;
  std::string memory_wait_text_ = "2s";
  std::chrono::milliseconds memory_wait_{};
  const CLI::Option* soft_flag_ = nullptr;  // tells whether the flag was given
  bool soft_placement_ = true;
  bool log_placement_ = false;
  std::vector<std::string> variable_texts_;
  Variables variables_;  // of --env
};

}  // namespace lgpu::cli

#endif  // LGPU_CLI_COMMAND_IN_LEASE_H_
