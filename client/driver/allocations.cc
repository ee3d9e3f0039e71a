#include "client/driver/allocations.h"

#include <iterator>
#include <utility>

namespace lgpu::shim {

std::optional<Allocation> Allocations::Add(std::uint64_t key, Allocation&& allocation) {
  Shard& shard = Of(key);
  const std::lock_guard lock(shard.mutex);
  const auto added = shard.known.Add(key);
  if (!added.is_new) return std::exchange(*added.value, std::move(allocation));
  *added.value = std::move(allocation);
  return std::nullopt;
}

std::optional<Allocation> Allocations::Add(std::uint64_t key, const Charge& charge, void* context, Era era) {
  Shard& shard = Of(key);
  const std::lock_guard lock(shard.mutex);
  const auto added = shard.known.Add(key);
  std::optional<Allocation> gone;
  if (!added.is_new) gone = std::exchange(*added.value, {});
  added.value->charge = charge;
  added.value->context = context;
  added.value->era = era;
  return gone;
}

std::optional<Allocation> Allocations::Remove(std::uint64_t key) {
  Shard& shard = Of(key);
  const std::lock_guard lock(shard.mutex);
  return shard.known.Take(key);
}

std::optional<Allocation> Allocations::SetExported(std::uint64_t key) {
  Shard& shard = Of(key);
  const std::lock_guard lock(shard.mutex);
  Allocation* const found = shard.known.Find(key);
  if (found == nullptr || std::exchange(found->is_exported, true)) return std::nullopt;
  return *found;
}

bool Allocations::AddImport(std::uint64_t key, void* context, Era era) {
  Shard& shard = Of(key);
  const std::lock_guard lock(shard.mutex);
  Allocation& allocation = *shard.known.Add(key).value;
  if (allocation.opened == 0) allocation = {.charge = {}, .context = context, .era = era, .pool = nullptr};
  return ++allocation.opened == 1;
}

std::optional<Allocations::Opening> Allocations::TakeImport(std::uint64_t key) {
  Shard& shard = Of(key);
  const std::lock_guard lock(shard.mutex);
  Allocation* const found = shard.known.Find(key);
  if (found == nullptr || found->opened == 0) return std::nullopt;
  const Opening opening{.context = found->context, .era = found->era, .was_last = --found->opened == 0};
  if (opening.was_last) shard.known.Erase(key);
  return opening;
}

std::vector<Allocation> Allocations::RemoveOfContext(const void* context, Era last) {
  std::vector<Allocation> removed;
  std::vector<std::uint64_t> keys;
  for (Shard& shard : shards_) {
    keys.clear();
    const std::lock_guard lock(shard.mutex);
    shard.known.ForEach([&](std::uint64_t key, const Allocation& allocation) {
      if (allocation.context == context && allocation.era <= last) keys.push_back(key);
    });
    for (const std::uint64_t key : keys) removed.push_back(*shard.known.Take(key));
  }
  return removed;
}

void Handles::Created(std::uint64_t handle, Device device, const Charge& charge) {
  const auto memory =
      std::make_shared<Memory>(Memory{.charge = charge, .device = device, .references = 1, .bound = {}});
  const std::lock_guard lock(mutex_);
  handles_.insert_or_assign(handle, Handle{.references = 1, .memory = memory});
}

void Handles::CreatedMulticast(std::uint64_t object) { Created(object, kNoDevice, Charge{}); }

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

void Handles::Bound(std::uint64_t array, const Part& part, std::uint64_t handle, const void* context,
                    Era era) {
  const std::lock_guard lock(mutex_);
  const auto known = handles_.find(handle);
  if (known == handles_.end()) return;
  ++known->second.memory->references;
  bindings_.emplace(array,
                    Binding{.part = part, .memory = known->second.memory, .context = context, .era = era});
}

void Handles::BoundToMulticast(std::uint64_t object, std::uint64_t offset, std::uint64_t bytes,
                               std::uint64_t handle) {
  const std::lock_guard lock(mutex_);
  const auto to = handles_.find(object), known = handles_.find(handle);
  if (to == handles_.end() || known == handles_.end()) return;
  ++known->second.memory->references;
  to->second.memory->bound.push_back({.offset = offset, .bytes = bytes, .memory = known->second.memory});
}

void Handles::BoundMappings(std::uint64_t object, std::uint64_t offset, std::uint64_t bytes,
                            std::uint64_t address) {
  const std::lock_guard lock(mutex_);
  const auto to = handles_.find(object);
  if (to == handles_.end()) return;
  for (auto at = MappingAt(address); at != mappings_.end(); ++at) {
    if (at->first > address && at->first - address >= bytes) return;
    ++at->second.memory->references;
    to->second.memory->bound.push_back({.offset = offset, .bytes = bytes, .memory = at->second.memory});
  }
}

std::optional<Charge> Handles::Exported(std::uint64_t handle) {
  const std::lock_guard lock(mutex_);
  const auto known = handles_.find(handle);
  if (known == handles_.end() || std::exchange(known->second.memory->is_exported, true)) return std::nullopt;
  return known->second.memory->charge;
}

bool Handles::Imported(std::uint64_t handle, Device device) {
  const std::lock_guard lock(mutex_);
  Handle& known = handles_[handle];
  const bool is_new = known.memory == nullptr;
  if (is_new) {
    known.memory = std::make_shared<Memory>(
        Memory{.charge = {}, .device = device, .references = 0, .is_import = true, .bound = {}});
  }
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

Handles::References Handles::TakeBinding(std::uint64_t array, const Part& part) {
  References taken;
  const std::lock_guard lock(mutex_);
  auto [at, end] = bindings_.equal_range(array);
  while (at != end) {
    if (at->second.part != part) {
      ++at;
      continue;
    }
    taken.push_back({.number = array, .memory = at->second.memory});
    at = bindings_.erase(at);
  }
  return taken;
}

Handles::References Handles::TakeBindings(std::uint64_t array) {
  References taken;
  const std::lock_guard lock(mutex_);
  const auto [begin, end] = bindings_.equal_range(array);
  for (auto at = begin; at != end; ++at) {
    const Binding& binding = at->second;
    taken.push_back({.number = array,
                     .memory = binding.memory,
                     .part = binding.part,
                     .context = binding.context,
                     .era = binding.era});
  }
  bindings_.erase(begin, end);
  return taken;
}

Handles::References Handles::TakeFromMulticast(std::uint64_t object, Device device, std::uint64_t offset,
                                               std::uint64_t bytes) {
  References taken;
  const std::lock_guard lock(mutex_);
  const auto known = handles_.find(object);
  if (known == handles_.end()) return taken;
  std::erase_if(known->second.memory->bound, [&](const MulticastBinding& binding) {
    const bool is_within = binding.offset >= offset && binding.offset - offset <= bytes &&
                           binding.bytes <= bytes - (binding.offset - offset);
    if (!is_within || binding.memory->device != device) return false;
    taken.push_back({.number = object, .memory = binding.memory});
    return true;
  });
  return taken;
}

Handles::References Handles::TakeBindingsOfContext(const void* context, Era last) {
  References taken;
  const std::lock_guard lock(mutex_);
  for (auto at = bindings_.begin(); at != bindings_.end();) {
    if (at->second.context != context || at->second.era > last) {
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
    bindings_.emplace(reference.number, Binding{.part = reference.part,
                                                .memory = reference.memory,
                                                .context = reference.context,
                                                .era = reference.era});
  }
}

Handles::Dropped Handles::Drop(const References& taken) {
  Dropped dropped;
  const std::lock_guard lock(mutex_);
  for (const Reference& reference : taken) Drop(*reference.memory, dropped);
  return dropped;
}

void Handles::Drop(Memory& memory, Dropped& dropped) {
  if (--memory.references != 0) return;
  if (memory.is_import) {
    ++dropped.imports;
  } else if (!memory.is_exported) {
    if (memory.charge.bytes > 0) dropped.charges.push_back(memory.charge);
    for (const MulticastBinding& binding : memory.bound) Drop(*binding.memory, dropped);
  }
}

}  // namespace lgpu::shim
