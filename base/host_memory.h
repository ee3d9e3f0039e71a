#ifndef LGPU_BASE_HOST_MEMORY_H_
#define LGPU_BASE_HOST_MEMORY_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "lgpu/bytes.h"

namespace lgpu {

/// Where the kernel tells about memory; other folders in tests.
struct HostMemoryFiles {
  std::string proc = "/proc";
  std::string cgroups = "/sys/fs/cgroup";
};

/// So much of the machine's memory stays free of the contents of suspended programs.
inline constexpr Bytes kHostMemoryKept(std::uint64_t{2} << 30);

/// Whether these processes may have `bytes` more of host memory: the machine has them beside kHostMemoryKept,
/// and so has each cgroup (version 2) of each process. Swap space does not count. RESOURCE_EXHAUSTED tells
/// what has too little. A figure that cannot be read is not checked.
absl::Status CheckHostMemory(const std::vector<std::int64_t>& pids, Bytes bytes,
                             const HostMemoryFiles& files = {});

}  // namespace lgpu

#endif  // LGPU_BASE_HOST_MEMORY_H_
