#include "allocator/pool/owner_names.h"

#include <functional>

namespace lgpu {

// On return `slot` is where the name is, or would go.
const OwnerNames::Name* OwnerNames::FindFrom(std::size_t& slot, std::size_t hash, std::string_view op) const {
  for (;; slot = (slot + 1) % kSlots) {
    const Name* const name = slots_[slot].load(std::memory_order_acquire);
    if (name == nullptr || (name->hash == hash && name->text == op)) return name;
  }
}

std::uint32_t OwnerNames::IdOfNamed(std::string_view op) {
  const std::size_t hash = std::hash<std::string_view>{}(op);
  std::size_t slot = hash % kSlots;
  if (const Name* const name = FindFrom(slot, hash, op)) return name->id;
  MutexLock lock(mutex_);
  if (const Name* const name = FindFrom(slot, hash, op)) return name->id;
  const auto id = static_cast<std::uint32_t>(names_.size() + 1);
  if (id >= kMost) return kMost;
  names_.push_back(std::make_unique<const Name>(Name{hash, id, std::string(op)}));
  slots_[slot].store(names_.back().get(), std::memory_order_release);
  return id;
}

std::string OwnerNames::NameOf(std::uint32_t id) const {
  if (id == kNoOp) return {};
  MutexLock lock(mutex_);
  return id <= names_.size() ? names_[id - 1]->text : "(other)";
}

}  // namespace lgpu
