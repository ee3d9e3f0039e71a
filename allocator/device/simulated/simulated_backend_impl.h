#ifndef LGPU_ALLOCATOR_DEVICE_SIMULATED_SIMULATED_BACKEND_IMPL_H_
#define LGPU_ALLOCATOR_DEVICE_SIMULATED_SIMULATED_BACKEND_IMPL_H_

// The class behind MakeSimulatedBackend. Its members are defined in simulated_backend.cc (memory and
// addresses) and simulated_backend_streams.cc (streams, copies, kernels).

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "allocator/device/access_windows.h"
#include "allocator/device/handle_table.h"
#include "allocator/device/memory_table.h"
#include "allocator/device/simulated/simulated_backend.h"
#include "allocator/device/simulated/simulated_regions.h"
#include "allocator/device/simulated/simulated_stream.h"
#include "base/process_epoch.h"

namespace lgpu {

// A chunk's file, alive while an operation uses it; the chunk's handle may be gone already.
struct ChunkFile {
  UniqueFd fd;
  int device;
  Bytes bytes;
};

class SimulatedBackend final : public DeviceBackend {
 public:
  explicit SimulatedBackend(SimulatedBackendOptions options)
      : options_(std::move(options)), windows_(options_.devices.size()) {}

  ~SimulatedBackend() override {
    if (epoch_.IsForked()) {
      // A forked child has neither the regions nor the streams' threads: it gives back descriptors only.
      regions_.Forget();
      streams_.Forget();
    }
  }

  const std::vector<PhysicalDevice>& devices() const override { return options_.devices; }
  std::optional<Bytes> FreeMemory(int) override { return std::nullopt; }

  absl::StatusOr<MemoryHandle> Create(int device, Bytes bytes) override;
  absl::StatusOr<ExportedFd> Export(MemoryHandle memory) override;
  absl::StatusOr<MemoryHandle> Import(int device, UniqueFd fd, Bytes bytes) override;
  absl::Status Release(MemoryHandle memory) override;
  absl::Status Reclaim(MemoryHandle memory) override;
  std::uint64_t Identity(MemoryHandle memory) override;
  std::vector<absl::Status> ReclaimLost(std::span<const std::uint64_t> identities) override;
  absl::StatusOr<std::vector<Stray>> FindStrays(int device, std::span<const std::uint64_t> known) override;

  absl::StatusOr<std::byte*> Reserve(int device, Bytes bytes) override;
  absl::Status Unreserve(std::byte* base, Bytes bytes) override;
  absl::Status Map(std::byte* address, MemoryHandle memory) override;
  absl::Status SetAccess(std::byte* address, Bytes bytes) override;
  absl::Status Unmap(std::byte* address) override;

  absl::StatusOr<StreamHandle> CreateStream(int device, int priority) override;
  absl::StatusOr<StreamHandle> AdoptStream(int device, void* native) override;
  absl::Status DestroyStream(StreamHandle stream) override;
  absl::Status Drain(StreamHandle stream) override;
  absl::StatusOr<Fence> Record(StreamHandle stream) override;
  absl::StatusOr<bool> HasPassed(const Fence& fence) override;
  absl::Status Wait(const Fence& fence) override;
  absl::Status WaitOnStream(StreamHandle stream, const Fence& fence) override;
  absl::Status CopyToDevice(StreamHandle stream, std::byte* to, const void* from, Bytes bytes) override;
  absl::Status CopyToHost(StreamHandle stream, void* to, const std::byte* from, Bytes bytes) override;
  absl::Status CopyOnDevice(StreamHandle stream, std::byte* to, const std::byte* from, Bytes bytes) override;
  absl::Status Launch(StreamHandle stream, const KernelLaunch& launch) override;
  absl::StatusOr<std::unique_ptr<StreamTimer>> StartTimer(StreamHandle stream) override;

 private:
  struct LiveStream {
    std::shared_ptr<SimulatedStream> queue = {};  // null: all work is done, in synchronous mode always
    int device = 0;
  };

  absl::Status CheckAlive() const;
  absl::Status CheckDevice(int device) const;
  absl::Status CheckChunkSize(int device, Bytes bytes) const;
  absl::Status CheckNothingQueued(int device);
  /// Takes no lock.
  absl::Status CheckStream(StreamHandle stream) const;
  absl::StatusOr<LiveStream> FindStream(StreamHandle stream);
  absl::StatusOr<LiveStream> FindFence(const Fence& fence);

  const SimulatedBackendOptions options_;
  const ProcessEpoch epoch_;
  SimulatedRegions regions_;
  AccessWindows windows_;
  MemoryTable<ChunkFile> memory_;
  // Last: destroying a stream finishes its work, which uses the members above.
  HandleTable<StreamHandle, LiveStream, kMaxBackendStreams> streams_{kStreamWords};
};

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_DEVICE_SIMULATED_SIMULATED_BACKEND_IMPL_H_
