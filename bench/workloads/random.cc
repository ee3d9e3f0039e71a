#include "bench/workloads/random.h"

#include <algorithm>
#include <cmath>

namespace lgpu::bench {

std::uint64_t Random::Next() {
  state_ += 0x9e3779b97f4a7c15ull;
  std::uint64_t mixed = state_;
  mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9ull;
  mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebull;
  return mixed ^ (mixed >> 31);
}

std::uint64_t Random::Below(std::uint64_t bound) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<std::uint64_t>((static_cast<Wide>(Next()) * bound) >> 64);
}

Bytes Random::LogUniform(Bytes low, Bytes high) {
  const double from = std::log2(static_cast<double>(low.count()));
  const double to = std::log2(static_cast<double>(high.count()));
  const double fraction = static_cast<double>(Next() >> 11) * 0x1.0p-53;
  const auto drawn = static_cast<std::uint64_t>(std::exp2(from + fraction * (to - from)));
  return Bytes(std::clamp(drawn, low.count(), high.count()));
}

}  // namespace lgpu::bench
