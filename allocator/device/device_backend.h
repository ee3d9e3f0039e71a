#ifndef LGPU_ALLOCATOR_DEVICE_DEVICE_BACKEND_H_
#define LGPU_ALLOCATOR_DEVICE_DEVICE_BACKEND_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "allocator/device/stream_timer.h"
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
  bool simulated = false;
};

/// Physical memory that this process created or imported; a handle of the backend's, not of the wire.
using MemoryHandle = Id<struct MemoryHandleTag>;
using StreamHandle = Id<struct StreamTag>;

/// A point in a stream: it has passed when all work queued before it is done.
struct Fence {
  StreamHandle stream;
  std::uint64_t sequence = 0;
};

/// A kernel of GPUs: the function `name` in `image`, a fat binary in the program. Constant tables of a
/// program; a backend loads an image once per device, at the first launch of a kernel in it, and knows both
/// by address.
struct DeviceKernel {
  const void* image = nullptr;
  const char* name = nullptr;
};

/// A kernel to run on a stream. One of the two halves is used: a simulated device runs
/// `host_function(arguments)`, a GPU `device_kernel` with `arguments` as its parameter block.
struct KernelLaunch {
  void (*host_function)(const void* arguments) = nullptr;
  const DeviceKernel* device_kernel = nullptr;
  std::uint32_t grid[3] = {1, 1, 1};
  std::uint32_t block[3] = {1, 1, 1};
  std::uint32_t shared_bytes = 0;
  const void* arguments = nullptr;  // copied where the launch is queued
  std::size_t argument_bytes = 0;   // at most kMaxArgumentBytes, trivially copyable
  static constexpr std::size_t kMaxArgumentBytes = 4096;
};

/// A descriptor of memory, which keeps the memory alive. It may be the backend's own: only duplicates, as
/// sending makes one, are a caller's to close.
using ExportedFd = std::shared_ptr<const UniqueFd>;

/// A DeviceBackend is the only way to touch devices of one kind. `device` is an index into
/// devices(). Two implementations stand under one contract suite (tests/contract): simulated and
/// CUDA.
///
/// The half under "physical memory" needs no context and is all that a daemon uses; the rest is for
/// clients. The rules are the real driver's: a mapping covers a whole chunk from its offset 0, is
/// not accessible before SetAccess, is taken away whole, and only behind the fences of its last use.
///
/// Thread-safety: all calls may come from any thread. Calls may block in the driver; hold no lock.
/// Errors: INVALID_ARGUMENT wrong whatever the state; FAILED_PRECONDITION wrong now (mapped twice, not
/// mapped); NOT_FOUND unknown handle; RESOURCE_EXHAUSTED the device or machine is out of memory,
/// descriptors or mappings, and says which; INTERNAL a call that broke its promise, named with its result.
class DeviceBackend {
 public:
  virtual ~DeviceBackend() = default;
  DeviceBackend(const DeviceBackend&) = delete;
  DeviceBackend& operator=(const DeviceBackend&) = delete;

  /// The devices, ordered by pci_bus_id; constant for the backend's life.
  virtual const std::vector<PhysicalDevice>& devices() const = 0;
  /// Memory that nobody uses, as the device reports it; nothing where it cannot be known.
  virtual std::optional<Bytes> FreeMemory(int device) = 0;
  /// The processes that have a context on the device, with what they use of it as the device reports it.
  /// Nothing where that cannot be known.
  struct ProcessMemory {
    std::int64_t pid = 0;
    Bytes used;
  };
  virtual std::vector<ProcessMemory> ProcessesOn(int /*device*/) { return {}; }

  // Physical memory.
  /// Really allocates; a machine without that much is RESOURCE_EXHAUSTED here and never a fault later.
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
  /// Simulated memory goes at once: whoever still maps it faults.
  virtual absl::Status Reclaim(MemoryHandle memory) = 0;

  // Memory that outlived the process that created it.
  /// A number by which a later process knows this memory again; 0: there is none.
  virtual std::uint64_t Identity(MemoryHandle /*memory*/) { return 0; }
  /// As Reclaim, for memories to which this process has no reference: only their identities are known. One
  /// answer each; UNAVAILABLE, naming the processes, while others have it.
  virtual std::vector<absl::Status> ReclaimLost(std::span<const std::uint64_t> identities) {
    return std::vector<absl::Status>(identities.size(),
                                     absl::UnavailableError("another process may still pin it"));
  }
  /// Memory of a device that some process has, and that `known` does not name: (identity, pid) for each. For
  /// a daemon that does not know what an earlier one granted. UNIMPLEMENTED where that can never be told,
  /// RESOURCE_EXHAUSTED where it cannot now.
  struct Stray {
    std::uint64_t identity = 0;
    std::int64_t pid = 0;
    Bytes bytes;
  };
  virtual absl::StatusOr<std::vector<Stray>> FindStrays(int /*device*/,
                                                        std::span<const std::uint64_t> /*known*/) {
    return absl::UnimplementedError("this backend cannot tell who has memory");
  }

  // Address space.
  virtual absl::StatusOr<std::byte*> Reserve(int device, Bytes bytes) = 0;
  /// The whole range, with nothing mapped in it.
  virtual absl::Status Unreserve(std::byte* base, Bytes bytes) = 0;
  virtual absl::Status Map(std::byte* address, MemoryHandle memory) = 0;
  /// [address, address + bytes) must be made of whole mappings; one call may span many chunks.
  virtual absl::Status SetAccess(std::byte* address, Bytes bytes) = 0;
  /// One whole mapping. FAILED_PRECONDITION while queued work of any stream may use it, where that is
  /// known.
  virtual absl::Status Unmap(std::byte* address) = 0;

  // Streams, copies, kernels. All are ordered on their stream.
  virtual absl::StatusOr<StreamHandle> CreateStream(int device, int priority) = 0;
  virtual absl::Status DestroyStream(StreamHandle stream) = 0;
  /// Waits until the stream has done all that was queued on it. Makes nothing that it could lack: for who
  /// cannot record a fence.
  virtual absl::Status Drain(StreamHandle stream) = 0;
  virtual absl::StatusOr<Fence> Record(StreamHandle stream) = 0;
  virtual absl::StatusOr<bool> HasPassed(const Fence& fence) = 0;
  virtual absl::Status Wait(const Fence& fence) = 0;
  /// Work queued on `stream` after this waits for `fence` of another one.
  virtual absl::Status WaitOnStream(StreamHandle stream, const Fence& fence) = 0;
  /// `from` may be reused when this returns.
  virtual absl::Status CopyToDevice(StreamHandle stream, std::byte* to, const void* from, Bytes bytes) = 0;
  /// Returns when `to` is written.
  virtual absl::Status CopyToHost(StreamHandle stream, void* to, const std::byte* from, Bytes bytes) = 0;
  /// `stream` is of the device that has `to`; `from` may be memory of another one. Where it is, the caller
  /// orders the copy with the other device's streams as it does with any (Record, WaitOnStream), and keeps
  /// that memory mapped and as it is until the copy is done.
  virtual absl::Status CopyOnDevice(StreamHandle stream, std::byte* to, const std::byte* from,
                                    Bytes bytes) = 0;
  virtual absl::Status Launch(StreamHandle stream, const KernelLaunch& launch) = 0;
  /// Its first point is behind all that was queued until now.
  virtual absl::StatusOr<std::unique_ptr<StreamTimer>> StartTimer(StreamHandle stream) = 0;
  /// For a library of the GPU's vendor, which queues its work itself: calls `call` once with the driver's
  /// stream, whose context is current meanwhile; its status. What it queued is ordered as a launch is.
  /// UNIMPLEMENTED where devices are not real.
  virtual absl::Status CallLibrary(StreamHandle /*stream*/,
                                   absl::FunctionRef<absl::Status(void* stream)> /*call*/) {
    return absl::UnimplementedError("only a real GPU has libraries");
  }

 protected:
  DeviceBackend() = default;
};

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_DEVICE_DEVICE_BACKEND_H_
