#ifndef LGPU_CLIENT_SESSION_MEMORY_SESSION_H_
#define LGPU_CLIENT_SESSION_MEMORY_SESSION_H_

#include <chrono>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "base/process_epoch.h"
#include "client/session/device_pool.h"
#include "client/session/lease.h"
#include "client/session/maintenance.h"
#include "client/session/snapshot_answers.h"

namespace lgpu {

/// A MemorySession is a lease and the DevicePool of each of its devices. On the lease's background thread
/// it answers trims and maintains the pools, from StartUpkeep on.
///
/// Thread-safe, except StartUpkeep and Close, which run one at a time. It owns the lease. In a forked child
/// nothing of it may be used, and its destructor only forgets.
class MemorySession {
 public:
  explicit MemorySession(std::unique_ptr<Lease> lease);
  /// Closes the parts that are still open.
  ~MemorySession();
  MemorySession(const MemorySession&) = delete;
  MemorySession& operator=(const MemorySession&) = delete;

  Lease& lease() { return *lease_; }
  const Lease& lease() const { return *lease_; }
  /// Of lease().devices()[i]; until Close.
  DevicePool& memory(int i) { return *memories_[static_cast<std::size_t>(i)]; }

  /// `also` is done by the same thread, and is called at least as often. Without devices there is no thread.
  void StartUpkeep(Maintenance::Task also = {});
  /// Trims are answered no more when this returns.
  void StopUpkeep() { lease_->StopMaintenance(); }
  /// Gives all memory back, and then closes the lease. All streams are removed or have done their work.
  /// UNAVAILABLE: lgpud is away, and is told of the end when it is back; a repeated Close has the result.
  absl::Status Close();

 private:
  std::optional<Maintenance::TimePoint> Upkeep(Maintenance::TimePoint now);
  /// Between two attempts to send a page that the daemon did not take.
  static constexpr std::chrono::milliseconds kSendAgain{200};
  void AnswerTrims();
  void AnswerSnapshots();
  void SendPage();

  const ProcessEpoch epoch_;
  std::unique_ptr<Lease> lease_;  // constant until the destructor
  std::vector<std::unique_ptr<DevicePool>> memories_;
  SnapshotAnswers snapshots_;                 // of the background thread
  std::optional<wire::SnapshotPage> unsent_;  // of the same thread
  bool closed_ = false;                       // Close was called
};

}  // namespace lgpu

#endif  // LGPU_CLIENT_SESSION_MEMORY_SESSION_H_
