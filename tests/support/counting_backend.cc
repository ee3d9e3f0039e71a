#include "tests/support/counting_backend.h"

#include <sys/mman.h>

#include <cerrno>
#include <utility>

#include "allocator/device/simulated/simulated_memory.h"

namespace lgpu::testing {

CountingBackend::CountingBackend(std::vector<Bytes> totals, Bytes granularity) : cards_(totals.size()) {
  for (std::size_t i = 0; i < totals.size(); ++i) {
    devices_.push_back(SimulatedDevice(static_cast<int>(i), totals[i], "counting"));
    devices_.back().total = totals[i];
    devices_.back().granularity = granularity;
  }
}

void CountingBackend::SetReclaiming(int device, Reclaiming reclaiming) {
  MutexLock lock(mutex_);
  Card& card = cards_.at(static_cast<std::size_t>(device));
  card.reclaiming = reclaiming;
  if (reclaiming == Reclaiming::kAtOnce) card.pinned = Bytes();
}

void CountingBackend::SetProcesses(int device, std::vector<ProcessMemory> processes) {
  MutexLock lock(mutex_);
  cards_.at(static_cast<std::size_t>(device)).processes = std::move(processes);
}

void CountingBackend::FailCreateAfter(int n) {
  MutexLock lock(mutex_);
  creates_to_failure_ = n;
}

void CountingBackend::BeforeNextCreate(std::function<void()> call) {
  MutexLock lock(mutex_);
  before_create_ = std::move(call);
}

void CountingBackend::BeforeNextReclaim(std::function<void()> call) {
  MutexLock lock(mutex_);
  before_reclaim_ = std::move(call);
}

void CountingBackend::CallOnce(std::function<void()> CountingBackend::*call) {
  std::function<void()> once;
  {
    MutexLock lock(mutex_);
    once = std::exchange(this->*call, nullptr);
  }
  if (once) once();
}

Bytes CountingBackend::InUse(int device) const {
  MutexLock lock(mutex_);
  const Card& card = cards_.at(static_cast<std::size_t>(device));
  return card.referred + card.pinned;
}

std::size_t CountingBackend::Handles() const {
  MutexLock lock(mutex_);
  return memory_.size();
}

std::optional<Bytes> CountingBackend::FreeMemory(int device) {
  Bytes used = InUse(device);
  for (const ProcessMemory& process : ProcessesOn(device)) used += process.used;
  return SaturatingSub(devices_.at(static_cast<std::size_t>(device)).total, used);
}

std::vector<DeviceMemory::ProcessMemory> CountingBackend::ProcessesOn(int device) {
  MutexLock lock(mutex_);
  return cards_.at(static_cast<std::size_t>(device)).processes;
}

absl::StatusOr<MemoryHandle> CountingBackend::Create(int device, Bytes bytes) {
  CallOnce(&CountingBackend::before_create_);
  MutexLock lock(mutex_);
  if (creates_to_failure_ >= 0 && creates_to_failure_-- == 0) {
    return absl::ResourceExhaustedError("this Create was to fail");
  }
  Card& card = cards_.at(static_cast<std::size_t>(device));
  const PhysicalDevice& limits = devices_.at(static_cast<std::size_t>(device));
  if (bytes.is_zero() || RoundDown(bytes, limits.granularity) != bytes) {
    return absl::InvalidArgumentError("not a multiple of the granularity");
  }
  if (card.referred + card.pinned + bytes > limits.total) {
    return absl::ResourceExhaustedError("the card is full");
  }
  card.referred += bytes;
  const MemoryHandle handle{++last_handle_};
  memory_.emplace(handle, Memory{device, bytes});
  return handle;
}

absl::Status CountingBackend::Release(MemoryHandle memory) {
  MutexLock lock(mutex_);
  const auto found = memory_.find(memory);
  if (found == memory_.end()) return absl::NotFoundError("no such memory");
  cards_.at(static_cast<std::size_t>(found->second.device)).referred -= found->second.bytes;
  memory_.erase(found);
  return absl::OkStatus();
}

absl::Status CountingBackend::Reclaim(MemoryHandle memory) {
  CallOnce(&CountingBackend::before_reclaim_);
  MutexLock lock(mutex_);
  const auto found = memory_.find(memory);
  if (found == memory_.end()) return absl::NotFoundError("no such memory");
  Card& card = cards_.at(static_cast<std::size_t>(found->second.device));
  if (card.reclaiming == Reclaiming::kFails) return absl::InternalError("this Reclaim was to fail");
  const Bytes bytes = found->second.bytes;
  memory_.erase(found);
  card.referred -= bytes;
  if (card.reclaiming == Reclaiming::kAtOnce) return absl::OkStatus();
  card.pinned += bytes;
  return card.reclaiming == Reclaiming::kTaken ? absl::OkStatus()
                                               : absl::UnavailableError("another process pins it");
}

absl::StatusOr<std::byte*> CountingBackend::Reserve(int, Bytes bytes) {
  void* const base =
      ::mmap(nullptr, bytes.count(), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) return absl::ErrnoToStatus(errno, "mmap");
  return static_cast<std::byte*>(base);
}

absl::Status CountingBackend::Unreserve(std::byte* base, Bytes bytes) {
  return ::munmap(base, bytes.count()) == 0 ? absl::OkStatus() : absl::ErrnoToStatus(errno, "munmap");
}

}  // namespace lgpu::testing
