#ifndef LGPU_CLIENT_RUNTIME_DAEMON_LEASE_H_
#define LGPU_CLIENT_RUNTIME_DAEMON_LEASE_H_

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/control/control_client.h"
#include "client/runtime/device_choice.h"
#include "client/runtime/lease.h"
#include "client/session/daemon_connection.h"
#include "client/session/endpoint.h"

namespace lgpu {

/// A DaemonLease is a Lease that a daemon granted, over a session of its own.
class DaemonLease final : public Lease {
 public:
  /// `attach_to`: the handle or name of a lease that exists; empty: makes one, as the options say.
  static absl::StatusOr<std::unique_ptr<Lease>> Open(const Endpoint& endpoint, const ContextOptions& options,
                                                     const std::string& attach_to,
                                                     const DeviceEnvironment& environment);

  const std::string& id() const override { return id_; }
  const std::string& name() const override { return name_; }
  const std::vector<LogicalDeviceInfo>& devices() const override { return devices_; }
  int backend_device(int i) const override { return backend_devices_.at(static_cast<std::size_t>(i)); }
  DeviceBackend& backend() override { return *backend_; }
  std::unique_ptr<RegionSource> TakeSource(int i) override {
    return std::move(sources_.at(static_cast<std::size_t>(i)));
  }
  void StartMaintenance(Maintenance::Task task) override { connection_->StartMaintenance(std::move(task)); }
  void WakeMaintenance() override { connection_->WakeMaintenance(); }
  void StopMaintenance() override { connection_->StopMaintenance(); }
  std::vector<TrimOrder> TakeTrims() override;
  void AnswerTrim(const TrimOrder& order, bool pending) override {
    connection_->AnswerTrim(order.id, pending);
  }
  ClientPage& page() override { return connection_->page(); }
  absl::Status Resize(int i, Bytes limit, std::optional<Bytes> guarantee) override;
  absl::Status Close() override;
  absl::Status status() const override { return connection_->status(); }

 private:
  explicit DaemonLease(std::unique_ptr<DaemonConnection> connection) : connection_(std::move(connection)) {}
  absl::Status TakeDevices(const v1::Lease& lease);

  std::string directory_;  // of the daemon
  std::string id_;
  std::string name_;
  std::unique_ptr<DaemonConnection> connection_;
  std::unique_ptr<DeviceBackend> backend_;
  std::vector<LogicalDeviceInfo> devices_;
  std::vector<int> backend_devices_;
  std::vector<std::uint64_t> device_ids_;  // as the daemon knows them
  std::vector<std::unique_ptr<RegionSource>> sources_;
};

}  // namespace lgpu

#endif  // LGPU_CLIENT_RUNTIME_DAEMON_LEASE_H_
