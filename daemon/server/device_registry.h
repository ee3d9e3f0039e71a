#ifndef LGPU_DAEMON_SERVER_DEVICE_REGISTRY_H_
#define LGPU_DAEMON_SERVER_DEVICE_REGISTRY_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "allocator/device/device_memory.h"
#include "base/unique_fd.h"
#include "daemon/server/config.h"

namespace lgpu::daemon {

/// A DeviceRegistry knows the machine's cards and owns the served ones: cards that CUDA_VISIBLE_DEVICES
/// leaves this daemon and that no other daemon has locked. The cards are simulated ones where the
/// configuration has some, else those of the CUDA driver; NVML lists the hidden ones beside them. It holds an
/// exclusive lock per served card (flock on a file in the lock directory, named by UUID) for its own
/// lifetime. Constant after Open, so thread-safe.
class DeviceRegistry {
 public:
  struct Card {
    int index = 0;            // in PCI order among all of the machine
    int backend_device = -1;  // in backend().devices(); -1: the driver does not show it to this process
    PhysicalDevice device;
    bool served = false;
    std::string not_served_because;  // empty if served; "owned by the daemon of /run/lgpu (pid 812)"
    UniqueFd lock;
  };

  /// FAILED_PRECONDITION (exit code 9): no usable GPU and none simulated, or other daemons serve all; the
  /// text names the next step.
  static absl::StatusOr<std::unique_ptr<DeviceRegistry>> Open(const Config& config);
  /// The same without a lock: a card that Open would serve has no reason against it, and is not served.
  static absl::StatusOr<std::unique_ptr<DeviceRegistry>> Look(const Config& config);

  DeviceMemory& backend() const { return *backend_; }
  const std::vector<Card>& cards() const { return cards_; }
  bool simulated() const { return simulated_; }
  /// Why the memory in use is not known (no NVML); empty where it is.
  const std::string& accounting_note() const { return accounting_note_; }

 private:
  DeviceRegistry() = default;
  absl::Status OpenSimulated(const Config& config);
  absl::Status OpenCuda(const Config& config);
  /// Cards that the configuration leaves out; the environment's list is the driver's to read.
  void Hide(const Config& config);
  Card& AddCard(const PhysicalDevice& device, int backend_device, std::string not_served_because);
  std::unique_ptr<DeviceMemory> backend_;
  std::vector<Card> cards_;
  bool simulated_ = false;
  std::string accounting_note_;
};

}  // namespace lgpu::daemon

#endif  // LGPU_DAEMON_SERVER_DEVICE_REGISTRY_H_
