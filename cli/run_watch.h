#ifndef LGPU_CLI_RUN_WATCH_H_
#define LGPU_CLI_RUN_WATCH_H_

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <tuple>

#include "absl/status/statusor.h"
#include "base/unique_fd.h"
#include "cli/commands/command.h"
#include "cli/connection.h"
#include "lgpu/v1/control.pb.h"

namespace lgpu::cli {

/// A RunWatch reports, while a command runs on real GPUs, facts that are not in the command's own output:
/// refusals of its lease, and processes of the command that use a GPU without the shim. One thread.
class RunWatch {
 public:
  /// A lease that other programs use too: refusals are told of events behind `after`, and not of living
  /// processes outside the command.
  struct Shared {
    std::uint64_t after = 0;
  };
  /// `pid` is the command's; `shared`: the lease has other programs too. All references outlive it.
  RunWatch(Connection& connection, const v1::Lease& lease, pid_t pid, std::optional<Shared> shared,
           const CommonOptions& options)
      : connection_(&connection),
        lease_(lease),
        pid_(pid),
        is_shared_(shared.has_value()),
        options_(options),
        seen_(shared ? shared->after : 0) {}
  /// The watch of a lease that had programs before, from its last event on.
  static Shared FromNowOn(Connection& connection, const v1::Lease& lease);

  /// Reports news since the last call. A refusal like an earlier one (process, call, reason) is only counted,
  /// and so are refusals after the first few of one look. After a call that the daemon did not answer, the
  /// next looks do nothing, so that a stopped daemon keeps the command's signals waiting only now and then.
  void Look();
  /// The daemon was started again: later looks ask its successor. False if it cannot be reached now; the
  /// caller tries again.
  bool DaemonStartedAgain();
  /// A process of the command used a GPU without having attached.
  bool FoundBypass() const { return !bypassing_.empty(); }

 private:
  // {pid, driver's call, reason}
  using RefusalKey = std::tuple<std::int64_t, std::string, int>;

  /// A process that has ended cannot be told from one of the command.
  bool IsOfAnotherProgram(std::int64_t pid) const;
  void LookForRefusals();
  void LookForBypass();

  Connection* connection_;
  std::optional<Connection> successor_;  // to a daemon that came later
  const v1::Lease& lease_;
  const pid_t pid_;
  const bool is_shared_;
  const CommonOptions& options_;
  int looks_to_skip_ = 0;
  std::uint64_t seen_;         // the sequence of the last event
  std::set<RefusalKey> told_;  // with the whole explanation
  std::set<std::int64_t> bypassing_;
};

/// A WakeUp is a descriptor that can be read when `also` can, and every two seconds.
class WakeUp {
 public:
  static absl::StatusOr<WakeUp> Make(int also);
  int fd() const { return epoll_.get(); }
  /// True once for each time that the two seconds were over.
  bool TakeTick();

 private:
  UniqueFd timer_, epoll_;
};

/// Whether process `pid` is `ancestor` or descends from it, as /proc tells.
bool DescendsFrom(std::int64_t pid, pid_t ancestor);

}  // namespace lgpu::cli

#endif  // LGPU_CLI_RUN_WATCH_H_
