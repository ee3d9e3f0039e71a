// Measures the daemon's page: the map of a logical device with a million blocks, beside one pass over its
// blocks; and the whole answer of a real lgpud, with the time in which its program reports the blocks, beside
// an answer without content.

#include <benchmark/benchmark.h>
#include <httplib.h>

#include <memory>
#include <random>
#include <string>

#include "daemon/http/memory_map.h"
#include "lgpu/memory.h"
#include "proto/messages_json.h"
#include "tests/support/child_program.h"
#include "tests/support/daemon_process.h"

namespace lgpu::daemon {
namespace {

DeviceBlocks MillionBlocks() {
  constexpr std::uint64_t kBlock = 4096;
  constexpr int kBlocks = 1'000'000;
  std::minstd_rand random(20261123);
  DeviceBlocks device;
  device.ops = {"", "MatMul", "AddN", "Cast", "Identity"};
  std::uint64_t offset = 0;
  for (int i = 0; i < kBlocks; ++i) {
    device.blocks.push_back(
        {.offset = offset, .bytes = kBlock, .op = static_cast<std::uint16_t>(random() % device.ops.size())});
    offset += kBlock * (1 + random() % 3);
  }
  constexpr std::uint64_t kChunk = std::uint64_t{2} << 20;
  device.mappings = {{.offset = 0, .bytes = (offset / kChunk + 1) * kChunk}};
  return device;
}

void BM_PassOverBlocks(benchmark::State& state) {
  const DeviceBlocks device = MillionBlocks();
  for (auto _ : state) {
    std::uint64_t used = 0;
    for (const ToldBlock& block : device.blocks) used += block.bytes;
    benchmark::DoNotOptimize(used);
  }
}
BENCHMARK(BM_PassOverBlocks)->Unit(benchmark::kMillisecond);

void BM_Map(benchmark::State& state) {
  const DeviceBlocks device = MillionBlocks();
  std::size_t bytes = 0;
  for (auto _ : state) bytes = JsonLine(MapOf(device, static_cast<std::size_t>(state.range(0)))).size();
  state.counters["bytes"] = static_cast<double>(bytes);
}
BENCHMARK(BM_Map)->ArgName("cells")->Arg(1000)->Arg(8000)->Unit(benchmark::kMillisecond);

/// A real lgpud whose only program, this one, has a logical device with so many blocks.
class Served {
 public:
  static Served& With(std::size_t blocks) {
    static Served served(blocks);
    return served;
  }
  /// Whether the answer to this path is 200.
  bool Ask(const std::string& path) {
    const httplib::Result answer = client_->Get(path);
    return answer && answer->status == 200;
  }

 private:
  explicit Served(std::size_t blocks) {
    auto daemon = testing::DaemonProcess::Start({.config = "[http]\nlisten = \"127.0.0.1:0\"\n"});
    if (!daemon.ok()) return;
    daemon_ = *std::move(daemon);
    const auto told = [&] { return daemon_->program().Errors().find("/metrics\n") != std::string::npos; };
    if (!testing::Eventually(told)) return;
    const std::string log = daemon_->program().Errors();
    const std::string begin = "serves HTTP at ";
    const std::size_t at = log.find(begin) + begin.size();
    client_ = std::make_unique<httplib::Client>(log.substr(at, log.find("/metrics", at) - at));
    client_->set_keep_alive(true);
    auto memory = LogicalMemory::Open(
        {.memory_limit = Bytes(std::uint64_t{960} << 20), .lease_name = "many", .endpoint = daemon_->dir()});
    if (!memory.ok()) return;
    memory_ = std::make_unique<LogicalMemory>(*std::move(memory));
    constexpr const char* kOps[] = {"MatMul", "AddN", "Cast", "Identity"};
    for (std::size_t i = 0; i < blocks; ++i) {
      if (!memory_->Allocate(Bytes(256 + i % 3 * 256), {.tag = kOps[i % 4]}).ok()) return;
    }
  }

  std::unique_ptr<testing::DaemonProcess> daemon_;
  std::unique_ptr<httplib::Client> client_ = std::make_unique<httplib::Client>("http://127.0.0.1:1");
  std::unique_ptr<LogicalMemory> memory_;
};

constexpr std::size_t kServedBlocks = 1'000'000;

void AskAgainAndAgain(benchmark::State& state, const std::string& path) {
  Served& served = Served::With(kServedBlocks);
  for (auto _ : state) {
    if (served.Ask(path)) continue;
    state.SkipWithError("lgpud does not answer");
    break;
  }
}

void BM_AnswerWithoutContent(benchmark::State& state) { AskAgainAndAgain(state, "/healthz"); }
BENCHMARK(BM_AnswerWithoutContent)->UseRealTime()->Unit(benchmark::kMillisecond);

void BM_MapFromDaemonAndProgram(benchmark::State& state) {
  AskAgainAndAgain(state, "/api/v1/map?lease=many&device=0&width=1000");
}
BENCHMARK(BM_MapFromDaemonAndProgram)->UseRealTime()->MeasureProcessCPUTime()->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace lgpu::daemon

BENCHMARK_MAIN();
