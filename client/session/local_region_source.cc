#include "client/session/local_region_source.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>

#include "base/interrupt.h"
#include "base/mutex.h"
#include "client/session/fork_guard.h"
#include "client/session/maintenance.h"
#include "lgpu/status.h"

namespace lgpu {
namespace {

using Clock = std::chrono::steady_clock;

// The longest wait; a longer timeout would overflow the clock.
constexpr std::chrono::hours kLongestWait{24};
// So long after its deadline a request ticks the broker itself: the maintenance thread is busy in the driver.
constexpr std::chrono::milliseconds kLate{150};

}  // namespace

/// Counts the wakes of a source's session, for all threads that wait in Grow.
class LocalRegionSource::Wakes final : public Waker {
 public:
  explicit Wakes(MaintenanceThread* maintenance) : maintenance_(maintenance) {}

  void Wake() const override {
    {
      MutexLock lock(mutex_);
      ++count_;
      changed_.NotifyAll();
    }
    if (maintenance_ != nullptr) maintenance_->Wake();
  }
  std::uint64_t count() const {
    MutexLock lock(mutex_);
    return count_;
  }
  /// No thread ticks the broker: those that wait do.
  bool TicksItself() const { return maintenance_ == nullptr || !maintenance_->IsRunning(); }
  /// Returns when the count is not `seen` any more, at the deadline, or when the thread is interrupted now.
  void WaitWhile(std::uint64_t seen, Clock::time_point deadline) const {
    const bool was_interrupted = Interrupt::HasHappened();
    MutexLock lock(mutex_);
    while (count_ == seen && (was_interrupted ? changed_.WaitUntil(mutex_, deadline)
                                              : Interrupt::WaitUntil(changed_, mutex_, deadline))) {
    }
  }

 private:
  MaintenanceThread* const maintenance_;
  mutable Mutex mutex_;
  mutable CondVar changed_;
  mutable std::uint64_t count_ ABSL_GUARDED_BY(mutex_) = 0;
};

absl::StatusOr<std::unique_ptr<LocalRegionSource>> LocalRegionSource::Create(
    Broker& broker, DeviceMemory& backend, const std::atomic<std::uint64_t>& limit, const Options& options) {
  const Bytes granularity = backend.devices()[static_cast<std::size_t>(options.backend_device)].granularity;
  LGPU_ASSIGN_OR_RETURN(std::unique_ptr<Region> region,
                        Region::Reserve(backend, options.backend_device, granularity, Bytes(limit.load())));
  return std::unique_ptr<LocalRegionSource>(new LocalRegionSource(broker, limit, options, std::move(region)));
}

LocalRegionSource::LocalRegionSource(Broker& broker, const std::atomic<std::uint64_t>& limit,
                                     const Options& options, std::unique_ptr<Region> region)
    : broker_(broker),
      device_(options.device),
      session_(options.session),
      limit_(limit),
      region_(std::move(region)),
      wakes_(std::make_shared<Wakes>(options.maintenance)) {
  broker_.AddSession(session_, {.pid = ::getpid(), .waker = wakes_, .trims = options.maintenance != nullptr});
  broker_.AttachSession(session_, options.lease);
}

LocalRegionSource::~LocalRegionSource() {
  if (region_->IsForked()) return;
  (void)region_->TakeAll();
  broker_.ReturnAll(session_);
  // Memory that the backend does not free stays charged to the session.
  if (broker_.Held(session_).is_zero()) broker_.RemoveSession(session_);
}

absl::StatusOr<std::vector<Chunk>> LocalRegionSource::Grow(const GrowRequest& request) {
  if (region_->IsForked()) return ForkedError();
  if (request.at_least.is_zero() || RoundDown(request.at_least, granularity()) != request.at_least) {
    return absl::InvalidArgumentError("chunks come in multiples of " + FormatBytes(granularity()) +
                                      ", not zero; asked for " + std::to_string(request.at_least.count()) +
                                      " bytes");
  }
  const Clock::time_point now = Clock::now();
  const auto timeout =
      std::clamp<std::chrono::nanoseconds>(request.timeout, std::chrono::nanoseconds(0), kLongestWait);
  const Clock::time_point late = now + timeout + kLate;
  std::uint64_t seen = wakes_->count();
  Broker::Answer answer = broker_.Grow({.session = session_,
                                        .device = device_,
                                        .at_least = request.at_least,
                                        .wanted = request.wanted,
                                        .asked_at = now,
                                        .deadline = now + timeout,
                                        .ahead = request.ahead});
  while (answer.wait) {
    const bool ticks = wakes_->TicksItself() || Clock::now() >= late;
    wakes_->WaitWhile(seen, ticks ? broker_.Tick().value_or(late) : late);
    if (Interrupt::HasHappened()) broker_.Withdraw(*answer.wait);
    seen = wakes_->count();
    if (std::optional<Broker::Answer> taken = broker_.TakeAnswer(*answer.wait)) answer = *std::move(taken);
  }
  LGPU_RETURN_IF_ERROR(answer.status);
  return TakeOver(std::move(answer.chunks));
}

absl::StatusOr<std::vector<Chunk>> LocalRegionSource::TakeOver(std::vector<Chunk> chunks) {
  for (const Chunk& chunk : chunks) {
    LGPU_ASSIGN_OR_RETURN(const MemoryHandle memory, broker_.MemoryOf(session_, chunk.id));
    LGPU_RETURN_IF_ERROR(region_->Add({chunk, memory}));
  }
  return chunks;
}

absl::Status LocalRegionSource::Return(std::span<const ChunkId> chunks) {
  LGPU_RETURN_IF_ERROR(region_->Take(chunks).status());
  return chunks.empty() ? absl::OkStatus() : broker_.Return(session_, device_, chunks);
}

}  // namespace lgpu
