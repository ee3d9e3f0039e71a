#ifndef LGPU_CLIENT_SESSION_SPLIT_LEASE_H_
#define LGPU_CLIENT_SESSION_SPLIT_LEASE_H_

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "client/session/lease.h"
#include "client/session/part_source.h"
#include "lgpu/bytes.h"

namespace lgpu {

/// A SplitLease is a lease whose logical devices this process has split into parts of its own: a program
/// inside a lease (`lgpu run`) has virtual GPUs there as it has on a card. Neither lgpud nor other programs
/// see the parts; to them all chunks are the lease's device's. The limits of a device's parts together are
/// within the device's limit, so no part takes what another one was promised. Thread-safe.
class SplitLease final : public Lease {
 public:
  /// A logical device of the new lease.
  struct Part {
    int of = 0;  // in devices() of the lease that is split
    std::optional<Bytes> limit =
        {};                    // nothing: the device's, as it stands; then it is the device's only part
    bool preallocate = false;  // takes the memory of its limit at once
  };

  /// Takes `whole` over, with all of its sources. Preallocating waits up to `timeout` for memory.
  /// INVALID_ARGUMENT: the parts of a device are more than its limit. RESOURCE_EXHAUSTED: memory for
  /// preallocated parts is not to be had.
  static absl::StatusOr<std::unique_ptr<Lease>> Open(std::unique_ptr<Lease> whole, std::vector<Part> parts,
                                                     std::chrono::nanoseconds timeout);
  ~SplitLease() override;

  const std::string& id() const override { return whole_->id(); }
  const std::string& name() const override { return whole_->name(); }
  const std::vector<LeasedDevice>& devices() const override { return devices_; }
  DeviceBackend& backend() override { return whole_->backend(); }
  std::unique_ptr<RegionSource> TakeSource(int i) override;
  void StartMaintenance(Maintenance::Task task) override { whole_->StartMaintenance(std::move(task)); }
  void WakeMaintenance() override { whole_->WakeMaintenance(); }
  void StopMaintenance() override { whole_->StopMaintenance(); }
  std::vector<TrimOrder> TakeTrims() override { return whole_->TakeTrims(); }
  void AnswerTrim(const TrimOrder& order, bool pending) override { whole_->AnswerTrim(order, pending); }
  std::vector<wire::Snapshot> TakeSnapshots() override { return whole_->TakeSnapshots(); }
  absl::Status AnswerSnapshot(const wire::SnapshotPage& page) override {
    return whole_->AnswerSnapshot(page);
  }
  ClientPage& page() override { return whole_->page(); }
  /// Within the limit of the lease's device, and not for preallocated parts; a part has no guarantee of its
  /// own.
  absl::Status Resize(int i, Bytes limit, std::optional<Bytes> guarantee) override;
  absl::Status BeginSuspension(Bytes bytes) override { return whole_->BeginSuspension(bytes); }
  absl::Status EndSuspension(std::chrono::nanoseconds timeout) override {
    return whole_->EndSuspension(timeout);
  }
  bool HasSuspensionOrders() const override { return whole_->HasSuspensionOrders(); }
  std::vector<SuspensionOrder> TakeSuspensionOrders() override { return whole_->TakeSuspensionOrders(); }
  absl::Status AnswerSuspension(const SuspensionOrder& order, const absl::Status& status,
                                const std::map<LogicalId, Bytes>& needs) override {
    return whole_->AnswerSuspension(order, status, needs);
  }
  void NoteSuspended(bool is_suspended) override { whole_->NoteSuspended(is_suspended); }
  void NoteUse() override { whole_->NoteUse(); }
  absl::Status Close() override;
  absl::Status status() const override { return whole_->status(); }

  /// The error of a part that is to have a guarantee.
  static absl::Status NoGuarantee();

 private:
  SplitLease(std::unique_ptr<Lease> whole, std::vector<Part> parts);
  absl::Status CheckParts(int of) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status MakeSources(std::chrono::nanoseconds timeout) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::unique_ptr<Lease> whole_;
  std::vector<LeasedDevice> devices_;  // constant after Open
  mutable Mutex mutex_;
  std::vector<Part> parts_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::weak_ptr<RegionSource>> wholes_ ABSL_GUARDED_BY(mutex_);  // of the devices that are split
  std::vector<std::shared_ptr<PartLimit>> limits_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<PartSource>> sources_ ABSL_GUARDED_BY(mutex_);  // null: taken
};

}  // namespace lgpu

#endif  // LGPU_CLIENT_SESSION_SPLIT_LEASE_H_
