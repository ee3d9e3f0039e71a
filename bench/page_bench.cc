// What the daemon's page costs: the map of a logical device with a million blocks, beside one pass over its
// blocks. What the program takes to tell them is not in it (docs/snapshots.md).

#include <benchmark/benchmark.h>

#include <random>

#include "daemon/http/memory_map.h"
#include "proto/messages_json.h"

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

}  // namespace
}  // namespace lgpu::daemon

BENCHMARK_MAIN();
