#ifndef LGPU_BASE_PROCESS_FOLDER_H_
#define LGPU_BASE_PROCESS_FOLDER_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lgpu {

/// The folder of /proc that shows a process's open and mapped files: /proc/PID, or, where its first thread
/// has ended and other threads go on (/proc/PID/fd and maps are empty then), another thread's folder.
/// RESOURCE_EXHAUSTED where this process may not open enough files to look, UNAVAILABLE where each thread
/// that was found ended during the look.
absl::StatusOr<std::string> FolderOfProcess(std::int64_t pid);

absl::Status ThreadsEndTooFast(std::int64_t pid);

/// An error if `error` says that this process is short of a resource. A process that is gone, or that this
/// one may not see, is no error: it has no entries.
absl::Status CheckMeans(int error, const std::string& path);

}  // namespace lgpu

#endif  // LGPU_BASE_PROCESS_FOLDER_H_
