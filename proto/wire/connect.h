#ifndef LGPU_PROTO_WIRE_CONNECT_H_
#define LGPU_PROTO_WIRE_CONNECT_H_

#include <chrono>
#include <string>

#include "base/plain_status.h"
#include "base/unique_fd.h"

namespace lgpu {

/// Connects to the listening AF_UNIX socket `path` of a daemon's runtime directory; `type` is SOCK_SEQPACKET
/// (sessions) or SOCK_STREAM (control). While the daemon's queue of new connections is full it waits, at most
/// `patience` (a microsecond or more). Errors say what is wrong with the directory and what to try:
/// UNAVAILABLE, PERMISSION_DENIED, INVALID_ARGUMENT (the path is too long for a socket), RESOURCE_EXHAUSTED
/// (no descriptors left).
PlainResult<UniqueFd> ConnectUnix(const std::string& path, int type,
                                  std::chrono::milliseconds patience = std::chrono::seconds(10));

}  // namespace lgpu

#endif  // LGPU_PROTO_WIRE_CONNECT_H_
