#ifndef LGPU_TESTS_SUPPORT_COUNTING_BACKEND_H_
#define LGPU_TESTS_SUPPORT_COUNTING_BACKEND_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <vector>

#include "allocator/device/device_memory.h"
#include "base/mutex.h"

namespace lgpu::testing {

/// A CountingBackend has cards without any memory: it only counts the memory that would exist, so that tests
/// can compare a broker's figures with it. It has physical memory (Create, Release, Reclaim, FreeMemory), and
/// addresses at which nothing can be mapped; all other calls are UNIMPLEMENTED.
///
/// Thread-safe.
class CountingBackend final : public DeviceMemory {
 public:
  /// How a card reclaims memory.
  enum class Reclaiming {
    kAtOnce,
    kFails,   // INTERNAL, and nothing happens
    kPinned,  // UNAVAILABLE: the reference goes, the memory stays until the card reclaims at once again
    kTaken,   // OK, and another program of the card takes as much at once
  };

  CountingBackend(std::vector<Bytes> totals, Bytes granularity);

  void SetReclaiming(int device, Reclaiming reclaiming);
  /// From here on the cards are not simulated ones: the broker believes their figures.
  void BecomeReal() {
    for (PhysicalDevice& device : devices_) device.simulated = false;
  }
  /// What the card's driver lists from here on. The memory of these processes is in use beside that of
  /// handles.
  void SetProcesses(int device, std::vector<ProcessMemory> processes);
  /// The (n + 1)-th Create from here is RESOURCE_EXHAUSTED; none if n is below zero.
  void FailCreateAfter(int n);
  /// `call` runs once, at the start of the next Create or Reclaim, as another thread would meanwhile.
  void BeforeNextCreate(std::function<void()> call);
  void BeforeNextReclaim(std::function<void()> call);

  /// The bytes of the card's memory that exist, pinned or referred to.
  Bytes InUse(int device) const;
  /// How many handles there are.
  std::size_t Handles() const;

  const std::vector<PhysicalDevice>& devices() const override { return devices_; }
  std::optional<Bytes> FreeMemory(int device) override;
  std::vector<ProcessMemory> ProcessesOn(int device) override;
  absl::StatusOr<MemoryHandle> Create(int device, Bytes bytes) override;
  absl::Status Release(MemoryHandle memory) override;
  absl::Status Reclaim(MemoryHandle memory) override;
  /// No process has it. Calls are counted.
  std::vector<absl::Status> ReclaimLost(std::span<const std::uint64_t> identities) override {
    ++looks_for_lost_;
    return std::vector<absl::Status>(identities.size());
  }
  int looks_for_lost() const { return looks_for_lost_; }

  absl::StatusOr<ExportedFd> Export(MemoryHandle) override { return None(); }
  absl::StatusOr<MemoryHandle> Import(int, UniqueFd, Bytes) override { return None(); }
  absl::StatusOr<std::byte*> Reserve(int device, Bytes bytes) override;
  absl::Status Unreserve(std::byte* base, Bytes bytes) override;
  absl::Status Map(std::byte*, MemoryHandle) override { return None(); }
  absl::Status SetAccess(std::byte*, Bytes) override { return None(); }
  absl::Status Unmap(std::byte*) override { return None(); }

 private:
  struct Memory {
    int device = 0;
    Bytes bytes;
  };
  struct Card {
    Bytes referred;
    Bytes pinned;
    Reclaiming reclaiming = Reclaiming::kAtOnce;
    std::vector<ProcessMemory> processes;
  };

  void CallOnce(std::function<void()> CountingBackend::*call) ABSL_LOCKS_EXCLUDED(mutex_);
  static absl::Status None() { return absl::UnimplementedError("this backend only counts memory"); }

  std::vector<PhysicalDevice> devices_;
  std::atomic<int> looks_for_lost_{0};
  mutable Mutex mutex_;
  std::vector<Card> cards_ ABSL_GUARDED_BY(mutex_);
  std::map<MemoryHandle, Memory> memory_ ABSL_GUARDED_BY(mutex_);
  std::uint64_t last_handle_ ABSL_GUARDED_BY(mutex_) = 0;
  int creates_to_failure_ ABSL_GUARDED_BY(mutex_) = -1;
  std::function<void()> before_create_ ABSL_GUARDED_BY(mutex_);
  std::function<void()> before_reclaim_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace lgpu::testing

#endif  // LGPU_TESTS_SUPPORT_COUNTING_BACKEND_H_
