#ifndef LGPU_ALLOCATOR_DEVICE_SIMULATED_MEMFD_H_
#define LGPU_ALLOCATOR_DEVICE_SIMULATED_MEMFD_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/unique_fd.h"
#include "lgpu/bytes.h"
#include "lgpu/refusal.h"

namespace lgpu {

/// INTERNAL: the system call `call` (with its purpose) broke its promise with `error`, an errno.
absl::Status SystemCallError(const char* call, int error);
/// RESOURCE_EXHAUSTED with a Refusal of kBackend (machine memory), kDescriptors or kMapCount, whose advice
/// says what to change.
absl::Status MachineRefusal(RefusalReason reason, std::string_view what, Bytes asked);
/// vm.max_map_count; the largest number where it cannot be read.
std::uint64_t MaxMappings();
/// The error of a failed mmap or mprotect: RESOURCE_EXHAUSTED, which tells a process out of mappings
/// (vm.max_map_count) from a machine out of memory, or INTERNAL.
absl::Status MappingError(const char* call, int error, Bytes asked);

/// The names of all chunks' memfds begin with this.
inline constexpr char kChunkMemfdName[] = "lgpu-chunk:";
/// The name of the memfds of a device's chunks, by which they are found in /proc.
std::string ChunkMemfdName(const std::string& uuid);

/// The memory of one simulated chunk: a memfd of `bytes` with that name, sealed so that it can
/// shrink but never grow, and that no seal can be added. Unless `sparse` its pages exist afterwards, or
/// the answer is RESOURCE_EXHAUSTED.
absl::StatusOr<UniqueFd> CreateChunkMemfd(Bytes bytes, bool sparse, const std::string& name);
/// Whether the file has the seals of a chunk; only a memfd can have seals.
bool HasChunkSeals(int fd);
/// INVALID_ARGUMENT unless `fd` is a memfd of CreateChunkMemfd with that size.
absl::Status CheckChunkMemfd(int fd, Bytes bytes);
/// Frees the pages of a chunk for good, also under mappings of other processes.
absl::Status EmptyChunkMemfd(int fd);

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_DEVICE_SIMULATED_MEMFD_H_
