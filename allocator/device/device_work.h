#ifndef LGPU_ALLOCATOR_DEVICE_DEVICE_WORK_H_
#define LGPU_ALLOCATOR_DEVICE_DEVICE_WORK_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "allocator/device/stream_timer.h"
#include "lgpu/bytes.h"
#include "lgpu/id.h"

namespace lgpu {

using StreamHandle = Id<struct StreamTag>;

/// A point in a stream: it has passed when all work queued before it is done.
struct Fence {
  StreamHandle stream;
  std::uint64_t sequence = 0;
};

/// Kernels of GPUs, compiled together, in the two forms in which a program has them.
struct DeviceImage {
  const void* machine_code = nullptr;  // a fat binary: for some architectures, and drivers of its own age
  const void* ptx = nullptr;           // text that ends with a zero: drivers compile it for any GPU
};

/// A kernel of GPUs: the function `name` in `image`. Constant tables of a program; a backend loads an image
/// once per device, at the first launch of a kernel in it, and knows both by address.
struct DeviceKernel {
  const DeviceImage* image = nullptr;
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

/// A DeviceWork runs the work of devices of one kind: streams, and the copies, kernels and fences that are
/// ordered on them. It is the half of a DeviceBackend that only programs have. `device` is an index into
/// DeviceMemory::devices(). Thread-safety and errors are those of DeviceMemory.
class DeviceWork {
 public:
  virtual ~DeviceWork() = default;
  DeviceWork(const DeviceWork&) = delete;
  DeviceWork& operator=(const DeviceWork&) = delete;

  /// A fault has ended the program's use of the devices: every later call fails until the program is
  /// restarted.
  virtual bool HasLostContext() const { return false; }

  virtual absl::StatusOr<StreamHandle> CreateStream(int device, int priority) = 0;
  /// A handle of a stream that belongs to the program, not to this object. `native` is the CUstream of a real
  /// GPU, in the device's primary context: null or 1 is the legacy default stream, 2 the calling thread's own
  /// default stream. A simulated device has no streams of the program: work on such a handle runs at once,
  /// and WaitOnStream blocks until the fence has passed. (In asynchronous mode `native` is the number of a
  /// StreamHandle.) INVALID_ARGUMENT: a stream of another context.
  virtual absl::StatusOr<StreamHandle> AdoptStream(int device, void* native) = 0;
  /// An adopted stream loses its handle and stays.
  virtual absl::Status DestroyStream(StreamHandle stream) = 0;
  /// Waits until the stream has done all work queued on it. Allocates nothing: for callers that
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
  /// The timer's first point is behind all work queued until now.
  virtual absl::StatusOr<std::unique_ptr<StreamTimer>> StartTimer(StreamHandle stream) = 0;
  /// For a library of the GPU's vendor, which queues its work itself: calls `call` once with the driver's
  /// stream, whose context is current meanwhile, and returns its status. The library's work is ordered like a
  /// launch. UNIMPLEMENTED where devices are not real.
  virtual absl::Status CallLibrary(StreamHandle /*stream*/,
                                   absl::FunctionRef<absl::Status(void* stream)> /*call*/) {
    return absl::UnimplementedError("only a real GPU has libraries");
  }

  // Work of the program beside this object, on streams and in memory of its own. UNIMPLEMENTED where devices
  // are not real.

  /// What the program queues from now on on `native`, a stream as AdoptStream takes it, waits for `fence` of
  /// a stream of the same device. The stream gets no handle, and may be destroyed at any time after the call.
  virtual absl::Status WaitOnProgramStream(void* /*native*/, const Fence& /*fence*/) {
    return absl::UnimplementedError("only a real GPU has streams of the program's own");
  }
  /// As CopyOnDevice, from memory of the same device that the program has of the driver.
  virtual absl::Status CopyFromProgram(StreamHandle /*stream*/, std::byte* /*to*/, const std::byte* /*from*/,
                                       Bytes /*bytes*/) {
    return absl::UnimplementedError("only a real GPU has memory of the program's own");
  }
  /// Waits until the device has done all that this program has queued on any stream of its primary context.
  virtual absl::Status DrainDevice(int /*device*/) {
    return absl::UnimplementedError("only a real GPU has streams of the program's own");
  }

 protected:
  DeviceWork() = default;
};

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_DEVICE_DEVICE_WORK_H_
