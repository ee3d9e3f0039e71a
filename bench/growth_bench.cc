// A model of a GPU's memory that grows: how many chunks it takes and what they cost, by the rule that cuts
// growth into chunks. The Pool is the real one, and so is lgpu's rule; no memory is made. The costs of a
// chunk are published ones, of an A100: cuMemCreate 0.19 ms, 0.38 ms at the 99th percentile, cuMemMap 1.5 us
// and cuMemSetAccess 36 us for each mapped range (measurements of the kvcached project, chunks of 2 MiB), and
// 0.1 ms assumed for export, message and import.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bench/peers/pool_contender.h"
#include "bench/peers/space.h"
#include "bench/text_table.h"
#include "bench/workloads/catalog.h"
#include "bench/workloads/random.h"

namespace lgpu::bench {
namespace {

struct Rule {
  std::string what;
  CutGrowth cut;
};

std::vector<Bytes> Cut(Bytes bytes, std::vector<Bytes> classes) {
  std::vector<Bytes> sizes;
  for (const Bytes size : classes) {
    while (bytes >= size) {
      sizes.push_back(size);
      bytes -= size;
    }
  }
  return sizes;
}

// lgpu's rule until November 2026: need and growth ahead of it apart, each by its size alone.
std::vector<Bytes> CutBySteps(const DeviceGrowth& growth) {
  const auto cut = [](Bytes bytes) {
    if (bytes >= 1_GiB) return Cut(bytes, {256_MiB, 32_MiB, 2_MiB});
    return bytes >= 64_MiB ? Cut(bytes, {32_MiB, 2_MiB}) : Cut(bytes, {2_MiB});
  };
  const Bytes needed = std::min(growth.needed, growth.granted);
  std::vector<Bytes> sizes = cut(needed);
  const std::vector<Bytes> ahead = cut(growth.granted - needed);
  sizes.insert(sizes.end(), ahead.begin(), ahead.end());
  return sizes;
}

const std::vector<Rule>& Rules() {
  static const std::vector<Rule> kRules = {
      {"2 MiB each", [](const DeviceGrowth& growth) { return Cut(growth.granted, {2_MiB}); }},
      {"20 MiB each, as PyTorch's expandable segments",
       [](const DeviceGrowth& growth) {
         return Cut(growth.granted, {20_MiB, 2_MiB});
       }},
      {"by the step, lgpu before", CutBySteps},
      {"lgpu", CutForGpu},
  };
  return kRules;
}

double GiB(Bytes bytes) { return static_cast<double>(bytes.count()) / static_cast<double>((1_GiB).count()); }

// Blocks of 1 to 20 MiB until `live`. Then the older half of them is freed, and of the other half random
// ones: a half, and up to nine tenths.
std::vector<std::string> Grow(const Rule& rule, Bytes limit, Bytes live) {
  constexpr double kCreateMs = 0.19, kSlowCreateMs = 0.38, kShareMs = 0.1, kMapMs = 0.0015, kAccessMs = 0.036;
  constexpr Slot kSlots = 1 << 17;
  PoolContender pool({.limit = limit, .slots = kSlots}, {.cut = rule.cut});
  Random random(1);
  std::vector<Slot> slots;
  for (Bytes sum; sum < live;) {
    const Bytes bytes = 1_MiB + Bytes(random.Below((19_MiB).count()));
    if (!pool.Allocate(static_cast<Slot>(slots.size()), bytes)) break;
    slots.push_back(static_cast<Slot>(slots.size()));
    sum += bytes;
  }
  const SourceCounters& source = pool.source();
  const auto chunks = static_cast<double>(source.chunks);
  const double others = chunks * (kShareMs + kMapMs) + static_cast<double>(source.map_calls) * kAccessMs;
  std::vector<std::string> row = {rule.what,
                                  std::to_string(source.chunks),
                                  std::to_string(source.grow_calls),
                                  Fixed((chunks * kCreateMs + others) / 1000, 2),
                                  Fixed((chunks * kSlowCreateMs + others) / 1000, 2),
                                  Fixed(GiB(source.held), 1)};
  const auto free_to = [&](std::size_t left) {
    for (; slots.size() > left; slots.pop_back()) pool.Free(slots.back());
    static_cast<void>(pool.pool().Trim(Bytes(~std::uint64_t{0})).ok());
    return Fixed(GiB(source.held), 1);
  };
  const std::size_t all = slots.size();
  std::reverse(slots.begin(), slots.end());  // the oldest block is freed first
  row.push_back(free_to(all / 2));
  for (std::size_t i = slots.size(); i > 1; --i) std::swap(slots[i - 1], slots[random.Below(i)]);
  row.push_back(free_to(all / 4));
  row.push_back(free_to(all / 20));
  return row;
}

void PrintGrowth(Bytes limit, Bytes live) {
  TextTable table({"chunks", "made", "grants", "seconds", "slow", "held, GiB", "oldest half freed",
                   "half of the rest", "nine tenths"});
  for (const Rule& rule : Rules()) table.AddRow(Grow(rule, limit, live));
  std::printf(
      "Blocks of 1 to 20 MiB up to %s of a limit of %s. Then the older half is freed, and random blocks of "
      "the other; idle chunks go back\n\n%s\n",
      FormatBytes(live).c_str(), FormatBytes(limit).c_str(), table.Text().c_str());
}

void PrintSmallestLimits() {
  std::vector<std::string> header = {"smallest limit / peak live"};
  for (const std::string_view name : SpaceWorkloads()) header.emplace_back(name);
  TextTable table(header);
  for (const Rule& rule : Rules()) {
    std::vector<std::string> row = {rule.what};
    for (const std::string_view name : SpaceWorkloads()) {
      const Trace trace = *MakeWorkload(name);
      const auto make = [&rule](const ContenderOptions& options) {
        return std::make_unique<PoolContender>(options, PoolConfiguration{.cut = rule.cut});
      };
      const auto limit = SmallestLimit(trace, make, {.resolution = 0.0005, .confirmations = 4});
      row.push_back(limit ? Fixed(GiB(*limit) / GiB(Summarize(trace).peak_live), 4) : ">4");
    }
    table.AddRow(row);
  }
  std::printf("The smallest limit at which, and at larger ones, a trace completes\n\n%s",
              table.Text().c_str());
}

}  // namespace
}  // namespace lgpu::bench

int main() {
  using namespace lgpu;
  bench::PrintGrowth(60_GiB, 60_GiB);
  bench::PrintGrowth(80_GiB, 60_GiB);
  bench::PrintGrowth(8_GiB, 6_GiB);
  bench::PrintSmallestLimits();
  return 0;
}
