#ifndef LGPU_CLIENT_RUNTIME_LEASE_H_
#define LGPU_CLIENT_RUNTIME_LEASE_H_

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "allocator/device/device_backend.h"
#include "client/session/maintenance.h"
#include "lgpu/context.h"
#include "lgpu/region_source.h"
#include "proto/wire/pages.h"

namespace lgpu {

/// A Lease is what a Context stands on: logical devices, each with a source of memory, and the backend
/// that touches them. Two kinds: a daemon's (client/daemon_lease) and this process's own
/// (client/local_lease). Thread-safe.
class Lease {
 public:
  virtual ~Lease() = default;
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;

  virtual const std::string& id() const = 0;    // "" for local
  virtual const std::string& name() const = 0;  // for refusals
  virtual const std::vector<LogicalDeviceInfo>& devices() const = 0;
  /// Index of devices()[i]'s card in backend().devices().
  virtual int backend_device(int i) const = 0;
  virtual DeviceBackend& backend() = 0;
  /// The source of devices()[i]; once each. It lives no longer than the lease.
  virtual std::unique_ptr<RegionSource> TakeSource(int i) = 0;
  /// A background thread of the lease does the task, at once and whenever it wants to be called or is woken,
  /// until StopMaintenance, which waits for it. WakeMaintenance never blocks.
  virtual void StartMaintenance(Maintenance::Task task) = 0;
  virtual void WakeMaintenance() = 0;
  virtual void StopMaintenance() = 0;
  /// Somebody is short of memory: devices()[device] is to give back what is idle. Maintenance is woken for
  /// it, and takes and answers all of them.
  struct TrimOrder {
    std::uint64_t id = 0;
    int device = 0;
    Bytes bytes;
  };
  virtual std::vector<TrimOrder> TakeTrims() = 0;
  /// What there was is returned. `pending`: more is idle but for work of the device that still uses it.
  virtual void AnswerTrim(const TrimOrder& order, bool pending) = 0;
  /// Where counters and placement records go; the daemon reads it. A local lease has one of its own.
  virtual ClientPage& page() = 0;
  /// A new limit for devices()[i]; kWholeCard: that of a device made without one. No guarantee: it keeps its
  /// own, as far as the limit allows.
  static constexpr Bytes kWholeCard = Bytes(std::numeric_limits<std::uint64_t>::max());
  virtual absl::Status Resize(int i, Bytes limit, std::optional<Bytes> guarantee) = 0;
  /// All sources are gone; ends the session and waits until the quota is free.
  virtual absl::Status Close() = 0;
  /// OK, or why the lease is of no use any more: closed, forked, or the daemon is gone.
  virtual absl::Status status() const = 0;

 protected:
  Lease() = default;
};

/// A lease as the options say: endpoint, lease or logical devices, CUDA_VISIBLE_DEVICES.
absl::StatusOr<std::unique_ptr<Lease>> OpenLease(const ContextOptions& options);

}  // namespace lgpu

#endif  // LGPU_CLIENT_RUNTIME_LEASE_H_
