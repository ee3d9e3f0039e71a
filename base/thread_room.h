#ifndef LGPU_BASE_THREAD_ROOM_H_
#define LGPU_BASE_THREAD_ROOM_H_

#include "absl/status/status.h"

namespace lgpu {

/// The threads that gRPC starts for a channel or a server, and some for threads started at the same time.
constexpr int kGrpcThreads = 12;

/// RESOURCE_EXHAUSTED where this process may not start the threads that `library` starts. Ask before the
/// library does: where gRPC 1.51 cannot start a thread of its timers, the end of its last channel waits for
/// that thread for ever; where a gRPC server or OpenBLAS cannot, the process dies. Starts the threads and
/// ends them.
absl::Status CheckThreadRoom(const char* library, int threads);

}  // namespace lgpu

#endif  // LGPU_BASE_THREAD_ROOM_H_
