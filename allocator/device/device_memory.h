#ifndef LGPU_ALLOCATOR_DEVICE_DEVICE_MEMORY_H_
#define LGPU_ALLOCATOR_DEVICE_DEVICE_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/unique_fd.h"
#include "lgpu/bytes.h"
#include "lgpu/id.h"

namespace lgpu {

/// One GPU as its driver reports it, or one simulated GPU.
struct PhysicalDevice {
  std::string uuid;        // "GPU-6f1e..."; the only name that crosses processes
  std::string name;        // "NVIDIA H200", "Simulated GPU"
  std::string pci_bus_id;  // "0000:19:00.0"; the order of indices
  Bytes total;
  Bytes granularity;  // of chunks
  int compute_major = 0;
  int compute_minor = 0;
  int multiprocessors = 0;  // 0: not known
  int minor = -1;           // of its device file, /dev/nvidia3; below 0: not known
  bool simulated = false;
};

/// Physical memory that this process created or imported; a handle of the backend's, not of the wire.
using MemoryHandle = Id<struct MemoryHandleTag>;

/// A descriptor of memory, which keeps the memory alive. It may be the backend's own: a caller closes only
/// duplicates of it, such as those that sending makes.
using ExportedFd = std::shared_ptr<const UniqueFd>;

/// A DeviceMemory is the memory of devices of one kind: the half of a DeviceBackend that a daemon has too.
/// `device` is an index into devices(). Two implementations stand under one contract suite (tests/contract):
/// simulated and CUDA.
///
/// Physical memory needs no context of the driver; address space does. The rules are the real driver's: a
/// mapping covers a whole chunk from its offset 0, is not accessible before SetAccess, is taken away whole,
/// and only behind the fences of its last use.
///
/// Thread-safety: all calls may come from any thread. Calls may block in the driver; hold no lock.
/// Errors: INVALID_ARGUMENT a call that is never valid; FAILED_PRECONDITION not valid now (mapped twice, not
/// mapped); NOT_FOUND unknown handle; RESOURCE_EXHAUSTED the device or machine is out of memory,
/// descriptors or mappings, and says which; INTERNAL a call that broke its promise, named with its result.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  /// The devices, ordered by pci_bus_id; constant for the backend's life.
  virtual const std::vector<PhysicalDevice>& devices() const = 0;
  /// Free memory, as the device reports it; nothing where it cannot be known.
  virtual std::optional<Bytes> FreeMemory(int device) = 0;
  /// The processes that have a context on the device, with their use of it as the device reports it. Nothing
  /// where that cannot be known.
  struct ProcessMemory {
    std::int64_t pid = 0;
    Bytes used;
  };
  virtual std::vector<ProcessMemory> ProcessesOn(int /*device*/) { return {}; }
  /// How busy the device is now, as its driver reports it; what cannot be known is absent.
  struct Load {
    std::optional<std::uint32_t> utilization_percent;  // of the time in which a kernel ran
    std::optional<std::uint32_t> temperature_celsius;
    std::optional<std::uint32_t> power_milliwatts, power_limit_milliwatts;
    std::map<std::int64_t, std::uint32_t> sm_percent;  // by pid
  };
  virtual Load LoadOf(int /*device*/) { return {}; }

  // Physical memory.
  /// Allocates at once: a machine with too little memory is RESOURCE_EXHAUSTED here and never a fault later.
  virtual absl::StatusOr<MemoryHandle> Create(int device, Bytes bytes) = 0;
  /// A descriptor that lets another process import the memory, to be sent.
  virtual absl::StatusOr<ExportedFd> Export(MemoryHandle memory) = 0;
  /// `bytes` as granted; INVALID_ARGUMENT if the descriptor is not a chunk of that size.
  virtual absl::StatusOr<MemoryHandle> Import(int device, UniqueFd fd, Bytes bytes) = 0;
  /// Drops this process's reference. FAILED_PRECONDITION while it is mapped here.
  virtual absl::Status Release(MemoryHandle memory) = 0;
  /// Drops this process's reference and makes sure, as far as the backend can, that the memory is
  /// back: OK when it is, UNAVAILABLE when another process may still pin it (the reference is gone all
  /// the same; FreeMemory tells when it comes back). After any other error the reference is still there.
  /// Simulated memory goes at once: a process that still maps it faults.
  virtual absl::Status Reclaim(MemoryHandle memory) = 0;

  // Memory that outlived the process that created it.
  /// A number by which a later process knows this memory again; 0: there is none.
  virtual std::uint64_t Identity(MemoryHandle /*memory*/) { return 0; }
  /// As Reclaim, for memories to which this process has no reference: only their identities are known. One
  /// answer each; UNAVAILABLE, naming the processes, while other processes have it.
  virtual std::vector<absl::Status> ReclaimLost(std::span<const std::uint64_t> identities) {
    return std::vector<absl::Status>(identities.size(),
                                     absl::UnavailableError("another process may still pin it"));
  }
  /// Memory of a device that a process has and `known` does not name, as (identity, pid), for a daemon that
  /// does not know an earlier one's grants. UNIMPLEMENTED where the backend can never tell,
  /// RESOURCE_EXHAUSTED where it cannot tell now.
  struct Stray {
    std::uint64_t identity = 0;
    std::int64_t pid = 0;
    Bytes bytes;
  };
  virtual absl::StatusOr<std::vector<Stray>> FindStrays(int /*device*/,
                                                        std::span<const std::uint64_t> /*known*/) {
    return absl::UnimplementedError("this backend cannot find the processes that hold memory");
  }

  // Address space: FAILED_PRECONDITION on a daemon's DeviceMemory of real GPUs.
  virtual absl::StatusOr<std::byte*> Reserve(int device, Bytes bytes) = 0;
  /// The whole range, with nothing mapped in it.
  virtual absl::Status Unreserve(std::byte* base, Bytes bytes) = 0;
  virtual absl::Status Map(std::byte* address, MemoryHandle memory) = 0;
  /// [address, address + bytes) must be made of whole mappings; one call may span many chunks.
  virtual absl::Status SetAccess(std::byte* address, Bytes bytes) = 0;
  /// Takes one whole mapping away. FAILED_PRECONDITION while queued work of any stream may use it, as far as
  /// the backend knows.
  virtual absl::Status Unmap(std::byte* address) = 0;

 protected:
  DeviceMemory() = default;
};

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_DEVICE_DEVICE_MEMORY_H_
