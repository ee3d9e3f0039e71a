#ifndef LGPU_CLIENT_DRIVER_ADDRESS_TABLE_H_
#define LGPU_CLIENT_DRIVER_ADDRESS_TABLE_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

namespace lgpu::shim {

/// An AddressTable has a value for each of many addresses or handles. The entries lie in one array: an entry
/// lies at its key's home, or behind it without a free slot between (linear probing). So a look-up reads one
/// cache line mostly, and adding and taking out need no memory but at growth.
///
/// The largest number is no key. A pointer to a value is valid until the next Add, Take or Erase. Not
/// thread-safe.
template <typename Value>
class AddressTable {
 public:
  std::size_t size() const { return size_; }

  /// Null: the table does not have `key`.
  Value* Find(std::uint64_t key) {
    const std::size_t slot = SlotOf(key);
    return slot == kNowhere ? nullptr : &slots_[slot].value;
  }

  struct Added {
    Value* value = nullptr;
    bool is_new = false;
  };
  /// The value of `key`; an empty one where there was none.
  Added Add(std::uint64_t key) {
    if (4 * (size_ + 1) > 3 * capacity_) Grow();
    std::size_t slot = HomeOf(key);
    for (; slots_[slot].key != kFree; slot = Next(slot)) {
      if (slots_[slot].key == key) return {.value = &slots_[slot].value, .is_new = false};
    }
    slots_[slot].key = key;
    ++size_;
    return {.value = &slots_[slot].value, .is_new = true};
  }

  /// Takes the value of `key` out.
  std::optional<Value> Take(std::uint64_t key) {
    const std::size_t slot = SlotOf(key);
    if (slot == kNowhere) return std::nullopt;
    std::optional<Value> value = std::move(slots_[slot].value);
    Close(slot);
    return value;
  }
  /// Takes out what Find or Add gave.
  void Erase(Value* value) {
    // The slot is the one that the value lies in.
    Close(
        static_cast<std::size_t>(reinterpret_cast<char*>(value) - reinterpret_cast<char*>(&slots_[0].value)) /
        sizeof(Slot));
  }
  void Erase(std::uint64_t key) {
    if (const std::size_t slot = SlotOf(key); slot != kNowhere) Close(slot);
  }

  /// Calls `see(key, value)` for each entry.
  template <typename See>
  void ForEach(See see) const {
    for (std::size_t slot = 0; slot < capacity_; ++slot) {
      if (slots_[slot].key != kFree) see(slots_[slot].key, std::as_const(slots_[slot].value));
    }
  }

 private:
  static constexpr std::uint64_t kFree = ~std::uint64_t{0};
  static constexpr std::size_t kNowhere = ~std::size_t{0};
  static constexpr std::size_t kFirstCapacity = 8;  // capacities are powers of two
  struct Slot {
    std::uint64_t key = kFree;
    Value value{};
  };

  // Fibonacci hashing: the high bits of the product depend on all bits of the key.
  std::size_t HomeOf(std::uint64_t key) const { return (key * 0x9e37'79b9'7f4a'7c15U) >> shift_; }
  std::size_t Next(std::size_t slot) const { return (slot + 1) & (capacity_ - 1); }
  std::size_t SlotOf(std::uint64_t key) const {
    if (size_ == 0) return kNowhere;
    for (std::size_t slot = HomeOf(key); slots_[slot].key != kFree; slot = Next(slot)) {
      if (slots_[slot].key == key) return slot;
    }
    return kNowhere;
  }

  /// Frees a slot. Entries behind it that are not at home move up, so that no free slot is in their way.
  void Close(std::size_t hole) {
    for (std::size_t slot = Next(hole); slots_[slot].key != kFree; slot = Next(slot)) {
      // An entry stays where its home lies behind the hole.
      const std::size_t mask = capacity_ - 1;
      if (((slot - HomeOf(slots_[slot].key)) & mask) < ((slot - hole) & mask)) continue;
      slots_[hole] = std::move(slots_[slot]);
      hole = slot;
    }
    // In place: an empty value that is copied here costs more than the look-up.
    std::destroy_at(&slots_[hole].value);
    std::construct_at(&slots_[hole].value);
    slots_[hole].key = kFree;
    --size_;
  }

  void Grow() {
    const std::size_t before = capacity_;
    const std::unique_ptr<Slot[]> entries = std::move(slots_);
    capacity_ = before == 0 ? kFirstCapacity : 2 * before;
    shift_ = 64 - std::countr_zero(capacity_);
    slots_ = std::make_unique<Slot[]>(capacity_);
    size_ = 0;
    for (std::size_t slot = 0; slot < before; ++slot) {
      if (entries[slot].key != kFree) *Add(entries[slot].key).value = std::move(entries[slot].value);
    }
  }

  std::unique_ptr<Slot[]> slots_;
  std::size_t capacity_ = 0, size_ = 0;
  int shift_ = 0;
};

}  // namespace lgpu::shim

#endif  // LGPU_CLIENT_DRIVER_ADDRESS_TABLE_H_
