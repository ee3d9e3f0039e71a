// Measures the cost of growth.
//
// Protocol: DaemonConnection::Grow of one chunk from a process that runs lgpud's own session code over a
// backend whose memory costs nothing, against a bare SEQPACKET ping-pong whose answer passes one descriptor;
// and from an echo peer, which shows the client's half. Memory: Grow and Map of a real chunk from an lgpud
// against create and map of the same chunk without any daemon.
//
// Every repetition is a peer process of its own. `cores` says where the two run: 0 as the scheduler likes, 1
// both on one core, 2 each on its own.

#include <benchmark/benchmark.h>
#include <httplib.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "allocator/device/simulated/simulated_backend.h"
#include "bench/bare_message.h"
#include "bench/grant_echo.h"
#include "bench/null_daemon.h"
#include "bench/peer_process.h"
#include "client/runtime/open_lease.h"
#include "client/session/daemon_connection.h"
#include "lgpu/status.h"
#include "proto/mapped_region.h"
#include "proto/wire/frame_channel.h"
#include "proto/wire/pages.h"
#include "tests/support/daemon_process.h"

namespace lgpu::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kRepetitions = 15;
constexpr int kIterations = 400;
constexpr int kWarmUp = 50;
constexpr Bytes kChunk = 2_MiB;

void SetTime(benchmark::State& state, Clock::time_point start, int calls = 1) {
  state.SetIterationTime(std::chrono::duration<double>(Clock::now() - start).count() / calls);
}

double Least(const std::vector<double>& values) { return *std::min_element(values.begin(), values.end()); }

void OnCores(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgName("cores")->Arg(0)->Arg(1)->Arg(2);
  benchmark->UseManualTime()->Iterations(kIterations)->Repetitions(kRepetitions)->ReportAggregatesOnly();
  benchmark->ComputeStatistics("least", &Least)->Unit(benchmark::kMicrosecond);
}

std::unique_ptr<PeerProcess> StartPeer(benchmark::State& state, const std::string& name) {
  auto peer = PeerProcess::Start(name, static_cast<Cores>(state.range(0)));
  if (!peer.ok()) state.SkipWithError(peer.status().ToString().c_str());
  return peer.ok() ? *std::move(peer) : nullptr;
}

void BM_BarePingPongWithOneFd(benchmark::State& state) {
  const std::unique_ptr<PeerProcess> peer = StartPeer(state, "bare");
  if (peer == nullptr) return;
  const UniqueFd socket = peer->TakeSession();
  const auto ping = [&socket] {
    UniqueFd fd;
    return BareSend(socket.get(), -1) && BareReceive(socket.get(), fd) && fd;
  };
  bool ok = true;
  for (int i = 0; i < kWarmUp; ++i) ok = ok && ping();
  for (auto _ : state) {
    const auto start = Clock::now();
    ok = ok && ping();
    SetTime(state, start);
  }
  if (!ok) state.SkipWithError("the other end is gone");
}
BENCHMARK(BM_BarePingPongWithOneFd)->Apply(OnCores);

/// A session with a peer and the device that it may grow on.
struct Session {
  std::unique_ptr<PeerProcess> peer;
  std::unique_ptr<DaemonConnection> connection;
  std::uint64_t device = 1;

  absl::StatusOr<ChunkId> Grow() const {
    LGPU_ASSIGN_OR_RETURN(auto call, connection->Grow(device, {.at_least = kChunk, .wanted = kChunk}));
    LGPU_ASSIGN_OR_RETURN(const DaemonConnection::GrantPage page, call.Next());
    return page.chunks.front().chunk.id;
  }
  absl::Status Return(std::span<const ChunkId> chunks) const { return connection->Return(device, chunks); }
};

absl::StatusOr<Session> OpenSession(std::unique_ptr<PeerProcess> peer, bool with_lease) {
  Session session{.peer = std::move(peer), .connection = nullptr};
  LGPU_ASSIGN_OR_RETURN(
      session.connection,
      DaemonConnection::Open(session.peer->TakeSession(), {.directory = "(a peer of the benchmark)"}));
  const int control = session.peer->control();
  if (with_lease && (::write(control, "L", 1) != 1 ||
                     ::read(control, &session.device, sizeof(session.device)) != sizeof(session.device))) {
    return absl::UnavailableError("the peer made no lease");
  }
  return session;
}

/// Greets, and answers every Grow with one chunk, as a daemon would, but without its other work.
void GrantEcho(UniqueFd socket) {
  wire::FrameChannel channel(std::move(socket));
  wire::ReceivedFrame received;
  if (!channel.Receive(received).ok()) return;
  absl::StatusOr<SharedPage<StatsPage>> stats = SharedPages::CreateStatsPage(MapWithBoost);
  auto page = SharedPages::CreateClientPage(MapWithBoost);
  if (!stats.ok() || !page.ok()) return;
  const wire::Frame welcome{.body = wire::Welcome{.protocol_version = wire::Protocol::kProtocolVersion,
                                                  .session_token = {"0123456789abcdef0123456789abcdef"},
                                                  .daemon = "the benchmark"}};
  if (!channel.Send(welcome, std::array<int, 2>{stats->fd(), page->fd()}).ok()) return;
  EchoGrants(channel, kChunk);
}

void BM_GrowFromEchoPeer(benchmark::State& state) {
  std::unique_ptr<PeerProcess> peer = StartPeer(state, "echo");
  if (peer == nullptr) return;
  const absl::StatusOr<Session> session = OpenSession(std::move(peer), false);
  absl::Status status = session.status();
  for (int i = 0; i < kWarmUp && status.ok(); ++i) status = session->Grow().status();
  for (auto _ : state) {
    const auto start = Clock::now();
    if (status.ok()) status = session->Grow().status();
    SetTime(state, start);
  }
  if (!status.ok()) state.SkipWithError(status.ToString().c_str());
}
BENCHMARK(BM_GrowFromEchoPeer)->Apply(OnCores);

/// Grows `batch` times, then returns it all. One of the two is measured, for one call.
enum class Measured { kGrow, kReturn };
void GrowAndReturn(benchmark::State& state, Measured measured, int batch) {
  std::unique_ptr<PeerProcess> peer = StartPeer(state, "daemon");
  if (peer == nullptr) return;
  const absl::StatusOr<Session> session = OpenSession(std::move(peer), true);
  absl::Status status = session.status();
  std::vector<ChunkId> chunks;
  const auto grow = [&] {
    for (int i = 0; i < batch && status.ok(); ++i) {
      const absl::StatusOr<ChunkId> chunk = session->Grow();
      status = chunk.status();
      if (chunk.ok()) chunks.push_back(*chunk);
    }
  };
  const auto give_back = [&] {
    if (status.ok()) status = session->Return(chunks);
    chunks.clear();
  };
  for (int i = 0; i < kWarmUp; ++i) {
    grow();
    give_back();
  }
  for (auto _ : state) {
    const auto start = Clock::now();
    grow();
    if (measured == Measured::kGrow) SetTime(state, start, batch);
    const auto grown = Clock::now();
    give_back();
    if (measured == Measured::kReturn) SetTime(state, grown);
  }
  if (status.ok()) status = session->connection->Close();
  if (!status.ok()) state.SkipWithError(status.ToString().c_str());
}

/// The daemon is idle when the request comes, as it is when a program grows now and then.
void BM_Grow(benchmark::State& state) { GrowAndReturn(state, Measured::kGrow, 1); }
BENCHMARK(BM_Grow)->Apply(OnCores);
/// The daemon's work on the Ack of one grant comes before its work on the next request.
void BM_GrowManyInARow(benchmark::State& state) { GrowAndReturn(state, Measured::kGrow, 8); }
BENCHMARK(BM_GrowManyInARow)->Apply(OnCores);
void BM_Return(benchmark::State& state) { GrowAndReturn(state, Measured::kReturn, 1); }
BENCHMARK(BM_Return)->Apply(OnCores);

void WithMemory(benchmark::internal::Benchmark* benchmark) {
  constexpr int kChunks = 200;
  benchmark->UseManualTime()->Iterations(kChunks)->Repetitions(kRepetitions)->ReportAggregatesOnly();
  benchmark->ComputeStatistics("least", &Least)->Unit(benchmark::kMicrosecond);
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
BENCHMARK(BM_CreateAndMapAlone)->Apply(WithMemory);

/// The observers of the daemon during the measurement.
enum class Watched {
  kNot,
  kByScrapes,  // of /metrics
  kByAll       // and by an open page, the live stream, statistics and timelines, and by an `lgpu top`
};

/// Reads /metrics again and again while it lives, far more often than any Prometheus does; and the data of a
/// page, beside an `lgpu top` in a terminal of 200 x 50.
class Scraper {
 public:
  Scraper(testing::DaemonProcess& daemon, Watched watched) {
    const std::string begin = "serves HTTP at ";
    const auto told = [&] { return daemon.program().Errors().find("/metrics\n") != std::string::npos; };
    if (!testing::Eventually(told)) return;
    const std::string log = daemon.program().Errors();
    const std::size_t at = log.find(begin) + begin.size();
    url_ = log.substr(at, log.find("/metrics", at) - at);
    thread_ = std::thread([this] { Ask({"/metrics"}); });
    if (watched != Watched::kByAll) return;
    page_ = std::thread([this] { Ask({"/api/v1/stats", "/api/v1/timeline?gpu=0", "/api/v1/events"}); });
    stream_ = std::thread([this] {
      httplib::Client client(url_);
      client.Get("/api/v1/stream", [this](const char*, std::size_t) { return !stop_; });
    });
    const std::string command = "stty rows 50 cols 200; exec " + testing::DaemonProcess::LgpuPath() + " top";
    auto top = testing::ChildProgram::Start(
        {.argv = {"sh", "-c", "exec script -qfec '" + command + "' /dev/null > /dev/null"},
         .environment = {{"LGPU_ENDPOINT", daemon.dir()}, {"TERM", "xterm"}}});
    if (top.ok()) top_ = *std::move(top);
  }
  ~Scraper() {
    stop_ = true;
    for (std::thread* const thread : {&thread_, &page_, &stream_}) {
      if (thread->joinable()) thread->join();
    }
  }
  Scraper(const Scraper&) = delete;
  Scraper& operator=(const Scraper&) = delete;
  /// Whether the readers read: `lgpu top` would have ended where it has no terminal.
  bool works() { return scrapes_ > 0 && (!stream_.joinable() || (top_ != nullptr && top_->running())); }

 private:
  void Ask(const std::vector<std::string>& paths) {
    httplib::Client client(url_);
    while (!stop_) {
      for (const std::string& path : paths) {
        const auto answer = client.Get(path);
        scrapes_ += answer && answer->status == 200 ? 1 : 0;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
  }

  std::string url_;
  std::atomic<bool> stop_ = false;
  std::atomic<int> scrapes_ = 0;
  std::thread thread_, page_, stream_;
  std::unique_ptr<testing::ChildProgram> top_;
};

void GrowAndMapFromDaemon(benchmark::State& state, Watched watched) {
  const bool http = watched != Watched::kNot;
  auto daemon = testing::DaemonProcess::Start({.config = http ? "[http]\nlisten = \"127.0.0.1:0\"\n" : ""});
  if (!daemon.ok()) {
    state.SkipWithError("lgpud does not start");
    return;
  }
  std::optional<Scraper> scraper;
  if (http) scraper.emplace(**daemon, watched);
  ContextOptions options;
  options.endpoint = (*daemon)->dir();
  options.logical_devices = {{.memory_limit = 64_MiB}};
  auto lease = OpenLease(options, Contents::kBlocksOfCaller);
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
  if (scraper && !scraper->works()) {
    state.SkipWithError("the scraper and the watchers had no answer from the daemon");
  }
}

void BM_GrowAndMapFromDaemon(benchmark::State& state) { GrowAndMapFromDaemon(state, Watched::kNot); }
BENCHMARK(BM_GrowAndMapFromDaemon)->Apply(WithMemory);

void BM_GrowAndMapFromDaemonThatIsScraped(benchmark::State& state) {
  GrowAndMapFromDaemon(state, Watched::kByScrapes);
}
BENCHMARK(BM_GrowAndMapFromDaemonThatIsScraped)->Apply(WithMemory);

void BM_GrowAndMapFromDaemonThatIsWatched(benchmark::State& state) {
  GrowAndMapFromDaemon(state, Watched::kByAll);
}
BENCHMARK(BM_GrowAndMapFromDaemonThatIsWatched)->Apply(WithMemory);

int RunPeer(std::string_view name) {
  UniqueFd session(PeerProcess::kSessionFd);
  UniqueFd control(PeerProcess::kControlFd);
  if (name == "bare") {
    BareEcho(std::move(session));
  } else if (name == "echo") {
    GrantEcho(std::move(session));
  } else if (const absl::Status status = ServeOverNullBackend(std::move(session), std::move(control));
             !status.ok()) {
    std::cerr << "grant_bench: " << status << "\n";
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace lgpu::bench

int main(int argc, char** argv) {
  constexpr std::string_view kPeer = "--peer=";
  if (argc == 2 && std::string_view(argv[1]).starts_with(kPeer)) {
    return lgpu::bench::RunPeer(std::string_view(argv[1]).substr(kPeer.size()));
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
