#ifndef LGPU_DAEMON_HTTP_PEER_USER_H_
#define LGPU_DAEMON_HTTP_PEER_USER_H_

#include <cstdint>
#include <optional>

namespace lgpu::daemon {

/// A number that stands for the other end of a TCP connection, for UserShares: of this machine the uid that
/// made the socket, as the kernel tells (sock_diag); of another machine its address. Peers of which nothing
/// is known have one number together. Does not wait.
std::uint64_t PeerUser(int socket);

/// The uid of the process at the other end, where that is on this machine and the kernel tells.
std::optional<std::uint32_t> PeerUid(int socket);

}  // namespace lgpu::daemon

#endif  // LGPU_DAEMON_HTTP_PEER_USER_H_
