#ifndef LGPU_CLIENT_SESSION_LOCAL_BROKER_H_
#define LGPU_CLIENT_SESSION_LOCAL_BROKER_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "allocator/broker/trim_table.h"
#include "allocator/device/device_memory.h"
#include "allocator/ledger.h"
#include "base/mutex.h"
#include "client/session/maintenance.h"
#include "client/session/region.h"
#include "lgpu/bytes.h"
#include "lgpu/refusal.h"
#include "lgpu/region_source.h"

namespace lgpu {

/// A LocalBroker partitions the cards of one process by the Ledger, as a daemon does for all processes of a
/// machine: the same limits, guarantees, queue and refusals.
///
/// Thread-safe; no lock is held over a call of the backend.
class LocalBroker {
 public:
  struct DeviceSpec {
    int card = 0;  // in DeviceMemory::devices()
    Bytes limit = {};
    Bytes guarantee = {};  // preallocate: the limit, whatever is said here
    bool preallocate = false;
    int index = 0;  // GPU:index
  };

  /// `backend` outlives it, and so does `maintenance`, whose task does what TakeTrims says (null: no device
  /// is asked for what lies idle in it). INVALID_ARGUMENT for a card that the Ledger cannot take.
  static absl::StatusOr<std::unique_ptr<LocalBroker>> Create(DeviceMemory& backend,
                                                             MaintenanceThread* maintenance);
  /// All sources are gone.
  ~LocalBroker();
  LocalBroker(const LocalBroker&) = delete;
  LocalBroker& operator=(const LocalBroker&) = delete;

  /// Sets the guarantee aside and, for preallocate, makes all chunks. INVALID_ARGUMENT: a size that can never
  /// be; RESOURCE_EXHAUSTED with a Refusal.
  absl::StatusOr<LogicalId> AddDevice(const DeviceSpec& spec);
  /// A new limit of a growing device; no guarantee: it keeps its own, as far as the limit allows. Errors as
  /// AddDevice; FAILED_PRECONDITION for a preallocated device, whose chunks are made once.
  absl::Status Resize(LogicalId device, Bytes limit, std::optional<Bytes> guarantee);
  Bytes limit(LogicalId device) const;
  /// The same, to be read without a lock; it lives as long as the broker.
  const std::atomic<std::uint64_t>& limit_cell(LogicalId device) const;
  Bytes held(LogicalId device) const;

  /// As RegionSource::Grow; the chunks are the caller's until Return.
  absl::StatusOr<std::vector<Region::Held>> Grow(LogicalId device, const GrowRequest& request);
  /// Takes unmapped chunks back. After an error they are charged still, and each later Grow and Return tries
  /// again.
  absl::Status Return(LogicalId device, std::span<const Region::Held> chunks);

  /// Another device is short of the card: GPU:`index` is to return what lies idle in it, and to say when it
  /// did.
  struct TrimOrder {
    TrimId id;
    int index = 0;
    Bytes bytes;
  };
  std::vector<TrimOrder> TakeTrims();
  /// `pending`: more is idle but for work of the device that still uses it.
  void Trimmed(TrimId id, bool pending);

  /// The Ledger's, and that nobody holds anything: what must be so when all sources are gone.
  absl::Status CheckAllReturned() const;

 private:
  using TimePoint = std::chrono::steady_clock::time_point;
  enum class Outcome { kPending, kGranted, kOverLimit, kDeadlock };
  struct Device {
    DeviceSpec spec;
    std::vector<Region::Held> stock;  // preallocated, in nobody's hands
    std::unique_ptr<std::atomic<std::uint64_t>> limit_cell = {};
  };

  struct Waiter {
    LogicalId device;
    Bytes bytes;
    TrimTable::Need need = {};
    Outcome outcome = Outcome::kPending;
  };

  struct Leaving {
    LogicalId device;
    Region::Held held;
  };

  LocalBroker(DeviceMemory& backend, MaintenanceThread* maintenance)
      : backend_(backend), maintenance_(maintenance) {}
  /// Chunks out of the stock of a preallocated device, charged; empty: there is not enough.
  std::vector<Region::Held> TakeStock(LogicalId id, Device& device, const GrowRequest& request)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Charges at_least or more, after waiting where that helps; says how much.
  absl::StatusOr<Bytes> Charge(LogicalId id, const Device& device, const GrowRequest& request)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Outcome WaitInQueue(LogicalId id, Bytes bytes, TimePoint deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Serves those who wait for memory of the card, after any change.
  void Serve(CardId card) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Refuse(RefusalReason reason, LogicalId id, const DeviceSpec& spec, Bytes asked,
                      std::chrono::nanoseconds waited) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // local_broker_trims.cc.
  /// Devices whose idle memory the card would get back.
  std::vector<TrimTable::Holder> CardHolders(CardId card, LogicalId except) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// For the head of the card's queue.
  void AskForCard(CardId card) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// The head of the card's queue may still get what another device has idle.
  bool CardIsHopeful(CardId card) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Drops the memory of what was returned, and keeps in leaving_ what cannot be dropped now.
  absl::Status Reclaim(std::vector<Leaving> leaving) ABSL_LOCKS_EXCLUDED(mutex_);
  /// Tries again.
  void ReclaimLeftovers() ABSL_LOCKS_EXCLUDED(mutex_);
  /// Makes chunks of `bytes` in all; on an error none is left. What goes beyond `at_least` is in small ones:
  /// it may have to go again.
  absl::StatusOr<std::vector<Region::Held>> CreateChunks(int card, Bytes at_least, Bytes bytes);
  /// A backend's error as a refusal, where it is one of memory.
  absl::Status BackendRefusal(const absl::Status& status, const DeviceSpec& spec, Bytes asked) const;
  Refusal MakeRefusal(RefusalReason reason, const DeviceSpec& spec, Bytes asked) const;
  static void AddCardNumbers(Refusal& refusal, const Ledger::CardView& card);

  DeviceMemory& backend_;
  MaintenanceThread* const maintenance_;
  mutable Mutex mutex_;
  CondVar changed_;
  Ledger ledger_ ABSL_GUARDED_BY(mutex_);
  std::vector<CardId> cards_ ABSL_GUARDED_BY(mutex_);  // by index in the backend
  std::unordered_map<LogicalId, Device> devices_ ABSL_GUARDED_BY(mutex_);
  std::unordered_map<WaiterId, Waiter> waiters_ ABSL_GUARDED_BY(mutex_);
  std::vector<Leaving> leaving_ ABSL_GUARDED_BY(mutex_);  // charged as such
  TrimTable trims_ ABSL_GUARDED_BY(mutex_);
  std::uint64_t next_chunk_ ABSL_GUARDED_BY(mutex_) = 1;
};

}  // namespace lgpu

#endif  // LGPU_CLIENT_SESSION_LOCAL_BROKER_H_
