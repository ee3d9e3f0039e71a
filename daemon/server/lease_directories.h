#ifndef LGPU_DAEMON_SERVER_LEASE_DIRECTORIES_H_
#define LGPU_DAEMON_SERVER_LEASE_DIRECTORIES_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "base/thread.h"
#include "base/unique_fd.h"
#include "daemon/leases/lease_table.h"
#include "daemon/server/poll_waker.h"
#include "proto/wire/channel.h"

namespace lgpu::daemon {

/// The LeaseDirectories are folders `leases/ID/run` of the runtime directory, each with two sockets that
/// serve one lease alone: a container mounts its lease's folder in place of the runtime directory. Root and
/// the lease's owner can reach it. One thread accepts for all. A folder stays where it is over restarts,
/// since containers have it mounted; its sockets are new. Thread-safe.
class LeaseDirectories {
 public:
  /// Takes a connection; `peer` has the user id of the lease's owner in place of its own. Called on the
  /// thread, must return soon.
  using Handler = std::function<void(UniqueFd socket, const PeerCredentials& peer, LeaseKey lease)>;
  struct Handlers {
    Handler session;
    Handler control;
  };

  /// RESOURCE_EXHAUSTED without a thread.
  static absl::StatusOr<std::unique_ptr<LeaseDirectories>> Start(const std::string& runtime_directory,
                                                                 Handlers handlers);
  ~LeaseDirectories() { Stop(); }
  LeaseDirectories(const LeaseDirectories&) = delete;
  LeaseDirectories& operator=(const LeaseDirectories&) = delete;

  /// Makes the folder and listens there, or finds that done; its path.
  absl::StatusOr<std::string> Open(const LeaseTable::WithDirectory& lease);
  /// Removes the folders of leases that have ended, those of earlier daemons too, with the sockets in them.
  /// Gives these leases. A folder with other files stays, and the log says so once. The folder of a lease
  /// that waits in the file of lasting leases stays: a later daemon serves it again.
  std::vector<LeaseKey> RemoveEnded(const LeaseTable& leases);
  /// No handler runs after this.
  void Stop();

 private:
  struct Served {
    LeaseKey key;
    std::uint32_t owner = 0;
    std::string path;
    UniqueFd control;
    UniqueFd session;
  };
  LeaseDirectories(std::string parent, Handlers handlers, std::shared_ptr<PollWaker> waker)
      : parent_(std::move(parent)), handlers_(std::move(handlers)), waker_(std::move(waker)) {}
  void Run();
  void Accept(const Served& served, int listening, const Handler& handler);

  const std::string parent_;  // "/run/lgpu/leases"
  const Handlers handlers_;
  const std::shared_ptr<PollWaker> waker_;
  Mutex mutex_;
  /// By id. The thread shares the entries that it polls, so that no descriptor is closed under it.
  std::map<std::string, std::shared_ptr<const Served>> served_ ABSL_GUARDED_BY(mutex_);
  std::set<std::string> left_ ABSL_GUARDED_BY(mutex_);  // folders that cannot be removed and are in the log
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  Thread thread_;
};

}  // namespace lgpu::daemon

#endif  // LGPU_DAEMON_SERVER_LEASE_DIRECTORIES_H_
