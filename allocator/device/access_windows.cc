#include "allocator/device/access_windows.h"

#include <sys/mman.h>

#include <cerrno>

#include "allocator/device/simulated/memfd.h"
#include "base/check.h"

namespace lgpu {

absl::Status AccessWindows::Add(int device, std::byte* address, Bytes bytes) {
  MutexLock lock(mutex_);
  Device& state = devices_[static_cast<std::size_t>(device)];
  if (state.open > 0 && mprotect(address, bytes.count(), PROT_READ | PROT_WRITE) != 0) {
    return MappingError("mprotect of device memory", errno, bytes);
  }
  state.ranges.insert_or_assign(address, bytes);
  return absl::OkStatus();
}

void AccessWindows::Remove(int device, std::byte* address) {
  MutexLock lock(mutex_);
  devices_[static_cast<std::size_t>(device)].ranges.erase(address);
}

void AccessWindows::Open(int device) {
  MutexLock lock(mutex_);
  Device& state = devices_[static_cast<std::size_t>(device)];
  if (state.open++ == 0) LGPU_CHECK(Protect(state, PROT_READ | PROT_WRITE).ok());
}

void AccessWindows::Close(int device) {
  MutexLock lock(mutex_);
  Device& state = devices_[static_cast<std::size_t>(device)];
  if (--state.open == 0) LGPU_CHECK(Protect(state, PROT_NONE).ok());
}

absl::Status AccessWindows::Protect(const Device& device, int protection) {
  for (auto run = device.ranges.begin(); run != device.ranges.end();) {
    std::byte* const begin = run->first;
    std::byte* end = begin;
    for (; run != device.ranges.end() && run->first == end; ++run) end += run->second.count();
    const auto bytes = static_cast<std::size_t>(end - begin);
    if (mprotect(begin, bytes, protection) != 0) {
      return MappingError("mprotect of device memory", errno, Bytes(bytes));
    }
  }
  return absl::OkStatus();
}

}  // namespace lgpu
