#ifndef LGPU_ALLOCATOR_POOL_OWNER_NAMES_H_
#define LGPU_ALLOCATOR_POOL_OWNER_NAMES_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"

namespace lgpu {

/// OwnerNames gives a small number to every op that owns blocks, for good. Finding a known one takes no lock.
/// Thread-safe.
class OwnerNames {
 public:
  static constexpr std::uint32_t kNoOp = 0;
  /// Ops beyond the first 4095 are one: "(other)".
  static constexpr std::uint32_t kMost = 4096;

  std::uint32_t IdOf(std::string_view op) { return op.empty() ? kNoOp : IdOfNamed(op); }
  std::string NameOf(std::uint32_t id) const;

 private:
  std::uint32_t IdOfNamed(std::string_view op);
  struct Name {
    std::size_t hash;
    std::uint32_t id;
    std::string text;
  };
  static constexpr std::size_t kSlots = 8192;
  const Name* FindFrom(std::size_t& slot, std::size_t hash, std::string_view op) const;

  std::array<std::atomic<const Name*>, kSlots> slots_{};
  mutable Mutex mutex_;
  std::vector<std::unique_ptr<const Name>> names_ ABSL_GUARDED_BY(mutex_);  // by id - 1
};

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_POOL_OWNER_NAMES_H_
