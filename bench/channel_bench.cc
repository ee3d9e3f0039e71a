// Measures the cost of the session protocol on top of its socket: a Grow answered by a Grant with one
// descriptor, against a bare SEQPACKET ping-pong whose answer passes one descriptor. The other end is a
// process of its own and only answers. `cores` says where the two run: 0 as the scheduler likes, 1 both on
// one core, 2 each on its own.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "bench/bare_message.h"
#include "bench/grant_echo.h"
#include "bench/peer_process.h"
#include "lgpu/bytes.h"
#include "proto/wire/frame_channel.h"

namespace lgpu::bench {
namespace {

constexpr Bytes kChunk = 2_MiB;
constexpr int kRepetitions = 15;
constexpr int kIterations = 400;

double Least(const std::vector<double>& values) { return *std::min_element(values.begin(), values.end()); }

void Settings(benchmark::internal::Benchmark* benchmark) {
  benchmark->UseRealTime()->Iterations(kIterations)->Repetitions(kRepetitions)->ReportAggregatesOnly();
  benchmark->ComputeStatistics("least", &Least)->Unit(benchmark::kMicrosecond);
}

std::unique_ptr<PeerProcess> StartPeer(benchmark::State& state, const char* name) {
  auto peer = PeerProcess::Start(name, static_cast<Cores>(state.range(0)));
  if (!peer.ok()) state.SkipWithError(peer.status().ToString().c_str());
  return peer.ok() ? *std::move(peer) : nullptr;
}

void BM_BarePingPongWithOneFd(benchmark::State& state) {
  const std::unique_ptr<PeerProcess> peer = StartPeer(state, "bare");
  if (peer == nullptr) return;
  const UniqueFd socket = peer->TakeSession();
  UniqueFd first;  // the peer is up when it answers
  bool ok = BareSend(socket.get(), -1) && BareReceive(socket.get(), first);
  for (auto _ : state) {
    UniqueFd fd;
    ok = ok && BareSend(socket.get(), -1) && BareReceive(socket.get(), fd) && fd;
  }
  if (!ok) state.SkipWithError("the other end is gone");
}
BENCHMARK(BM_BarePingPongWithOneFd)->ArgName("cores")->Arg(0)->Arg(1)->Arg(2)->Apply(Settings);

void ServeGrants(UniqueFd socket) {
  wire::FrameChannel channel(std::move(socket));
  EchoGrants(channel, kChunk);
}

// ack: the client also acknowledges each grant, as it does with a daemon, and waits for no answer to that.
void BM_GrowAndGrantWithOneFd(benchmark::State& state) {
  const std::unique_ptr<PeerProcess> peer = StartPeer(state, "grants");
  if (peer == nullptr) return;
  wire::FrameChannel channel(peer->TakeSession());
  wire::ReceivedFrame received;
  std::uint64_t next_id = 0;
  const auto grow = [&] {
    const wire::Frame request{.body = wire::GrowRequest{.request_id = ++next_id,
                                                        .device_id = 7,
                                                        .at_least_bytes = kChunk.count(),
                                                        .wanted_bytes = kChunk.count()}};
    if (!channel.Send(request).ok() || !channel.Receive(received).ok() || received.fds.size() != 1) {
      return false;
    }
    received.fds.clear();
    if (state.range(1) == 0) return true;
    const auto* const grant = received.frame.Get<wire::Grant>();
    return grant != nullptr && channel.Send({.body = wire::Ack{.grant_id = grant->grant_id}}).ok();
  };
  bool ok = grow();
  for (auto _ : state) ok = ok && grow();
  if (!ok) state.SkipWithError("the other end is gone");
}
BENCHMARK(BM_GrowAndGrantWithOneFd)
    ->ArgNames({"cores", "ack"})
    ->ArgsProduct({{0, 1, 2}, {0, 1}})
    ->Apply(Settings);

}  // namespace
}  // namespace lgpu::bench

int main(int argc, char** argv) {
  using lgpu::UniqueFd;
  using lgpu::bench::PeerProcess;
  const std::string_view peer = argc == 2 ? argv[1] : "";
  if (peer == "--peer=bare") {
    lgpu::bench::BareEcho(UniqueFd(PeerProcess::kSessionFd));
    return 0;
  }
  if (peer == "--peer=grants") {
    lgpu::bench::ServeGrants(UniqueFd(PeerProcess::kSessionFd));
    return 0;
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
