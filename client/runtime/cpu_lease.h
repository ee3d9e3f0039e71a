#ifndef LGPU_CLIENT_RUNTIME_CPU_LEASE_H_
#define LGPU_CLIENT_RUNTIME_CPU_LEASE_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "allocator/device/simulated/simulated_backend.h"
#include "client/runtime/lease.h"

namespace lgpu {

/// A CpuLease is a Lease of no GPU at all: for a Context that sees none.
class CpuLease final : public Lease {
 public:
  CpuLease() : backend_(MakeSimulatedBackend({})), page_(std::make_unique<ClientPage>()) {
    page_->magic.store(ClientPage::kMagic, std::memory_order_relaxed);
  }

  const std::string& id() const override { return none_; }
  const std::string& name() const override { return none_; }
  const std::vector<LogicalDeviceInfo>& devices() const override { return devices_; }
  int backend_device(int) const override { return 0; }
  DeviceBackend& backend() override { return *backend_; }
  std::unique_ptr<RegionSource> TakeSource(int) override { return nullptr; }
  std::vector<TrimOrder> TakeTrims() override { return {}; }
  void AnswerTrim(const TrimOrder& /*order*/, bool /*pending*/) override {}
  ClientPage& page() override { return *page_; }
  void StartMaintenance(Maintenance::Task) override {}  // there is nothing to maintain
  void WakeMaintenance() override {}
  void StopMaintenance() override {}
  absl::Status Resize(int, Bytes, std::optional<Bytes>) override {
    return absl::FailedPreconditionError("this Context has no GPU");
  }
  absl::Status Close() override { return absl::OkStatus(); }
  absl::Status status() const override { return absl::OkStatus(); }

 private:
  const std::string none_;
  const std::vector<LogicalDeviceInfo> devices_;
  const std::unique_ptr<DeviceBackend> backend_;
  const std::unique_ptr<ClientPage> page_;
};

}  // namespace lgpu

#endif  // LGPU_CLIENT_RUNTIME_CPU_LEASE_H_
