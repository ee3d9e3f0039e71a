#include "bench/peers/latency.h"

#include <algorithm>
#include <chrono>
#include <cstddef>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace lgpu::bench {
namespace {

std::uint64_t SteadyNanoseconds() {
  return static_cast<std::uint64_t>(
      std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count());
}

}  // namespace

std::uint64_t OperationClock::Now() {
#if defined(__x86_64__)
  return __rdtsc();
#else
  return SteadyNanoseconds();
#endif
}

OperationClock::OperationClock() {
  constexpr std::uint64_t kCalibration = 10'000'000;
  const std::uint64_t start = SteadyNanoseconds();
  const std::uint64_t start_ticks = Now();
  std::uint64_t elapsed = 0;
  while (elapsed < kCalibration) elapsed = SteadyNanoseconds() - start;
  ns_per_tick_ = static_cast<double>(elapsed) / static_cast<double>(Now() - start_ticks);
}

Percentiles OperationClock::Summarize(std::vector<std::uint32_t>& ticks) const {
  if (ticks.empty()) return {};
  std::sort(ticks.begin(), ticks.end());
  const auto at = [&](double fraction) {
    const auto index = static_cast<std::size_t>(fraction * static_cast<double>(ticks.size() - 1));
    return ToNanoseconds(ticks[index]);
  };
  return {.count = ticks.size(), .p50 = at(0.5), .p99 = at(0.99), .p999 = at(0.999), .max = at(1)};
}

void MergePass(const std::vector<std::uint32_t>& pass, std::vector<std::uint32_t>& least) {
  if (least.empty()) {
    least = pass;
    return;
  }
  least.resize(std::min(least.size(), pass.size()));
  for (std::size_t i = 0; i < least.size(); ++i) least[i] = std::min(least[i], pass[i]);
}

}  // namespace lgpu::bench
