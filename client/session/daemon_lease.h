#ifndef LGPU_CLIENT_SESSION_DAEMON_LEASE_H_
#define LGPU_CLIENT_SESSION_DAEMON_LEASE_H_

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/session/daemon_connection.h"
#include "client/session/endpoint.h"
#include "client/session/lease.h"
#include "proto/wire/control_messages.h"

namespace lgpu {

/// A DaemonLease is a Lease that a daemon granted to a session. Inside the lease (IsInsideLease) it has the
/// devices on the cards that CUDA_VISIBLE_DEVICES leaves, in the variable's order.
class DaemonLease final : public Lease {
 public:
  /// Asks the daemon for another limit of the lease's device i, in the name of the session with `token`; the
  /// rest is as in Lease::Resize.
  using Resizer = std::function<absl::Status(const std::string& token, int i, Bytes limit,
                                             std::optional<Bytes> guarantee)>;
  /// Calls of the daemon's control service, in the name of the session with `token`. An empty one: there is
  /// none.
  struct Calls {
    Resizer resize = {};
    /// As Lease::BeginSuspension and EndSuspension.
    std::function<absl::Status(const std::string& token, Bytes bytes)> suspend = {};
    std::function<absl::Status(const std::string& token, std::chrono::nanoseconds timeout)> resume = {};
  };

  /// Takes over a connection whose session has the lease `granted`. FAILED_PRECONDITION, INTERNAL: this
  /// process cannot use the cards of the lease; NOT_FOUND: CUDA_VISIBLE_DEVICES leaves none of them.
  static absl::StatusOr<std::unique_ptr<Lease>> Open(std::unique_ptr<DaemonConnection> connection,
                                                     const wire::Lease& granted, Calls calls);
  /// Attaches to an existing lease, named by its handle or name, over a session of its own and without gRPC.
  /// Such a lease cannot be resized. Errors as FindDaemon, DaemonConnection::Attach and Open.
  static absl::StatusOr<std::unique_ptr<Lease>> Attach(const Endpoint& endpoint, const std::string& lease);

  const std::string& id() const override { return id_; }
  const std::string& name() const override { return name_; }
  const std::vector<LeasedDevice>& devices() const override { return devices_; }
  DeviceBackend& backend() override { return *backend_; }
  std::unique_ptr<RegionSource> TakeSource(int i) override {
    return std::move(sources_.at(static_cast<std::size_t>(i)));
  }
  void StartMaintenance(Maintenance::Task task) override { connection_->StartMaintenance(std::move(task)); }
  void WakeMaintenance() override { connection_->WakeMaintenance(); }
  void StopMaintenance() override { connection_->StopMaintenance(); }
  std::vector<TrimOrder> TakeTrims() override { return connection_->TakeTrims(); }
  void AnswerTrim(const TrimOrder& order, bool pending) override {
    connection_->AnswerTrim(order.id, pending);
  }
  std::vector<wire::Snapshot> TakeSnapshots() override { return connection_->TakeSnapshots(); }
  absl::Status AnswerSnapshot(const wire::SnapshotPage& page) override {
    return connection_->AnswerSnapshot(page);
  }
  ClientPage& page() override { return connection_->page(); }
  absl::Status Resize(int i, Bytes limit, std::optional<Bytes> guarantee) override {
    const int lease_index = devices_.at(static_cast<std::size_t>(i)).lease_index;
    return calls_.resize(connection_->token(), lease_index, limit, guarantee);
  }
  absl::Status BeginSuspension(Bytes bytes) override {
    return calls_.suspend ? calls_.suspend(connection_->token(), bytes) : Lease::BeginSuspension(bytes);
  }
  absl::Status EndSuspension(std::chrono::nanoseconds timeout) override {
    return calls_.resume ? calls_.resume(connection_->token(), timeout) : absl::OkStatus();
  }
  bool HasSuspensionOrders() const override { return connection_->HasSuspends(); }
  std::vector<SuspensionOrder> TakeSuspensionOrders() override;
  absl::Status AnswerSuspension(const SuspensionOrder& order, const absl::Status& status,
                                const std::map<LogicalId, Bytes>& needs) override;
  void NoteSuspended(bool is_suspended) override { connection_->NoteHasSuspended(is_suspended); }
  void NoteUse() override { connection_->NoteUse(); }
  absl::Status Close() override;
  absl::Status status() const override { return connection_->status(); }

 private:
  DaemonLease(std::unique_ptr<DaemonConnection> connection, const wire::Lease& granted,
              std::vector<LeasedDevice> devices, Calls calls);

  const std::string id_;
  const std::string name_;
  std::vector<LeasedDevice> devices_;  // constant after Open
  const Calls calls_;
  const std::unique_ptr<DaemonConnection> connection_;
  std::unique_ptr<DeviceBackend> backend_;
  std::vector<std::unique_ptr<RegionSource>> sources_;
};

}  // namespace lgpu

#endif  // LGPU_CLIENT_SESSION_DAEMON_LEASE_H_
