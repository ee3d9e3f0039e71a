#ifndef LGPU_DAEMON_SERVER_LOCK_FILE_H_
#define LGPU_DAEMON_SERVER_LOCK_FILE_H_

#include <sys/types.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/unique_fd.h"

namespace lgpu::daemon {

/// Takes an exclusive lock on the file `name` in `directory` for the life of the descriptor. The file is made
/// if needed, with `mode`, never through a symbolic link, and no pipe is waited for. ALREADY_EXISTS, with the
/// line that the owner left in the file as the message, if another process has it. Another error, which names
/// the file's user, if the file cannot be a lock: its mode keeps this process out, or it is a directory, a
/// link or a pipe.
absl::StatusOr<UniqueFd> LockFile(int directory, const std::string& name, mode_t mode);

/// Replaces the line that LockFile shows to the next process that tries.
absl::Status WriteLockFile(int lock, const std::string& text);

}  // namespace lgpu::daemon

#endif  // LGPU_DAEMON_SERVER_LOCK_FILE_H_
