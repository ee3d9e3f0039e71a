#ifndef LGPU_BENCH_NULL_DAEMON_H_
#define LGPU_BENCH_NULL_DAEMON_H_

#include "absl/status/status.h"
#include "base/unique_fd.h"

namespace lgpu::bench {

/// Serves one session with lgpud's own parts (session server, broker, lease table, reclaimer) over a null
/// backend, until `control` ends. For every byte on `control` it makes the session a growing lease of 64 GiB
/// and answers with the id of its logical device (8 bytes). It lacks three parts of lgpud: the gRPC service,
/// the accept loops, and the thread that reads rings every 50 ms.
absl::Status ServeOverNullBackend(UniqueFd session, UniqueFd control);

}  // namespace lgpu::bench

#endif  // LGPU_BENCH_NULL_DAEMON_H_
