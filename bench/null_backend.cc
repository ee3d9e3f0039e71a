#include "bench/null_backend.h"

#include <sys/mman.h>

#include <atomic>
#include <memory>
#include <utility>

namespace lgpu::bench {
namespace {

absl::Status NotHere() {
  return absl::UnimplementedError("the null backend has no memory; it serves a daemon only");
}

class NullBackend final : public DeviceMemory {
 public:
  explicit NullBackend(UniqueFd memory) : memory_(std::make_shared<const UniqueFd>(std::move(memory))) {}

  const std::vector<PhysicalDevice>& devices() const override { return devices_; }
  std::optional<Bytes> FreeMemory(int) override { return devices_.front().total; }

  absl::StatusOr<MemoryHandle> Create(int, Bytes) override {
    return MemoryHandle{last_.fetch_add(1, std::memory_order_relaxed) + 1};
  }
  absl::StatusOr<ExportedFd> Export(MemoryHandle) override { return memory_; }
  absl::Status Release(MemoryHandle) override { return absl::OkStatus(); }
  absl::Status Reclaim(MemoryHandle) override { return absl::OkStatus(); }

  absl::StatusOr<MemoryHandle> Import(int, UniqueFd, Bytes) override { return NotHere(); }
  absl::StatusOr<std::byte*> Reserve(int, Bytes) override { return NotHere(); }
  absl::Status Unreserve(std::byte*, Bytes) override { return NotHere(); }
  absl::Status Map(std::byte*, MemoryHandle) override { return NotHere(); }
  absl::Status SetAccess(std::byte*, Bytes) override { return NotHere(); }
  absl::Status Unmap(std::byte*) override { return NotHere(); }

 private:
  const ExportedFd memory_;
  const std::vector<PhysicalDevice> devices_ = {{.uuid = "GPU-00000000-0000-0000-0000-000000000000",
                                                 .name = "Null GPU",
                                                 .pci_bus_id = "0000:00:00.0",
                                                 .total = 1024_GiB,
                                                 .granularity = 2_MiB,
                                                 .simulated = true}};
  std::atomic<std::uint64_t> last_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceMemory>> MakeNullBackend() {
  UniqueFd memory(::memfd_create("lgpu-bench", MFD_CLOEXEC));
  if (!memory) return absl::InternalError("memfd_create gave nothing");
  return std::make_unique<NullBackend>(std::move(memory));
}

}  // namespace lgpu::bench
