#ifndef LGPU_CLIENT_RUNTIME_LOCAL_LEASE_H_
#define LGPU_CLIENT_RUNTIME_LOCAL_LEASE_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "allocator/device/device_backend.h"
#include "base/mutex.h"
#include "base/process_epoch.h"
#include "client/runtime/device_choice.h"
#include "client/runtime/lease.h"
#include "client/session/endpoint.h"
#include "client/session/local_broker.h"

namespace lgpu {

/// A LocalLease is a Lease without a daemon: this process alone partitions its cards, by the same Ledger.
class LocalLease final : public Lease {
 public:
  /// `endpoint.local` holds. FAILED_PRECONDITION where there is no GPU and none is to be simulated.
  static absl::StatusOr<std::unique_ptr<Lease>> Open(const Endpoint& endpoint, const ContextOptions& options,
                                                     const DeviceEnvironment& environment);

  const std::string& id() const override { return id_; }
  const std::string& name() const override { return name_; }
  const std::vector<LogicalDeviceInfo>& devices() const override { return devices_; }
  int backend_device(int i) const override { return backend_devices_.at(static_cast<std::size_t>(i)); }
  DeviceBackend& backend() override { return *backend_; }
  std::unique_ptr<RegionSource> TakeSource(int i) override {
    return std::move(sources_.at(static_cast<std::size_t>(i)));
  }
  void StartMaintenance(Maintenance::Task task) override { maintenance_.Start(std::move(task)); }
  void WakeMaintenance() override { maintenance_.Wake(); }
  void StopMaintenance() override { maintenance_.Stop(); }
  std::vector<TrimOrder> TakeTrims() override;
  void AnswerTrim(const TrimOrder& order, bool pending) override {
    broker_->Trimmed(TrimId{order.id}, pending);
  }
  ClientPage& page() override { return *page_; }
  absl::Status Resize(int i, Bytes limit, std::optional<Bytes> guarantee) override;
  absl::Status Close() override;
  absl::Status status() const override;

 private:
  LocalLease() = default;
  absl::Status AddDevice(const ChosenDevice& chosen);

  const std::string id_;
  std::string name_;
  ProcessEpoch epoch_;
  std::unique_ptr<DeviceBackend> backend_;
  MaintenanceThread maintenance_;
  std::unique_ptr<LocalBroker> broker_;
  std::unique_ptr<ClientPage> page_;
  std::vector<LogicalDeviceInfo> devices_;
  std::vector<int> backend_devices_;
  std::vector<LogicalId> logical_ids_;
  std::vector<std::unique_ptr<RegionSource>> sources_;

  mutable Mutex mutex_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace lgpu

#endif  // LGPU_CLIENT_RUNTIME_LOCAL_LEASE_H_
