#ifndef LGPU_CLIENT_SESSION_LOCAL_LEASE_H_
#define LGPU_CLIENT_SESSION_LOCAL_LEASE_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "allocator/broker/broker.h"
#include "allocator/device/device_backend.h"
#include "base/mutex.h"
#include "base/process_epoch.h"
#include "client/session/lease.h"

namespace lgpu {

/// A LocalLease is a Lease without a daemon: this process alone partitions its cards, by lgpud's Broker.
class LocalLease final : public Lease {
 public:
  /// A lease of `specs` on cards of `backend`. INVALID_ARGUMENT: a size that can never be; RESOURCE_EXHAUSTED
  /// with a Refusal.
  static absl::StatusOr<std::unique_ptr<Lease>> Open(std::unique_ptr<DeviceBackend> backend, std::string name,
                                                     const std::vector<LogicalDeviceSpec>& specs);
  ~LocalLease() override { maintenance_.Stop(); }

  const std::string& id() const override { return id_; }
  const std::string& name() const override { return name_; }
  const std::vector<LeasedDevice>& devices() const override { return devices_; }
  DeviceBackend& backend() override { return *backend_; }
  std::unique_ptr<RegionSource> TakeSource(int i) override {
    return std::move(entries_.at(static_cast<std::size_t>(i))->source);
  }
  void StartMaintenance(Maintenance::Task task) override;
  void WakeMaintenance() override { maintenance_.Wake(); }
  void StopMaintenance() override;
  std::vector<TrimOrder> TakeTrims() override;
  void AnswerTrim(const TrimOrder& order, bool pending) override;
  ClientPage& page() override { return *page_; }
  absl::Status Resize(int i, Bytes limit, std::optional<Bytes> guarantee) override;
  absl::Status Close() override;
  absl::Status status() const override;

 private:
  /// The broker's view of devices_[i].
  struct Entry {
    SessionId session;
    std::unique_ptr<RegionSource> source;  // until it is taken
    std::atomic<std::uint64_t> limit;
  };

  LocalLease(std::unique_ptr<DeviceBackend> backend, std::string name);
  /// Maintenance of the broker alone.
  void StartTicking();
  absl::Status AddDevice(const LogicalDeviceSpec& spec, const std::vector<Broker::CardInfo>& cards,
                         std::map<CardId, Bytes>& planned);
  absl::Status AddDeviceOn(const Broker::CardInfo& card, const LogicalDeviceSpec& spec);
  absl::Status ResizeNow(std::size_t i, Bytes limit, std::optional<Bytes> guarantee);

  const std::string id_;
  const std::string name_;
  const ProcessEpoch epoch_;
  const std::unique_ptr<DeviceBackend> backend_;
  MaintenanceThread maintenance_;
  NoGrantLog log_;
  std::unique_ptr<Broker> broker_;
  const std::unique_ptr<ClientPage> page_;
  std::vector<LeasedDevice> devices_;
  std::vector<std::unique_ptr<Entry>> entries_;

  mutable Mutex mutex_;
  CondVar resized_;
  bool resizing_ ABSL_GUARDED_BY(mutex_) = false;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace lgpu

#endif  // LGPU_CLIENT_SESSION_LOCAL_LEASE_H_
