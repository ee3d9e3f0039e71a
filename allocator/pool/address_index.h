#ifndef LGPU_ALLOCATOR_POOL_ADDRESS_INDEX_H_
#define LGPU_ALLOCATOR_POOL_ADDRESS_INDEX_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace lgpu {

/// An AddressIndex finds the block that starts at an offset (in granules): an open-addressed table with
/// linear probing, at most half full, without graves. It is off, and costs nothing, until Start. Not
/// thread-safe.
class AddressIndex {
 public:
  bool is_on() const { return !slots_.empty(); }
  void Start(std::size_t expected);
  void Insert(std::uint32_t offset, std::uint32_t index);
  void Erase(std::uint32_t offset);
  /// Zero: no block starts there.
  std::uint32_t Find(std::uint32_t offset) const;
  std::size_t size() const { return size_; }

 private:
  struct Slot {
    std::uint32_t offset = 0;
    std::uint32_t index = 0;  // zero: empty
  };
  std::size_t HomeOf(std::uint32_t offset) const {
    return static_cast<std::size_t>((offset * std::uint64_t{0x9e3779b97f4a7c15}) >> shift_);
  }

  std::vector<Slot> slots_;  // a power of two
  std::size_t size_ = 0;
  int shift_ = 0;
};

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_POOL_ADDRESS_INDEX_H_
