#include "client/driver/tick_page.h"

#include <sys/mman.h>

#include <cstddef>

#include "proto/wire/pages.h"

namespace lgpu::shim {

bool TickPage::Map(int stats_page) {
  void* const mapped = ::mmap(start_, offsetof(StatsPage, devices), PROT_READ,
                              MAP_SHARED | (start_ != nullptr ? MAP_FIXED : 0), stats_page, 0);
  if (mapped == MAP_FAILED) return false;
  start_ = mapped;
  return true;
}

const std::atomic<std::uint64_t>* TickPage::tick() const {
  return start_ == nullptr ? nullptr : &static_cast<const StatsPage*>(start_)->tick;
}

}  // namespace lgpu::shim
