#ifndef LGPU_DAEMON_DEVICE_REGISTRY_H_
#define LGPU_DAEMON_DEVICE_REGISTRY_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "allocator/device/device_backend.h"
#include "allocator/unique_fd.h"
#include "daemon/config.h"

namespace lgpu::daemon {

/// A DeviceRegistry knows the machine's cards and owns those that this daemon serves: the ones that
/// CUDA_VISIBLE_DEVICES leaves it and that no other daemon has locked. It holds an exclusive lock per served
/// card (flock on a file in the lock directory, named by UUID) for its own lifetime. Constant after Open, so
/// thread-safe.
class DeviceRegistry {
 public:
  struct Card {
    int index = 0;  // in PCI order among all of the machine, and in backend().devices()
    PhysicalDevice device;
    bool served = false;
    std::string not_served_because;  // empty if served; "owned by the daemon of /run/lgpu (pid 812)"
    UniqueFd lock;
  };

  /// FAILED_PRECONDITION (exit code 9): no usable GPU and none simulated, or all are owned by others; the
  /// text says what to do.
  static absl::StatusOr<std::unique_ptr<DeviceRegistry>> Open(const Config& config);

  DeviceBackend& backend() const { return *backend_; }
  const std::vector<Card>& cards() const { return cards_; }
  bool simulated() const { return simulated_; }

 private:
  DeviceRegistry() = default;
  std::unique_ptr<DeviceBackend> backend_;
  std::vector<Card> cards_;
  bool simulated_ = false;
};

}  // namespace lgpu::daemon

#endif  // LGPU_DAEMON_DEVICE_REGISTRY_H_
