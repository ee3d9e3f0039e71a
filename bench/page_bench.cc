// Measures the daemon's page: the map of a logical device with a million blocks, beside one pass over its
// blocks; the map as JSON; and the whole answer of a real lgpud, with the time in which its program makes the
// map, beside an answer without content.

#include <benchmark/benchmark.h>
#include <httplib.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>

#include "allocator/pool/block_map.h"
#include "daemon/http/memory_map.h"
#include "lgpu/memory.h"
#include "proto/messages_json.h"
#include "tests/support/child_program.h"
#include "tests/support/daemon_process.h"

namespace lgpu::daemon {
namespace {

constexpr std::uint64_t kChunk = std::uint64_t{2} << 20;

/// As a pool's scan has them: in no order.
PoolBlocks MillionBlocks() {
  constexpr std::uint32_t kSize = 8;  // granules
  constexpr std::uint32_t kBlocks = 1'000'000;
  std::minstd_rand random(20261123);
  PoolBlocks taken;
  taken.ops = {"", "MatMul", "AddN", "Cast", "Identity"};
  std::uint32_t offset = 0;
  for (std::uint32_t i = 0; i < kBlocks; ++i) {
    const auto op = static_cast<std::uint32_t>(random() % taken.ops.size());
    taken.blocks.push_back(
        {.offset = offset, .size = kSize, .about = BlockEntry::About(0, 0, op), .state = Node::kLive});
    offset += kSize * static_cast<std::uint32_t>(1 + random() % 3);
  }
  std::shuffle(taken.blocks.begin(), taken.blocks.end(), random);
  const std::uint64_t chunks = PoolBlocks::OffsetOf({.offset = offset}) / Bytes(kChunk) + 1;
  taken.about.granularity = Bytes(kChunk);
  taken.about.mappings = {{Bytes(), Bytes(kChunk) * chunks}};
  return taken;
}

void BM_PassOverBlocks(benchmark::State& state) {
  const PoolBlocks taken = MillionBlocks();
  for (auto _ : state) {
    Bytes used;
    for (const BlockCopy& block : taken.blocks) used += PoolBlocks::BytesOf(block);
    benchmark::DoNotOptimize(used);
  }
}
BENCHMARK(BM_PassOverBlocks)->Unit(benchmark::kMillisecond);

void BM_Map(benchmark::State& state) {
  const PoolBlocks taken = MillionBlocks();
  for (auto _ : state) benchmark::DoNotOptimize(MapOfBlocks(taken, static_cast<std::size_t>(state.range(0))));
}
BENCHMARK(BM_Map)->ArgName("cells")->Arg(1000)->Arg(8000)->Unit(benchmark::kMillisecond);

/// The map as lgpud has it from the program.
DeviceBlocks Told(const PoolBlocks& taken, std::size_t cells) {
  const BlockMap map = MapOfBlocks(taken, cells);
  DeviceBlocks told;
  told.ops = {""};
  told.ops.insert(told.ops.end(), taken.ops.begin(), taken.ops.end());
  told.map.held_bytes = map.held.count();
  told.map.cell_bytes = map.cell_bytes.count();
  for (const Bytes bytes : map.op_bytes) told.map.op_bytes.push_back(bytes.count());
  for (const BlockMap::Cell& cell : map.cells) {
    told.map.cells.push_back(
        {.used = cell.used.count(), .op = cell.op + 1, .blocks = cell.blocks, .gaps = cell.gaps});
  }
  return told;
}

void BM_MapAsJson(benchmark::State& state) {
  const DeviceBlocks told = Told(MillionBlocks(), static_cast<std::size_t>(state.range(0)));
  std::size_t bytes = 0;
  for (auto _ : state) bytes = JsonLine(MapOf(told)).size();
  state.counters["bytes"] = static_cast<double>(bytes);
}
BENCHMARK(BM_MapAsJson)->ArgName("cells")->Arg(1000)->Arg(8000)->Unit(benchmark::kMillisecond);

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
  AskAgainAndAgain(state, "/api/v1/map?lease=many&device=0&width=" + std::to_string(state.range(0)));
}
BENCHMARK(BM_MapFromDaemonAndProgram)
    ->ArgName("cells")
    ->Arg(1000)
    ->Arg(8000)
    ->UseRealTime()
    ->MeasureProcessCPUTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace lgpu::daemon

BENCHMARK_MAIN();
