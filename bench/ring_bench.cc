// Measures a placement record: Push into the ring of a real client page, against the least possible cost of a
// record, 64 bytes copied to a place that an atomic counter gives out.

#include <benchmark/benchmark.h>
#include <fcntl.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>

#include "proto/mapped_region.h"
#include "proto/wire/pages.h"

namespace lgpu {
namespace {

PlacementEntry EntryOf(std::uint64_t number) {
  return {.op = static_cast<std::uint16_t>(number % 8),
          .dtype = 1,
          .requested = 0,
          .device = 0,
          .output_bytes = number,
          .submitted_unix_ns = number,
          .host_ns = number};
}

struct BareRing {
  struct alignas(64) Slot {
    std::array<std::uint64_t, 8> words;
  };
  alignas(64) std::atomic<std::uint64_t> head = 0;
  std::array<Slot, PlacementRing::kSlots> slots;
};

void BM_BareCopy(benchmark::State& state) {
  static const auto ring = std::make_unique<BareRing>();
  BareRing::Slot record = {};
  for (auto _ : state) {
    record.words[1] += 1;
    benchmark::DoNotOptimize(record);
    const std::uint64_t ticket = ring->head.fetch_add(1, std::memory_order_relaxed);
    std::memcpy(&ring->slots[ticket % PlacementRing::kSlots], &record, sizeof(record));
    benchmark::ClobberMemory();
  }
}
BENCHMARK(BM_BareCopy)->Threads(1)->Threads(2)->UseRealTime();

// One page for all threads of a run: daemon's and client's mapping of the same memfd.
struct Pages {
  Pages() {
    auto daemon_page = SharedPages::CreateClientPage(MapWithBoost);
    if (!daemon_page.ok()) return;
    auto client_page =
        SharedPages::OpenClientPage(MapWithBoost, UniqueFd(::fcntl(daemon_page->fd(), F_DUPFD_CLOEXEC, 0)));
    if (client_page.ok()) {
      daemon = *std::move(daemon_page);
      client = *std::move(client_page);
    }
  }
  SharedPage<const ClientPage> daemon;
  SharedPage<ClientPage> client;
};

void BM_Push(benchmark::State& state) {
  static const Pages pages;
  if (!pages.client) {
    state.SkipWithError("no client page");
    return;
  }
  std::uint64_t number = 0;
  for (auto _ : state) {
    PlacementEntry entry = EntryOf(++number);
    benchmark::DoNotOptimize(entry);
    pages.client->ring.Push(entry);
  }
}
BENCHMARK(BM_Push)->Threads(1)->Threads(2)->UseRealTime();

void BM_PushAndNext(benchmark::State& state) {
  const Pages pages;
  if (!pages.client) {
    state.SkipWithError("no client page");
    return;
  }
  PlacementRingReader reader(&pages.daemon->ring);
  std::uint64_t number = 0;
  for (auto _ : state) {
    pages.client->ring.Push(EntryOf(++number));
    auto entry = reader.Next();
    benchmark::DoNotOptimize(entry);
  }
  state.counters["lost"] = static_cast<double>(reader.lost());
}
BENCHMARK(BM_PushAndNext);

// The daemon's look at a ring without new records.
void BM_NextOfEmpty(benchmark::State& state) {
  const Pages pages;
  if (!pages.client) {
    state.SkipWithError("no client page");
    return;
  }
  PlacementRingReader reader(&pages.daemon->ring);
  for (auto _ : state) {
    auto entry = reader.Next();
    benchmark::DoNotOptimize(entry);
  }
}
BENCHMARK(BM_NextOfEmpty);

}  // namespace
}  // namespace lgpu

BENCHMARK_MAIN();
