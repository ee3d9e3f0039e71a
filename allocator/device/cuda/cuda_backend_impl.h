#ifndef LGPU_ALLOCATOR_DEVICE_CUDA_CUDA_BACKEND_IMPL_H_
#define LGPU_ALLOCATOR_DEVICE_CUDA_CUDA_BACKEND_IMPL_H_

// The class behind OpenCudaBackend and OpenCudaMemory. Its members are defined in cuda_backend.cc (memory and
// addresses), cuda_backend_streams.cc (contexts, streams, kernels) and cuda_backend_copies.cc.

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "allocator/device/cuda/cuda_backend.h"
#include "allocator/device/cuda/cuda_driver.h"
#include "allocator/device/cuda/cuda_staging.h"
#include "allocator/device/cuda/cuda_stream.h"
#include "allocator/device/handle_table.h"
#include "allocator/device/mapped_ranges.h"
#include "allocator/device/memory_table.h"
#include "base/mutex.h"
#include "base/process_epoch.h"

namespace lgpu {

inline CUdeviceptr Address(const std::byte* pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }

// A handle of the driver's, released with its last user.
class CudaChunk {
 public:
  CudaChunk(const CudaDriver& driver, CUmemGenericAllocationHandle handle, int of_device, Bytes size)
      : device(of_device), bytes(size), driver_(driver), handle_(handle) {}
  ~CudaChunk() { Free().IgnoreError(); }
  CudaChunk(const CudaChunk&) = delete;
  CudaChunk& operator=(const CudaChunk&) = delete;

  CUmemGenericAllocationHandle handle() const { return handle_; }
  absl::Status Free() {
    const CUmemGenericAllocationHandle handle = std::exchange(handle_, 0);
    return handle == 0 ? absl::OkStatus() : driver_.Check("cuMemRelease", driver_.MemRelease(handle));
  }

  const int device;
  const Bytes bytes;

 private:
  const CudaDriver& driver_;
  CUmemGenericAllocationHandle handle_;
};

class CudaBackend final : public DeviceBackend {
 public:
  struct Gpu {
    PhysicalDevice about;
    CUdevice device = 0;
    /// The device reads the host's pageable memory itself, when the copy runs.
    bool reads_pageable = false;
  };
  /// kNever: address space is FAILED_PRECONDITION.
  enum class Context { kOnDemand, kNever };
  CudaBackend(const CudaDriver& driver, const std::vector<Gpu>& gpus, Context context,
              std::shared_ptr<Nvml> nvml);
  ~CudaBackend() override;

  const std::vector<PhysicalDevice>& devices() const override { return devices_; }
  std::optional<Bytes> FreeMemory(int device) override;
  std::vector<ProcessMemory> ProcessesOn(int device) override;
  Load LoadOf(int device) override;

  absl::StatusOr<MemoryHandle> Create(int device, Bytes bytes) override;
  absl::StatusOr<ExportedFd> Export(MemoryHandle memory) override;
  absl::StatusOr<MemoryHandle> Import(int device, UniqueFd fd, Bytes bytes) override;
  absl::Status Release(MemoryHandle memory) override;
  absl::Status Reclaim(MemoryHandle memory) override;

  absl::StatusOr<std::byte*> Reserve(int device, Bytes bytes) override;
  absl::Status Unreserve(std::byte* base, Bytes bytes) override;
  absl::Status Map(std::byte* address, MemoryHandle memory) override;
  absl::Status SetAccess(std::byte* address, Bytes bytes) override;
  absl::Status Unmap(std::byte* address) override;

  bool HasLostContext() const override;
  absl::StatusOr<StreamHandle> CreateStream(int device, int priority) override;
  absl::StatusOr<StreamHandle> AdoptStream(int device, void* native) override;
  absl::Status DestroyStream(StreamHandle stream) override;
  absl::Status Drain(StreamHandle stream) override;
  absl::StatusOr<Fence> Record(StreamHandle stream) override;
  absl::StatusOr<bool> HasPassed(const Fence& fence) override;
  absl::Status Wait(const Fence& fence) override;
  absl::Status WaitOnStream(StreamHandle stream, const Fence& fence) override;
  absl::Status WaitOnProgramStream(void* native, const Fence& fence) override;
  absl::Status CopyFromProgram(StreamHandle stream, std::byte* to, const std::byte* from,
                               Bytes bytes) override;
  absl::Status DrainDevice(int device) override;
  absl::Status CopyToDevice(StreamHandle stream, std::byte* to, const void* from, Bytes bytes) override;
  absl::Status CopyToHost(StreamHandle stream, void* to, const std::byte* from, Bytes bytes) override;
  absl::Status CopyOnDevice(StreamHandle stream, std::byte* to, const std::byte* from, Bytes bytes) override;
  absl::Status Launch(StreamHandle stream, const KernelLaunch& launch) override;
  absl::StatusOr<std::unique_ptr<StreamTimer>> StartTimer(StreamHandle stream) override;
  absl::Status CallLibrary(StreamHandle stream, absl::FunctionRef<absl::Status(void* stream)> call) override;

 private:
  // This process's objects on one device; `context` is null until it is needed.
  struct DeviceState {
    explicit DeviceState(const CudaDriver& driver)
        : events(driver, CudaEventPool::Timing::kOff), timing_events(driver, CudaEventPool::Timing::kOn) {}
    CUdevice device = 0;
    bool reads_pageable = false;
    std::atomic<CUcontext> context{nullptr};
    CudaEventPool events;
    CudaEventPool timing_events;
    Mutex mutex;
    absl::flat_hash_map<const DeviceImage*, CUmodule> modules ABSL_GUARDED_BY(mutex);
    absl::flat_hash_map<const DeviceKernel*, CUfunction> functions ABSL_GUARDED_BY(mutex);
    absl::flat_hash_map<int, bool> peers ABSL_GUARDED_BY(mutex);  // whether it can read that device's memory
    // A stream that empties this device's memory into buffers, for devices that cannot read it.
    std::shared_ptr<CudaStream> reader ABSL_GUARDED_BY(mutex);
  };
  // The purpose of a call of the driver, for its error.
  struct Purpose {
    std::string_view call;
    std::string_view what;
    int device = 0;
    Bytes asked;
  };

  absl::Status CheckAlive() const;
  absl::Status CheckDevice(int device) const;
  absl::Status CheckAddressSpace(int device) const;
  absl::Status CheckChunkSize(int device, Bytes bytes) const;
  /// OK, or the meaning of the result: descriptors that ran out, a full card, or a promise that was broken.
  absl::Status Explain(const Purpose& purpose, CUresult result);

  DeviceState& state(int device) { return *states_[static_cast<std::size_t>(device)]; }
  /// The primary context of the device, retained once for the backend's life.
  absl::StatusOr<CUcontext> ContextOf(int device);
  absl::StatusOr<std::shared_ptr<CudaStream>> FindStream(StreamHandle stream);
  /// A stream of the program's, which keeps it. INVALID_ARGUMENT: it is of another context.
  absl::StatusOr<std::shared_ptr<CudaStream>> ProgramStream(int device, void* native);
  absl::StatusOr<CUfunction> FunctionOf(int device, const DeviceKernel& kernel);

  absl::Status QueueOnDevice(CudaStream& stream, std::byte* to, const std::byte* from, Bytes bytes);

  // Other copies. A scope of the stream's context is open.
  absl::Status QueueToDevice(CudaStream& stream, std::byte* to, const void* from, Bytes bytes);
  absl::Status QueueToHost(CudaStream& stream, void* to, const std::byte* from, Bytes bytes);
  /// By way of a piece of `staging`, in which `bytes` has room.
  absl::Status CarryPiece(CudaStream& stream, CudaStaging& staging, std::byte* to, const void* from,
                          Bytes bytes);
  absl::Status CarryToDevice(CudaStream& stream, std::byte* to, const std::byte* from, Bytes bytes,
                             std::atomic<std::uint64_t>& next);
  absl::Status CopyToDeviceStaged(CudaStream& stream, std::byte* to, const void* from, Bytes bytes);
  absl::Status CopyToHostStaged(CudaStream& stream, void* to, const std::byte* from, Bytes bytes);
  absl::Status MarkUse(CudaStream& stream, CudaStaging::Buffer& buffer);
  absl::Status AwaitUse(CudaStaging::Buffer& buffer) const;
  absl::Status WaitOn(CudaStream& stream, const CudaStaging::Buffer& buffer) const;
  bool IsPageLocked(const void* host) const;
  /// Opens this memory of `owner` to `reader`. False: `reader` cannot read it.
  bool LetRead(int reader, int owner, const std::byte* from, Bytes bytes);
  bool IsPeer(int reader, int owner);
  absl::Status CopyBetween(CudaStream& stream, std::byte* to, int source, const std::byte* from, Bytes bytes);
  absl::Status CopyStaged(CudaStream& stream, std::byte* to, CudaStream& reader, const std::byte* from,
                          Bytes bytes);
  static absl::Status AllOrNothing(CudaStream& stream, absl::Status status);
  absl::StatusOr<std::shared_ptr<CudaStream>> ReaderOf(int device);

  void GiveEverythingBack();
  void GiveStagingBack();
  void ForgetEverything();

  const CudaDriver driver_;
  const Context context_;
  const std::shared_ptr<Nvml> nvml_;
  const ProcessEpoch epoch_;
  std::vector<PhysicalDevice> devices_;
  std::vector<std::unique_ptr<DeviceState>> states_;
  MappedRanges ranges_;
  std::unique_ptr<CudaStaging> staging_ = std::make_unique<CudaStaging>(driver_);
  /// For small uploads to devices that read pageable memory: some may wait behind kernels at a time.
  std::unique_ptr<CudaStaging> small_staging_ =
      std::make_unique<CudaStaging>(driver_, Bytes(std::uint64_t{64} << 10), 32);
  MemoryTable<CudaChunk> memory_;
  HandleTable<StreamHandle, std::shared_ptr<CudaStream>, kMaxBackendStreams> streams_{kStreamWords};
};

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_DEVICE_CUDA_CUDA_BACKEND_IMPL_H_
