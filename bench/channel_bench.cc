// What the session protocol costs on top of its socket: a Grow answered by a Grant with one descriptor,
// against a bare SEQPACKET ping-pong whose answer passes one descriptor. The other end is a process of its
// own and does nothing but answer.

#include <benchmark/benchmark.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <utility>

#include "proto/session_channel.h"

namespace lgpu {
namespace {

constexpr std::uint64_t kChunkBytes = 2 << 20;

// A forked process that runs `serve(socket)` until its socket ends.
class Server {
 public:
  template <typename Serve>
  explicit Server(Serve serve) {
    std::array<int, 2> ends;
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0) {
      return;
    }
    socket_ = UniqueFd(ends[0]);
    UniqueFd server_end(ends[1]);
    pid_ = ::fork();
    if (pid_ == 0) {
      socket_.Reset();
      serve(std::move(server_end));
      ::_exit(0);
    }
  }
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;
  ~Server() {
    socket_.Reset();
    if (pid_ > 0) {
      ::waitpid(pid_, nullptr, 0);
    }
  }
  UniqueFd TakeSocket() { return std::move(socket_); }

 private:
  UniqueFd socket_;
  pid_t pid_ = -1;
};

struct BareMessage {
  std::array<std::uint64_t, 4> words = {};
};

bool BareSend(int socket, int fd) {
  BareMessage bytes;
  iovec part = {.iov_base = &bytes, .iov_len = sizeof(bytes)};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  if (fd >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_len = CMSG_LEN(sizeof(int));
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    std::memcpy(CMSG_DATA(header), &fd, sizeof(fd));
  }
  return ::sendmsg(socket, &message, MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof(bytes));
}

// The descriptor that came, if any; false at the end of file.
bool BareReceive(int socket, UniqueFd& fd) {
  BareMessage bytes;
  iovec part = {.iov_base = &bytes, .iov_len = sizeof(bytes)};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  if (::recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != static_cast<ssize_t>(sizeof(bytes))) {
    return false;
  }
  if (const cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr) {
    int number;
    std::memcpy(&number, CMSG_DATA(header), sizeof(number));
    fd.Reset(number);
  }
  return true;
}

void BM_BarePingPongWithOneFd(benchmark::State& state) {
  Server server([](UniqueFd socket) {
    const UniqueFd memory(::memfd_create("bench", MFD_CLOEXEC));
    UniqueFd none;
    while (BareReceive(socket.get(), none) && BareSend(socket.get(), memory.get())) {
    }
  });
  const UniqueFd socket = server.TakeSocket();
  for (auto _ : state) {
    UniqueFd fd;
    if (!BareSend(socket.get(), -1) || !BareReceive(socket.get(), fd) || !fd) {
      state.SkipWithError("the other end is gone");
      break;
    }
  }
}
BENCHMARK(BM_BarePingPongWithOneFd)->UseRealTime();

// Answers every Grow with one chunk; what a daemon does on a null backend, without its ledger.
void ServeGrants(UniqueFd socket) {
  const UniqueFd memory(::memfd_create("bench", MFD_CLOEXEC));
  SessionChannel channel(std::move(socket));
  ReceivedFrame received;
  v1::Frame answer;
  std::uint64_t next_id = 0;
  while (channel.ReceiveInto(received).ok()) {
    if (!received.frame.has_grow()) {
      continue;
    }
    v1::Grant& grant = *answer.mutable_grant();
    grant.set_request_id(received.frame.grow().request_id());
    grant.set_device_id(received.frame.grow().device_id());
    grant.set_grant_id(++next_id);
    grant.clear_chunks();
    v1::Chunk& chunk = *grant.add_chunks();
    chunk.set_id(next_id);
    chunk.set_bytes(kChunkBytes);
    if (!channel.Send(answer, std::array<int, 1>{memory.get()}).ok()) {
      return;
    }
  }
}

// Arg 1: the client also acknowledges each grant, as it does with a daemon (nobody waits for that).
void BM_GrowAndGrantWithOneFd(benchmark::State& state) {
  Server server(ServeGrants);
  SessionChannel channel(server.TakeSocket());
  v1::Frame request;
  v1::Frame ack;
  ReceivedFrame received;
  std::uint64_t next_id = 0;
  for (auto _ : state) {
    v1::GrowRequest& grow = *request.mutable_grow();
    grow.set_request_id(++next_id);
    grow.set_device_id(7);
    grow.set_at_least_bytes(kChunkBytes);
    grow.set_wanted_bytes(kChunkBytes);
    if (!channel.Send(request).ok() || !channel.ReceiveInto(received).ok() || received.fds.size() != 1) {
      state.SkipWithError("the other end is gone");
      break;
    }
    received.fds.clear();
    if (state.range(0) != 0) {
      ack.mutable_ack()->set_grant_id(received.frame.grant().grant_id());
      if (!channel.Send(ack).ok()) {
        state.SkipWithError("the other end is gone");
        break;
      }
    }
  }
  channel.Shutdown();
}
BENCHMARK(BM_GrowAndGrantWithOneFd)->ArgName("ack")->Arg(0)->Arg(1)->UseRealTime();

}  // namespace
}  // namespace lgpu

BENCHMARK_MAIN();
