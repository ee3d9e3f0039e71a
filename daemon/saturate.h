#ifndef LGPU_DAEMON_SATURATE_H_
#define LGPU_DAEMON_SATURATE_H_

#include <cstdint>
#include <limits>

namespace lgpu::daemon {

/// a + b, or the largest number where that is more: counters of clients may hold anything.
constexpr std::uint64_t Saturate(std::uint64_t a, std::uint64_t b) {
  return a + b < a ? std::numeric_limits<std::uint64_t>::max() : a + b;
}

}  // namespace lgpu::daemon

#endif  // LGPU_DAEMON_SATURATE_H_
