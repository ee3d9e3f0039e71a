#include "client/driver/allocations.h"

#include <iterator>
#include <utility>

namespace lgpu::shim {

void Allocations::Add(std::uint64_t key, Allocation allocation) {
  Shard& shard = Of(key);
  const std::lock_guard lock(shard.mutex);
  shard.known.insert_or_assign(key, std::move(allocation));
}

std::optional<Allocation> Allocations::Remove(std::uint64_t key) {
  Shard& shard = Of(key);
  const std::lock_guard lock(shard.mutex);
  const auto found = shard.known.find(key);
  if (found == shard.known.end()) return std::nullopt;
  std::optional<Allocation> allocation = std::move(found->second);
  shard.known.erase(found);
  return allocation;
}

std::optional<Allocation> Allocations::SetExported(std::uint64_t key) {
  Shard& shard = Of(key);
  const std::lock_guard lock(shard.mutex);
  const auto found = shard.known.find(key);
  if (found == shard.known.end() || std::exchange(found->second.is_exported, true)) return std::nullopt;
  return found->second;
}

bool Allocations::AddImport(std::uint64_t key, void* context) {
  Shard& shard = Of(key);
  const std::lock_guard lock(shard.mutex);
  Allocation& allocation = shard.known[key];
  if (allocation.opened == 0) allocation = {.charge = {}, .context = context, .pool = nullptr};
  return ++allocation.opened == 1;
}

std::optional<Allocations::Opening> Allocations::TakeImport(std::uint64_t key) {
  Shard& shard = Of(key);
  const std::lock_guard lock(shard.mutex);
  const auto found = shard.known.find(key);
  if (found == shard.known.end() || found->second.opened == 0) return std::nullopt;
  const Opening opening{.context = found->second.context, .was_last = --found->second.opened == 0};
  if (opening.was_last) shard.known.erase(found);
  return opening;
}

std::vector<Allocation> Allocations::RemoveOfContext(const void* context) {
  std::vector<Allocation> removed;
  for (Shard& shard : shards_) {
    const std::lock_guard lock(shard.mutex);
    for (auto at = shard.known.begin(); at != shard.known.end();) {
      if (at->second.context != context) {
        ++at;
        continue;
      }
      removed.push_back(std::move(at->second));
      at = shard.known.erase(at);
    }
  }
  return removed;
}

void Handles::Created(std::uint64_t handle, const Charge& charge) {
  const auto memory = std::make_shared<Memory>(Memory{.charge = charge, .references = 1});
  const std::lock_guard lock(mutex_);
  handles_.insert_or_assign(handle, Handle{.references = 1, .memory = memory});
}

std::map<std::uint64_t, Handles::Mapping>::iterator Handles::MappingAt(std::uint64_t address) {
  const auto next = mappings_.upper_bound(address);
  if (next == mappings_.begin()) return next;
  const auto before = std::prev(next);
  return address - before->first < before->second.bytes ? before : next;
}

void Handles::Retained(std::uint64_t handle, std::uint64_t address) {
  const std::lock_guard lock(mutex_);
  const auto mapping = MappingAt(address);
  if (mapping == mappings_.end() || mapping->first > address) return;
  Handle& retained = handles_[handle];
  retained.memory = mapping->second.memory;
  ++retained.references;
  ++retained.memory->references;
}

void Handles::Mapped(std::uint64_t address, std::uint64_t bytes, std::uint64_t handle) {
  const std::lock_guard lock(mutex_);
  const auto known = handles_.find(handle);
  if (known == handles_.end()) return;
  ++known->second.memory->references;
  mappings_.insert_or_assign(address, Mapping{.bytes = bytes, .memory = known->second.memory});
}

void Handles::Bound(std::uint64_t object, const Part& part, std::uint64_t handle, const void* context) {
  const std::lock_guard lock(mutex_);
  const auto known = handles_.find(handle);
  if (known == handles_.end()) return;
  ++known->second.memory->references;
  bindings_.emplace(object, Binding{.part = part, .memory = known->second.memory, .context = context});
}

void Handles::BoundMapping(std::uint64_t object, const Part& part, std::uint64_t address,
                           std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  for (auto at = MappingAt(address); at != mappings_.end(); ++at) {
    if (at->first > address && at->first - address >= bytes) return;
    ++at->second.memory->references;
    bindings_.emplace(object, Binding{.part = part, .memory = at->second.memory});
  }
}

int Handles::CardOf(std::uint64_t handle) {
  const std::lock_guard lock(mutex_);
  const auto known = handles_.find(handle);
  return known == handles_.end() ? LeaseSession::kNoCard : known->second.memory->charge.card;
}

int Handles::CardOfMapping(std::uint64_t address) {
  const std::lock_guard lock(mutex_);
  const auto mapping = MappingAt(address);
  const bool is_there = mapping != mappings_.end() && mapping->first <= address;
  return is_there ? mapping->second.memory->charge.card : LeaseSession::kNoCard;
}

std::optional<Charge> Handles::Exported(std::uint64_t handle) {
  const std::lock_guard lock(mutex_);
  const auto known = handles_.find(handle);
  if (known == handles_.end() || std::exchange(known->second.memory->is_exported, true)) return std::nullopt;
  return known->second.memory->charge;
}

bool Handles::Imported(std::uint64_t handle) {
  const std::lock_guard lock(mutex_);
  Handle& known = handles_[handle];
  const bool is_new = known.memory == nullptr;
  if (is_new)
    known.memory = std::make_shared<Memory>(Memory{.charge = {}, .references = 0, .is_import = true});
  ++known.references;
  ++known.memory->references;
  return is_new;
}

Handles::References Handles::TakeHandle(std::uint64_t handle) {
  const std::lock_guard lock(mutex_);
  const auto known = handles_.find(handle);
  if (known == handles_.end()) return {};
  References taken{{.number = handle, .memory = known->second.memory}};
  if (--known->second.references == 0) handles_.erase(known);
  return taken;
}

Handles::References Handles::TakeMappings(std::uint64_t address, std::uint64_t bytes) {
  References taken;
  const std::lock_guard lock(mutex_);
  auto mapping = mappings_.lower_bound(address);
  while (mapping != mappings_.end() && mapping->first - address < bytes) {
    taken.push_back(
        {.number = mapping->first, .bytes = mapping->second.bytes, .memory = mapping->second.memory});
    mapping = mappings_.erase(mapping);
  }
  return taken;
}

Handles::References Handles::TakeBinding(std::uint64_t object, const Part& part) {
  References taken;
  const std::lock_guard lock(mutex_);
  auto [at, end] = bindings_.equal_range(object);
  while (at != end) {
    if (at->second.part != part) {
      ++at;
      continue;
    }
    taken.push_back({.number = object, .memory = at->second.memory});
    at = bindings_.erase(at);
  }
  return taken;
}

Handles::References Handles::TakeBindings(std::uint64_t object) {
  References taken;
  const std::lock_guard lock(mutex_);
  const auto [begin, end] = bindings_.equal_range(object);
  for (auto at = begin; at != end; ++at) {
    const Binding& binding = at->second;
    taken.push_back(
        {.number = object, .memory = binding.memory, .part = binding.part, .context = binding.context});
  }
  bindings_.erase(begin, end);
  return taken;
}

Handles::References Handles::TakeBindingsOfContext(const void* context) {
  References taken;
  const std::lock_guard lock(mutex_);
  for (auto at = bindings_.begin(); at != bindings_.end();) {
    if (at->second.context != context) {
      ++at;
      continue;
    }
    taken.push_back({.number = at->first, .memory = at->second.memory});
    at = bindings_.erase(at);
  }
  return taken;
}

void Handles::PutHandleBack(const References& taken) {
  const std::lock_guard lock(mutex_);
  for (const Reference& reference : taken) {
    Handle& handle = handles_[reference.number];
    handle.memory = reference.memory;
    ++handle.references;
  }
}

void Handles::PutMappingsBack(const References& taken) {
  const std::lock_guard lock(mutex_);
  for (const Reference& reference : taken) {
    mappings_.insert_or_assign(reference.number,
                               Mapping{.bytes = reference.bytes, .memory = reference.memory});
  }
}

void Handles::PutBindingsBack(const References& taken) {
  const std::lock_guard lock(mutex_);
  for (const Reference& reference : taken) {
    bindings_.emplace(
        reference.number,
        Binding{.part = reference.part, .memory = reference.memory, .context = reference.context});
  }
}

Handles::Dropped Handles::Drop(const References& taken) {
  Dropped dropped;
  const std::lock_guard lock(mutex_);
  for (const Reference& reference : taken) {
    if (--reference.memory->references != 0) continue;
    if (reference.memory->is_import) {
      ++dropped.imports;
    } else if (!reference.memory->is_exported) {
      dropped.charges.push_back(reference.memory->charge);
    }
  }
  return dropped;
}

}  // namespace lgpu::shim
