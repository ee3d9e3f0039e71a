#ifndef LGPU_KERNELS_PACKING_H_
#define LGPU_KERNELS_PACKING_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/bodies/numbers.h"

namespace lgpu {

/// An Alignment knows whether pointers lie alike to 16 bytes. A value type.
class Alignment {
 public:
  explicit Alignment(const void* first) : offset_(OffsetOf(first)) {}
  void Add(const void* other) { alike_ = alike_ && OffsetOf(other) == offset_; }
  /// How `elements` of so many bytes each fall into packs.
  code::Packing Split(std::int64_t elements, std::size_t element_bytes) const {
    const auto all = static_cast<std::uint64_t>(elements);
    if (!alike_ || offset_ % element_bytes != 0) return {all, all, 0};
    const std::uint64_t head = std::min<std::uint64_t>(all, (kPack - offset_) % kPack / element_bytes);
    return {all, head, (all - head) / (kPack / element_bytes)};
  }

 private:
  static constexpr std::uint64_t kPack = 16;
  static std::uint64_t OffsetOf(const void* pointer) {
    return reinterpret_cast<std::uintptr_t>(pointer) % kPack;
  }
  std::uint64_t offset_;
  bool alike_ = true;
};

/// The number of threads that have work.
inline std::uint64_t ThreadsFor(const code::Packing& packing, std::size_t element_bytes) {
  return std::max(packing.packs, packing.elements - packing.packs * (16 / element_bytes));
}

}  // namespace lgpu

#endif  // LGPU_KERNELS_PACKING_H_
