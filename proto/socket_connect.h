#ifndef LGPU_PROTO_SOCKET_CONNECT_H_
#define LGPU_PROTO_SOCKET_CONNECT_H_

#include <string>

#include "absl/status/statusor.h"
#include "allocator/unique_fd.h"

namespace lgpu {

/// Connects to the listening AF_UNIX SOCK_SEQPACKET socket `path` of a daemon's runtime directory. While the
/// daemon's queue of new connections is full it waits, at most 10 seconds. Errors say what is wrong with
/// the directory and what to try: UNAVAILABLE, PERMISSION_DENIED, INVALID_ARGUMENT (the path is too long for
/// a socket), RESOURCE_EXHAUSTED (no descriptors left).
absl::StatusOr<UniqueFd> ConnectSeqpacket(const std::string& path);

}  // namespace lgpu

#endif  // LGPU_PROTO_SOCKET_CONNECT_H_
