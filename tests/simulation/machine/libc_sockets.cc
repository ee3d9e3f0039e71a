// libc's calls for sockets, in front of the real ones.

#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "tests/simulation/machine/paths.h"
#include "tests/simulation/machine/real_calls.h"
#include "tests/simulation/machine/sockets.h"

using namespace lgpu::simulation;  // NOLINT: definitions in the global namespace

namespace {

int Fail(int error) {
  errno = error;
  return -1;
}

// Null and errno.
std::shared_ptr<UnixSocket> FindSocket(int fd) {
  std::shared_ptr<Descriptor> descriptor = Descriptors::Get().Find(fd);
  if (descriptor == nullptr) return nullptr;
  auto socket = std::dynamic_pointer_cast<UnixSocket>(std::move(descriptor));
  if (socket == nullptr) errno = ENOTSOCK;
  return socket;
}

// Null and errno.
std::shared_ptr<UnixSocket> FindBound(const sockaddr* address) {
  LGPU_REAL(stat);
  struct stat info = {};
  const std::string path = RealPath(reinterpret_cast<const sockaddr_un*>(address)->sun_path);
  if (real(path.c_str(), &info) != 0) return nullptr;
  const auto found = BoundSockets().find({info.st_dev, info.st_ino});
  auto bound = found == BoundSockets().end() ? nullptr : found->second.lock();
  if (bound != nullptr && !bound->is_open()) bound.reset();
  if (bound == nullptr) errno = ECONNREFUSED;
  return bound;
}

// The descriptors that a message brings, as many as the process and the buffer have room for.
void InstallDescriptors(msghdr& message, const std::vector<OpenDescriptor<Descriptor>>& descriptors) {
  std::vector<int> installed;
  const std::size_t room = message.msg_controllen < CMSG_LEN(sizeof(int))
                               ? 0
                               : (message.msg_controllen - CMSG_LEN(0)) / sizeof(int);
  for (const OpenDescriptor<Descriptor>& descriptor : descriptors) {
    const int fd = installed.size() < room ? Descriptors::Get().Add(descriptor.get()) : -1;
    if (fd < 0) {
      message.msg_flags |= MSG_CTRUNC;
      break;
    }
    installed.push_back(fd);
  }
  message.msg_controllen = 0;
  if (installed.empty()) return;
  const std::size_t bytes = installed.size() * sizeof(int);
  auto* const header = static_cast<cmsghdr*>(message.msg_control);
  header->cmsg_len = CMSG_LEN(bytes);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  std::memcpy(CMSG_DATA(header), installed.data(), bytes);
  message.msg_controllen = CMSG_SPACE(bytes);
}

// Waits as a blocking call does.
template <typename Call>
int Retry(Scheduler& scheduler, UnixSocket& socket, bool at_once, std::optional<Time> timeout,
          std::function<bool()> is_ready, Call call) {
  std::optional<Time> deadline;
  if (timeout) deadline = scheduler.now() + *timeout;
  while (true) {
    const int error = call();
    if (error != EAGAIN || at_once || socket.is_nonblocking) return error;
    if (deadline && *deadline <= scheduler.now()) return error;
    scheduler.Block("a socket", nullptr, is_ready, deadline);
  }
}

}  // namespace

LGPU_IN_FRONT int socket(int domain, int type, int protocol) noexcept {
  Scheduler* const scheduler = Scheduler::Here();
  if (scheduler == nullptr || domain != AF_UNIX) {
    LGPU_REAL(socket);
    return real(domain, type, protocol);
  }
  scheduler->Step("socket");
  auto made = std::make_shared<UnixSocket>(type & 0xf);
  made->is_nonblocking = (type & SOCK_NONBLOCK) != 0;
  return Descriptors::Get().Add(std::move(made));
}

LGPU_IN_FRONT int bind(int fd, const sockaddr* address, socklen_t bytes) noexcept {
  Scheduler* const scheduler = Scheduler::Here();
  if (scheduler == nullptr || !Descriptors::IsSimulated(fd)) {
    LGPU_REAL(bind);
    return real(fd, address, bytes);
  }
  scheduler->Step("bind");
  const auto socket = FindSocket(fd);
  if (socket == nullptr) return -1;
  const std::string path = RealPath(reinterpret_cast<const sockaddr_un*>(address)->sun_path);
  struct stat info = {};
  if (::mknod(path.c_str(), S_IFSOCK | 0777, 0) != 0) return Fail(errno == EEXIST ? EADDRINUSE : errno);
  LGPU_REAL_AS(stat, real_stat);
  if (real_stat(path.c_str(), &info) != 0) return -1;
  BoundSockets()[{info.st_dev, info.st_ino}] = socket;
  return 0;
}

LGPU_IN_FRONT int listen(int fd, int backlog) noexcept {
  Scheduler* const scheduler = Scheduler::Here();
  if (scheduler == nullptr || !Descriptors::IsSimulated(fd)) {
    LGPU_REAL(listen);
    return real(fd, backlog);
  }
  scheduler->Step("listen");
  const auto socket = FindSocket(fd);
  if (socket == nullptr) return -1;
  const MachineProcess& process = *Scheduler::Self().process;
  socket->is_listening = true;
  socket->backlog = static_cast<std::size_t>(backlog);
  socket->peer_credentials = {.pid = process.pid, .uid = process.uid, .gid = process.uid};
  return 0;
}

LGPU_IN_FRONT int accept4(int fd, sockaddr* address, socklen_t* bytes, int flags) {
  Scheduler* const scheduler = Scheduler::Here();
  if (scheduler == nullptr || !Descriptors::IsSimulated(fd)) {
    LGPU_REAL(accept4);
    return real(fd, address, bytes, flags);
  }
  scheduler->Step("accept");
  const auto socket = FindSocket(fd);
  if (socket == nullptr) return -1;
  const int error = Retry(
      *scheduler, *socket, false, {}, [&] { return !socket->pending.empty(); },
      [&] { return socket->pending.empty() ? EAGAIN : 0; });
  if (error != 0) return Fail(error);
  const int accepted = Descriptors::Get().Add(socket->pending.front().get());
  if (accepted < 0) return -1;
  socket->pending.front().get()->is_nonblocking = (flags & SOCK_NONBLOCK) != 0;
  socket->pending.pop_front();
  scheduler->DescriptorsChanged();
  return accepted;
}

LGPU_IN_FRONT int connect(int fd, const sockaddr* address, socklen_t bytes) {
  Scheduler* const scheduler = Scheduler::Here();
  if (scheduler == nullptr || !Descriptors::IsSimulated(fd)) {
    LGPU_REAL(connect);
    return real(fd, address, bytes);
  }
  scheduler->Step("connect");
  const auto socket = FindSocket(fd);
  if (socket == nullptr) return -1;
  const int error = Retry(
      *scheduler, *socket, false, socket->send_timeout,
      [address] {
        const auto bound = FindBound(address);
        return bound == nullptr || bound->pending.size() <= bound->backlog;
      },
      [&] {
        const auto bound = FindBound(address);
        return bound == nullptr ? errno : socket->ConnectTo(*bound);
      });
  scheduler->DescriptorsChanged();
  if (error != 0) return Fail(error);
  if (const auto& then = Scheduler::Self().process->on_connected; then) then();
  return 0;
}

LGPU_IN_FRONT ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  Scheduler* const scheduler = Scheduler::Here();
  if (scheduler == nullptr || !Descriptors::IsSimulated(fd)) {
    LGPU_REAL(sendmsg);
    return real(fd, message, flags);
  }
  std::string data;
  for (std::size_t i = 0; i < message->msg_iovlen; ++i) {
    data.append(static_cast<const char*>(message->msg_iov[i].iov_base), message->msg_iov[i].iov_len);
  }
  const std::size_t bytes = data.size();
  scheduler->Step("send", bytes);
  const auto socket = FindSocket(fd);
  if (socket == nullptr) return -1;
  std::vector<std::shared_ptr<Descriptor>> passed;  // a thread that is killed here keeps none open
  if (message->msg_controllen != 0) {
    const auto* const header = static_cast<const cmsghdr*>(message->msg_control);
    for (std::size_t at = CMSG_LEN(0); at < header->cmsg_len; at += sizeof(int)) {
      int number = -1;
      std::memcpy(&number, reinterpret_cast<const char*>(header) + at, sizeof number);
      passed.push_back(Descriptors::Get().Find(number));
      if (passed.back() == nullptr) return -1;
    }
  }
  const int error = Retry(
      *scheduler, *socket, (flags & MSG_DONTWAIT) != 0, socket->send_timeout,
      [socket] { return socket->HasRoom(); }, [&] { return socket->Send(data, passed); });
  scheduler->DescriptorsChanged();
  // The receiver may run before the sender knows.
  scheduler->Step("sent");
  return error == 0 ? static_cast<ssize_t>(bytes) : Fail(error);
}

LGPU_IN_FRONT ssize_t recvmsg(int fd, msghdr* message, int flags) {
  Scheduler* const scheduler = Scheduler::Here();
  if (scheduler == nullptr || !Descriptors::IsSimulated(fd)) {
    LGPU_REAL(recvmsg);
    return real(fd, message, flags);
  }
  scheduler->Step("receive");
  const auto socket = FindSocket(fd);
  if (socket == nullptr) return -1;
  std::optional<UnixSocket::Message> received;
  const int error = Retry(
      *scheduler, *socket, (flags & MSG_DONTWAIT) != 0, socket->receive_timeout,
      [socket] { return (socket->Ready() & POLLIN) != 0; }, [&] { return socket->Receive(received); });
  scheduler->DescriptorsChanged();
  if (error != 0) return Fail(error);
  message->msg_flags = 0;
  if (!received) {
    message->msg_controllen = 0;
    return 0;
  }
  std::size_t taken = 0;
  for (std::size_t i = 0; i < message->msg_iovlen; ++i) {
    const std::size_t part = std::min(message->msg_iov[i].iov_len, received->data.size() - taken);
    std::memcpy(message->msg_iov[i].iov_base, received->data.data() + taken, part);
    taken += part;
  }
  if (taken < received->data.size()) message->msg_flags |= MSG_TRUNC;
  InstallDescriptors(*message, received->descriptors);
  const MachineProcess& process = *Scheduler::Self().process;
  if (!received->descriptors.empty() && process.on_descriptors) process.on_descriptors();
  return static_cast<ssize_t>(taken);
}

LGPU_IN_FRONT ssize_t recv(int fd, void* buffer, std::size_t bytes, int flags) {
  if (Scheduler::Here() == nullptr || !Descriptors::IsSimulated(fd)) {
    LGPU_REAL(recv);
    return real(fd, buffer, bytes, flags);
  }
  iovec part = {.iov_base = buffer, .iov_len = bytes};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  return recvmsg(fd, &message, flags);
}

LGPU_IN_FRONT int shutdown(int fd, int how) noexcept {
  Scheduler* const scheduler = Scheduler::Here();
  if (scheduler == nullptr || !Descriptors::IsSimulated(fd)) {
    LGPU_REAL(shutdown);
    return real(fd, how);
  }
  const auto socket = FindSocket(fd);
  if (socket == nullptr) return -1;
  socket->Shutdown(how);
  scheduler->DescriptorsChanged();
  scheduler->Step("shutdown");
  return 0;
}

LGPU_IN_FRONT int getsockopt(int fd, int level, int option, void* value, socklen_t* bytes) noexcept {
  if (Scheduler::Here() == nullptr || !Descriptors::IsSimulated(fd)) {
    LGPU_REAL(getsockopt);
    return real(fd, level, option, value, bytes);
  }
  const auto socket = FindSocket(fd);
  if (socket == nullptr) return -1;
  switch (option) {
    case SO_PEERCRED:
      *static_cast<ucred*>(value) = socket->peer_credentials;
      return 0;
    case SO_TYPE:
      *static_cast<int*>(value) = socket->type;
      return 0;
    case SO_ACCEPTCONN:
      *static_cast<int*>(value) = socket->is_listening ? 1 : 0;
      return 0;
    default:
      return Fail(ENOPROTOOPT);
  }
}

LGPU_IN_FRONT int setsockopt(int fd, int level, int option, const void* value, socklen_t bytes) noexcept {
  if (Scheduler::Here() == nullptr || !Descriptors::IsSimulated(fd)) {
    LGPU_REAL(setsockopt);
    return real(fd, level, option, value, bytes);
  }
  const auto socket = FindSocket(fd);
  if (socket == nullptr) return -1;
  if (option != SO_RCVTIMEO && option != SO_SNDTIMEO) return Fail(ENOPROTOOPT);
  const auto& length = *static_cast<const timeval*>(value);
  std::optional<Time> timeout =
      std::chrono::seconds(length.tv_sec) + std::chrono::microseconds(length.tv_usec);
  if (*timeout == Time(0)) timeout.reset();
  (option == SO_RCVTIMEO ? socket->receive_timeout : socket->send_timeout) = timeout;
  return 0;
}
