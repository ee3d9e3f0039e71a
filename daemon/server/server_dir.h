#ifndef LGPU_DAEMON_SERVER_SERVER_DIR_H_
#define LGPU_DAEMON_SERVER_SERVER_DIR_H_

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/unique_fd.h"
#include "daemon/server/config.h"

namespace lgpu::daemon {

/// A ServerDir is lgpud's runtime directory: its lock, its two listening sockets. While it lives no other
/// daemon can serve from this directory; when it goes, its sockets are unlinked (only if they are still its
/// own) and then the lock is given up. Not thread-safe.
class ServerDir {
 public:
  /// Listening sockets that a service manager made; empty ones are made here.
  struct Inherited {
    UniqueFd control;  // stream
    UniqueFd session;  // seqpacket
  };
  /// Takes the sockets that LISTEN_PID and LISTEN_FDS pass to this process, once, and tells them apart by
  /// their type. INVALID_ARGUMENT for descriptors that are no such sockets.
  static absl::StatusOr<Inherited> TakeInherited();

  /// Makes the directories, locks, binds and listens. FAILED_PRECONDITION: another daemon serves here (with
  /// its pid), or the directory is another user's; INVALID_ARGUMENT: a path is too long for a socket;
  /// PERMISSION_DENIED.
  static absl::StatusOr<ServerDir> Open(const Config& config, Inherited inherited);

  ServerDir(ServerDir&&) noexcept = default;
  ServerDir& operator=(ServerDir&&) = delete;
  ~ServerDir();

  const std::string& path() const { return path_; }
  int control_socket() const { return control_.get(); }
  int session_socket() const { return session_.get(); }

 private:
  struct OwnSocket {
    std::string name;
    dev_t device;
    ino_t inode;
  };

  ServerDir() = default;
  absl::StatusOr<UniqueFd> Bind(const char* name, int type, const Config& config);

  std::string path_;
  UniqueFd directory_;
  UniqueFd lock_;
  UniqueFd control_;
  UniqueFd session_;
  std::vector<OwnSocket> own_sockets_;
};

/// INVALID_ARGUMENT if sockets in this directory would have names too long for the system.
absl::Status CheckSocketPath(const std::string& directory);

}  // namespace lgpu::daemon

#endif  // LGPU_DAEMON_SERVER_SERVER_DIR_H_
