#include "daemon/http/peer_user.h"

#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstring>
#include <functional>
#include <string_view>

#include "base/unique_fd.h"

namespace lgpu::daemon {
namespace {

// Above all uids.
constexpr std::uint64_t kUnknown = std::uint64_t{1} << 32;
constexpr std::uint64_t kRemote = std::uint64_t{1} << 33;

struct Address {
  std::uint8_t family = 0;
  std::uint16_t port = 0;       // in the network's order
  std::uint32_t bytes[4] = {};  // as inet_diag has them
};

std::optional<Address> AddressOf(int socket, int (*which)(int, sockaddr*, socklen_t*)) {
  sockaddr_storage storage = {};
  socklen_t size = sizeof storage;
  if (which(socket, reinterpret_cast<sockaddr*>(&storage), &size) != 0) return std::nullopt;
  Address address{.family = static_cast<std::uint8_t>(storage.ss_family)};
  if (storage.ss_family == AF_INET) {
    const auto& in = reinterpret_cast<const sockaddr_in&>(storage);
    address.port = in.sin_port;
    std::memcpy(address.bytes, &in.sin_addr, sizeof in.sin_addr);
  } else if (storage.ss_family == AF_INET6) {
    const auto& in = reinterpret_cast<const sockaddr_in6&>(storage);
    address.port = in.sin6_port;
    std::memcpy(address.bytes, &in.sin6_addr, sizeof in.sin6_addr);
  } else {
    return std::nullopt;
  }
  return address;
}

// The same address on both ends, or a loopback one: of this machine.
bool IsLocal(const Address& address, const Address& own) {
  if (std::memcmp(address.bytes, own.bytes, sizeof own.bytes) == 0) return true;
  return address.family == AF_INET && reinterpret_cast<const std::uint8_t*>(address.bytes)[0] == 127;
}

}  // namespace

std::optional<std::uint32_t> PeerUid(int socket) {
  const std::optional<Address> own = AddressOf(socket, ::getsockname);
  const std::optional<Address> peer = AddressOf(socket, ::getpeername);
  if (!own || !peer || !IsLocal(*peer, *own)) return std::nullopt;
  const UniqueFd netlink(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_SOCK_DIAG));
  if (!netlink) return std::nullopt;
  struct {
    nlmsghdr header;
    inet_diag_req_v2 request;
  } message = {};
  message.header.nlmsg_len = sizeof message;
  message.header.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  message.header.nlmsg_flags = NLM_F_REQUEST;
  message.request.sdiag_family = peer->family;
  message.request.sdiag_protocol = IPPROTO_TCP;
  message.request.idiag_states = ~0U;
  message.request.id.idiag_sport = peer->port;
  message.request.id.idiag_dport = own->port;
  std::memcpy(message.request.id.idiag_src, peer->bytes, sizeof peer->bytes);
  std::memcpy(message.request.id.idiag_dst, own->bytes, sizeof own->bytes);
  message.request.id.idiag_cookie[0] = INET_DIAG_NOCOOKIE;
  message.request.id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
  if (::send(netlink.get(), &message, sizeof message, 0) != static_cast<ssize_t>(sizeof message)) {
    return std::nullopt;
  }
  // The kernel answers within the call.
  alignas(nlmsghdr) char answer[1024];
  const ssize_t size = ::recv(netlink.get(), answer, sizeof answer, 0);
  auto* const header = reinterpret_cast<nlmsghdr*>(answer);
  if (size < static_cast<ssize_t>(NLMSG_LENGTH(sizeof(inet_diag_msg))) ||
      header->nlmsg_type != SOCK_DIAG_BY_FAMILY) {
    return std::nullopt;
  }
  inet_diag_msg found;
  std::memcpy(&found, reinterpret_cast<const char*>(header) + NLMSG_HDRLEN, sizeof found);
  // A socket that its process has closed has no inode, and the kernel gives uid 0 for it.
  if (found.idiag_inode == 0) return std::nullopt;
  return found.idiag_uid;
}

std::uint64_t PeerUser(int socket) {
  if (const std::optional<std::uint32_t> uid = PeerUid(socket)) return *uid;
  const std::optional<Address> own = AddressOf(socket, ::getsockname);
  const std::optional<Address> peer = AddressOf(socket, ::getpeername);
  if (!own || !peer || IsLocal(*peer, *own)) return kUnknown;
  const std::string_view bytes(reinterpret_cast<const char*>(peer->bytes), sizeof peer->bytes);
  return kRemote | (std::hash<std::string_view>{}(bytes)&0xffffffffU);
}

}  // namespace lgpu::daemon
