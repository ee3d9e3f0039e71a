#ifndef LGPU_ALLOCATOR_BROKER_ALLOWANCE_H_
#define LGPU_ALLOCATOR_BROKER_ALLOWANCE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace lgpu {

/// Allowances are the words that a session's program shares with the broker, one pair for each card of its
/// lease: bytes that were lent and are not in use, and how many of them the program may keep. The program may
/// write anything into them at any time. Thread-safe.
class Allowances {
 public:
  virtual ~Allowances() = default;
  virtual std::atomic<std::uint64_t>& Free(std::size_t card) = 0;
  virtual std::atomic<std::uint64_t>& Keep(std::size_t card) = 0;
};

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_BROKER_ALLOWANCE_H_
