// What growing costs.
//
// Protocol: a Grow through the client's session code, answered with one descriptor by an echo peer in a
// process of its own (no ledger, no memory to make: a null backend), against a bare SEQPACKET ping-pong whose
// answer passes one descriptor. Memory: a Grow and Map of one real chunk from an lgpud against create and
// map of the same chunk without any daemon.

#include <benchmark/benchmark.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>

#include "allocator/device/simulated_backend.h"
#include "client/daemon_connection.h"
#include "client/lease.h"
#include "proto/session_channel.h"
#include "proto/session_pages.h"
#include "tests/support/daemon_process.h"

namespace lgpu {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kRepetitions = 9;
constexpr Bytes kChunk = 2_MiB;

/// A forked process that runs `serve(socket)` until its socket ends.
class PeerProcess {
 public:
  explicit PeerProcess(void (*serve)(UniqueFd)) {
    std::array<int, 2> ends;
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0) return;
    socket_ = UniqueFd(ends[0]);
    UniqueFd other(ends[1]);
    pid_ = ::fork();
    if (pid_ == 0) {
      socket_.Reset();
      serve(std::move(other));
      ::_exit(0);
    }
  }
  ~PeerProcess() {
    socket_.Reset();
    if (pid_ > 0) ::waitpid(pid_, nullptr, 0);
  }
  PeerProcess(const PeerProcess&) = delete;
  PeerProcess& operator=(const PeerProcess&) = delete;
  UniqueFd TakeSocket() { return std::move(socket_); }

 private:
  UniqueFd socket_;
  pid_t pid_ = -1;
};

bool BareSend(int socket, int fd) {
  std::array<std::uint64_t, 4> bytes = {};
  iovec part = {.iov_base = bytes.data(), .iov_len = sizeof(bytes)};
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
  return ::sendmsg(socket, &message, MSG_NOSIGNAL) > 0;
}

bool BareReceive(int socket, UniqueFd& fd) {
  std::array<std::uint64_t, 4> bytes;
  iovec part = {.iov_base = bytes.data(), .iov_len = sizeof(bytes)};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control;
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  if (::recvmsg(socket, &message, MSG_CMSG_CLOEXEC) <= 0) return false;
  if (const cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr) {
    int number;
    std::memcpy(&number, CMSG_DATA(header), sizeof(number));
    fd.Reset(number);
  }
  return true;
}

void BareEcho(UniqueFd socket) {
  const UniqueFd memory(::memfd_create("bench", MFD_CLOEXEC));
  UniqueFd none;
  while (BareReceive(socket.get(), none) && BareSend(socket.get(), memory.get())) {
  }
}

void BM_BarePingPongWithOneFd(benchmark::State& state) {
  PeerProcess peer(&BareEcho);
  const UniqueFd socket = peer.TakeSocket();
  for (auto _ : state) {
    UniqueFd fd;
    if (!BareSend(socket.get(), -1) || !BareReceive(socket.get(), fd) || !fd) {
      state.SkipWithError("the other end is gone");
      break;
    }
  }
}
BENCHMARK(BM_BarePingPongWithOneFd)->UseRealTime()->Repetitions(kRepetitions)->ReportAggregatesOnly();

/// Greets, and answers every Grow with one chunk.
void GrantEcho(UniqueFd socket) {
  const UniqueFd memory(::memfd_create("bench", MFD_CLOEXEC));
  SessionChannel channel(std::move(socket));
  ReceivedFrame received;
  if (!channel.ReceiveInto(received).ok()) return;
  absl::StatusOr<SharedPage<StatsPage>> stats = SharedPages::CreateStatsPage();
  auto page = SharedPages::CreateClientPage();
  if (!stats.ok() || !page.ok()) return;
  v1::Frame answer;
  answer.mutable_welcome()->set_protocol_version(SessionChannel::kProtocolVersion);
  answer.mutable_welcome()->set_session_token("0123456789abcdef0123456789abcdef");
  if (!channel.Send(answer, std::array<int, 2>{stats->fd(), page->fd()}).ok()) return;
  std::uint64_t next_id = 0;
  while (channel.ReceiveInto(received).ok()) {
    if (!received.frame.has_grow()) continue;
    v1::Grant& grant = *answer.mutable_grant();
    grant.set_request_id(received.frame.grow().request_id());
    grant.set_device_id(received.frame.grow().device_id());
    grant.set_grant_id(++next_id);
    grant.clear_chunks();
    v1::Chunk& chunk = *grant.add_chunks();
    chunk.set_id(next_id);
    chunk.set_bytes(kChunk.count());
    if (!channel.Send(answer, std::array<int, 1>{memory.get()}).ok()) return;
  }
}

void BM_GrowFromEchoPeer(benchmark::State& state) {
  PeerProcess peer(&GrantEcho);
  auto connection = DaemonConnection::Open(SessionChannel(peer.TakeSocket()), {.directory = "(echo peer)"});
  if (!connection.ok()) {
    state.SkipWithError("no session");
    return;
  }
  for (auto _ : state) {
    auto call = (*connection)->Grow(1, {.at_least = kChunk, .wanted = kChunk});
    if (!call.ok() || !call->Next().ok()) {
      state.SkipWithError("the other end is gone");
      break;
    }
  }
}
BENCHMARK(BM_GrowFromEchoPeer)->UseRealTime()->Repetitions(kRepetitions)->ReportAggregatesOnly();

void SetTime(benchmark::State& state, Clock::time_point start) {
  state.SetIterationTime(std::chrono::duration<double>(Clock::now() - start).count());
}

void BM_CreateAndMapAlone(benchmark::State& state) {
  const std::unique_ptr<DeviceBackend> backend =
      MakeSimulatedBackend({.devices = {SimulatedDevice(0, 1_GiB, "bench")}});
  std::byte* const base = *backend->Reserve(0, 1_GiB);
  for (auto _ : state) {
    const auto start = Clock::now();
    const absl::StatusOr<MemoryHandle> memory = backend->Create(0, kChunk);
    if (!memory.ok() || !backend->Map(base, *memory).ok() || !backend->SetAccess(base, kChunk).ok()) {
      state.SkipWithError("no memory");
      break;
    }
    SetTime(state, start);
    (void)backend->Unmap(base);
    (void)backend->Reclaim(*memory);
  }
  (void)backend->Unreserve(base, 1_GiB);
}
BENCHMARK(BM_CreateAndMapAlone)->UseManualTime()->Repetitions(kRepetitions)->ReportAggregatesOnly();

void BM_GrowAndMapFromDaemon(benchmark::State& state) {
  auto daemon = testing::DaemonProcess::Start();
  if (!daemon.ok()) {
    state.SkipWithError("lgpud does not start");
    return;
  }
  ContextOptions options;
  options.endpoint = (*daemon)->dir();
  options.logical_devices = {{.memory_limit = 64_MiB}};
  auto lease = OpenLease(options);
  if (!lease.ok()) {
    state.SkipWithError(lease.status().ToString().c_str());
    return;
  }
  std::unique_ptr<RegionSource> source = (*lease)->TakeSource(0);
  for (auto _ : state) {
    const auto start = Clock::now();
    const auto chunks = source->Grow({.at_least = kChunk, .wanted = kChunk});
    if (!chunks.ok()) {
      state.SkipWithError(chunks.status().ToString().c_str());
      break;
    }
    const std::array<ChunkPlacement, 1> place = {{{chunks->front().id, Bytes()}}};
    const bool mapped = source->Map(place).ok();
    SetTime(state, start);
    const std::array<ChunkId, 1> id = {chunks->front().id};
    if (!mapped || !source->Unmap(id).ok() || !source->Return(id).ok()) {
      state.SkipWithError("the chunk cannot be mapped and returned");
      break;
    }
  }
}
BENCHMARK(BM_GrowAndMapFromDaemon)->UseManualTime()->Repetitions(kRepetitions)->ReportAggregatesOnly();

}  // namespace
}  // namespace lgpu

BENCHMARK_MAIN();
