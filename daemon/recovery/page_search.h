#ifndef LGPU_DAEMON_RECOVERY_PAGE_SEARCH_H_
#define LGPU_DAEMON_RECOVERY_PAGE_SEARCH_H_

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "daemon/sessions/session_state.h"

namespace lgpu::daemon {

/// A PageSearch looks whether processes map the client pages of their sessions. A process has as many
/// mappings as it likes, and a user as many processes, so a search takes a bounded part of its thread's time:
/// one reading of /proc serves all sessions of a process, a look has a budget, and a pause follows it. The
/// users' processes are read in turn: a user with many processes does not delay the search for another
/// user's.
///
/// Not thread-safe.
class PageSearch {
 public:
  struct Options {
    /// A look begins to read no further process after this long; it reads at least one.
    std::chrono::milliseconds budget{20};
    /// So many times as long as a look took, later looks are empty.
    int pause = 9;
  };
  PageSearch() : PageSearch(Options()) {}
  explicit PageSearch(const Options& options) : options_(options) {}

  /// Whether the process of a session maps one of its pages, by session. Sessions that the look did not reach
  /// are left out, and those whose process is gone or may not be looked at. Each has pages and a pidfd.
  std::map<SessionId, bool> Look(const std::vector<std::shared_ptr<SessionState>>& sessions);

 private:
  using Clock = std::chrono::steady_clock;
  using ProcessId = std::pair<std::int64_t, std::uint64_t>;  // pid and start time
  using Group = std::vector<std::shared_ptr<SessionState>>;  // of one process
  struct Reading {
    std::uint32_t uid = 0;
    ProcessId process;
    Group sessions;
  };
  /// The first process of each user, then the second ones and so on; after those of the last look.
  std::vector<Reading> InTurn(const std::vector<std::shared_ptr<SessionState>>& sessions) const;
  /// Adds the answers of one process.
  static void Read(const Reading& reading, std::map<SessionId, bool>& maps);

  const Options options_;
  Clock::time_point next_look_;
  std::uint32_t last_user_ = 0;
  std::map<std::uint32_t, ProcessId> last_processes_;  // by user: read last
};

}  // namespace lgpu::daemon

#endif  // LGPU_DAEMON_RECOVERY_PAGE_SEARCH_H_
