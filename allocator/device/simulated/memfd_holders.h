#ifndef LGPU_ALLOCATOR_DEVICE_SIMULATED_MEMFD_HOLDERS_H_
#define LGPU_ALLOCATOR_DEVICE_SIMULATED_MEMFD_HOLDERS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lgpu/bytes.h"

namespace lgpu {

/// A descriptor or mapping through which a process has a memfd.
struct MemfdHolder {
  std::uint64_t inode = 0;
  std::int64_t pid = 0;
  std::string name;  // as it was given to memfd_create
  std::string path;  // in /proc, through which a process with the right to can open it
  Bytes bytes = {};  // allocated; zero where only a mapping is known
};

/// All memfds whose name begins with `name` that other processes have open or mapped, as /proc says. Skips
/// processes that this one may not inspect. RESOURCE_EXHAUSTED (this process may not open enough files to
/// look) and UNAVAILABLE (the threads of a process end too fast): the holders are unknown.
absl::StatusOr<std::vector<MemfdHolder>> FindMemfdHolders(std::string_view name);

/// Frees the pages of the memfd for good. UNAVAILABLE, naming the process: this process may not open the
/// memfd, or it is no longer at `path`. The holder may have it elsewhere: look again.
absl::Status EmptyHeldMemfd(const MemfdHolder& holder);

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_DEVICE_SIMULATED_MEMFD_HOLDERS_H_
