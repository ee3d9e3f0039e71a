#include "tests/simulation/machine/mappings.h"

#include <sys/mman.h>

#include <iterator>
#include <utility>

#include "tests/simulation/machine/real_calls.h"

namespace lgpu::simulation {

Mappings& Mappings::Get() {
  static Mappings* const mappings = new Mappings();
  return *mappings;
}

void Mappings::Add(std::uintptr_t start, std::size_t bytes, std::shared_ptr<RealFile> file) {
  Remove(start, bytes);
  all_[start] = {.end = start + bytes,
                 .process = Scheduler::Self().process,
                 .file = OpenDescriptor(std::move(file)),
                 .number = ++last_number_};
}

void Mappings::Remove(std::uintptr_t start, std::size_t bytes) {
  const std::uintptr_t end = start + bytes;
  auto it = all_.upper_bound(start);
  if (it != all_.begin() && std::prev(it)->second.end > start) --it;
  while (it != all_.end() && it->first < end) {
    const auto [first, mapping] = *it;
    it = all_.erase(it);
    if (first < start) {
      Mapping before = mapping;
      before.end = start;
      all_[first] = before;
    }
    if (mapping.end > end) all_[end] = mapping;
  }
}

void Mappings::RemoveAll(const MachineProcess& process) {
  LGPU_REAL(munmap);
  for (auto it = all_.begin(); it != all_.end();) {
    const auto& [start, mapping] = *it;
    if (mapping.process != &process) {
      ++it;
      continue;
    }
    real(reinterpret_cast<void*>(start), mapping.end - start);
    it = all_.erase(it);
  }
}

std::shared_ptr<RealFile> Mappings::FileAt(std::uintptr_t start) const {
  const auto found = all_.find(start);
  return found == all_.end() ? nullptr : found->second.file.get();
}

}  // namespace lgpu::simulation
