#include "bench/bare_message.h"

#include <sys/mman.h>
#include <sys/socket.h>

#include <array>
#include <cstdint>
#include <cstring>

namespace lgpu::bench {
namespace {

using Words = std::array<std::uint64_t, 4>;

}  // namespace

bool BareSend(int socket, int fd) {
  Words words = {};
  iovec part = {.iov_base = words.data(), .iov_len = sizeof(words)};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control = {};
  if (fd >= 0) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_len = CMSG_LEN(sizeof(int));
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    std::memcpy(CMSG_DATA(header), &fd, sizeof(fd));
  }
  return ::sendmsg(socket, &message, MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof(words));
}

bool BareReceive(int socket, UniqueFd& fd) {
  Words words;
  iovec part = {.iov_base = words.data(), .iov_len = sizeof(words)};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  if (::recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != static_cast<ssize_t>(sizeof(words))) return false;
  if (const cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr) {
    int number;
    std::memcpy(&number, CMSG_DATA(header), sizeof(number));
    fd.Reset(number);
  }
  return true;
}

void BareEcho(UniqueFd socket) {
  const UniqueFd memory(::memfd_create("lgpu-bench", MFD_CLOEXEC));
  UniqueFd none;
  while (BareReceive(socket.get(), none) && BareSend(socket.get(), memory.get())) {
  }
}

}  // namespace lgpu::bench
