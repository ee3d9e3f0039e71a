#ifndef LGPU_BASE_EXIT_CODES_H_
#define LGPU_BASE_EXIT_CODES_H_

#include "absl/status/status.h"

namespace lgpu {

/// The exit codes of lgpu and lgpud: NVML's numbers where the meaning is the same, else sysexits'. The
/// numbers are part of the command line's contract; append only.
enum ExitCode : int {
  kExitOk = 0,
  kExitFailure = 1,
  kExitUsage = 2,         // wrong flag, size or device name
  kExitNotSupported = 3,  // not on this device or build
  kExitNotPermitted = 4,
  kExitNotFound = 6,
  kExitNoGpu = 9,         // no usable GPU backend
  kExitUnavailable = 69,  // daemon not reachable
  kExitExists = 73,       // there is one of that name already
  kExitNoMemory = 75,     // not enough memory now; the same request may work later
  kExitConfig = 78,       // configuration wrong
  kExitRunFailed = 125,   // `lgpu run`: lgpu itself failed
  kExitNotExecutable = 126,
  kExitCommandNotFound = 127,
};

/// The exit code of a command that ended with `status`.
constexpr ExitCode ExitCodeOf(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kOk:
      return kExitOk;
    case absl::StatusCode::kInvalidArgument:
      return kExitUsage;
    case absl::StatusCode::kUnimplemented:
      return kExitNotSupported;
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated:
      return kExitNotPermitted;
    case absl::StatusCode::kAlreadyExists:
      return kExitExists;
    case absl::StatusCode::kNotFound:
      return kExitNotFound;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:  // it is there and does not answer
      return kExitUnavailable;
    case absl::StatusCode::kResourceExhausted:
      return kExitNoMemory;
    default:
      return kExitFailure;
  }
}

}  // namespace lgpu

#endif  // LGPU_BASE_EXIT_CODES_H_
