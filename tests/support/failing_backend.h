#ifndef LGPU_TESTS_SUPPORT_FAILING_BACKEND_H_
#define LGPU_TESTS_SUPPORT_FAILING_BACKEND_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "allocator/device/device_backend.h"

namespace lgpu {

/// A FaultPlan counts calls and says which one is to fail. Thread-safe.
class FaultPlan {
 public:
  static constexpr std::uint64_t kNever = std::numeric_limits<std::uint64_t>::max();

  /// Counting starts again, and the n-th call from here (1, 2, ...) fails.
  void FailCall(std::uint64_t n) {
    calls_ = 0;
    failing_ = n;
  }
  /// As FailCall, and every later one fails as well.
  void FailFrom(std::uint64_t n) {
    FailCall(n);
    lasting_ = true;
  }
  void Heal() {
    failing_ = kNever;
    lasting_ = false;
  }
  /// How many calls were seen since FailCall.
  std::uint64_t calls() const { return calls_; }
  bool has_failed() const { return calls_ >= failing_; }
  /// Counts one call; true if it is to fail.
  bool Next() {
    const std::uint64_t call = ++calls_;
    return call == failing_ || (lasting_ && call > failing_);
  }

 private:
  std::atomic<std::uint64_t> calls_{0};
  std::atomic<std::uint64_t> failing_{kNever};
  std::atomic<bool> lasting_{false};
};

/// A FailingBackend passes calls on to another backend, but the n-th fallible one fails before anything
/// happens. Sweeps use it: "fail the n-th call for n = 1, 2, ... until the first clean pass". Release,
/// Reclaim, Unreserve, Unmap and DestroyStream are counted and can fail only if `cleanup_fails`.
class FailingBackend final : public DeviceBackend {
 public:
  struct Options {
    absl::StatusCode code = absl::StatusCode::kInternal;
    bool cleanup_fails = false;
    std::function<void()> before_create = {};  // runs at the start of each Create
    /// CallLibrary has a library, whose work is counted after this was called.
    std::function<void()> before_library_counts = {};
  };
  FailingBackend(std::unique_ptr<DeviceBackend> backend, Options options)
      : backend_(std::move(backend)), options_(std::move(options)) {}
  explicit FailingBackend(std::unique_ptr<DeviceBackend> backend)
      : FailingBackend(std::move(backend), Options()) {}

  FaultPlan& faults() { return faults_; }

  const std::vector<PhysicalDevice>& devices() const override { return backend_->devices(); }
  std::optional<Bytes> FreeMemory(int device) override { return backend_->FreeMemory(device); }
  absl::StatusOr<MemoryHandle> Create(int device, Bytes bytes) override;
  absl::StatusOr<ExportedFd> Export(MemoryHandle memory) override;
  absl::StatusOr<MemoryHandle> Import(int device, UniqueFd fd, Bytes bytes) override;
  absl::Status Release(MemoryHandle memory) override;
  absl::Status Reclaim(MemoryHandle memory) override;
  std::uint64_t Identity(MemoryHandle memory) override { return backend_->Identity(memory); }
  std::vector<absl::Status> ReclaimLost(std::span<const std::uint64_t> identities) override {
    return backend_->ReclaimLost(identities);
  }
  absl::StatusOr<std::vector<Stray>> FindStrays(int device, std::span<const std::uint64_t> known) override {
    return backend_->FindStrays(device, known);
  }
  absl::StatusOr<std::byte*> Reserve(int device, Bytes bytes) override;
  absl::Status Unreserve(std::byte* base, Bytes bytes) override;
  absl::Status Map(std::byte* address, MemoryHandle memory) override;
  absl::Status SetAccess(std::byte* address, Bytes bytes) override;
  absl::Status Unmap(std::byte* address) override;
  absl::StatusOr<StreamHandle> CreateStream(int device, int priority) override;
  absl::StatusOr<StreamHandle> AdoptStream(int device, void* native) override {
    return backend_->AdoptStream(device, native);
  }
  absl::Status DestroyStream(StreamHandle stream) override;
  absl::Status Drain(StreamHandle stream) override { return backend_->Drain(stream); }
  absl::StatusOr<Fence> Record(StreamHandle stream) override;
  absl::StatusOr<bool> HasPassed(const Fence& fence) override;
  absl::Status Wait(const Fence& fence) override;
  absl::Status WaitOnStream(StreamHandle stream, const Fence& fence) override;
  absl::Status CopyToDevice(StreamHandle stream, std::byte* to, const void* from, Bytes bytes) override;
  absl::Status CopyToHost(StreamHandle stream, void* to, const std::byte* from, Bytes bytes) override;
  absl::Status CopyOnDevice(StreamHandle stream, std::byte* to, const std::byte* from, Bytes bytes) override;
  absl::Status Launch(StreamHandle stream, const KernelLaunch& launch) override;
  absl::StatusOr<std::unique_ptr<StreamTimer>> StartTimer(StreamHandle stream) override;
  absl::Status CallLibrary(StreamHandle stream, absl::FunctionRef<absl::Status(void* stream)> call) override;

 private:
  absl::Status Fault(const char* call);
  absl::Status CleanupFault(const char* call);

  const std::unique_ptr<DeviceBackend> backend_;
  const Options options_;
  FaultPlan faults_;
};

}  // namespace lgpu

#endif  // LGPU_TESTS_SUPPORT_FAILING_BACKEND_H_
