#ifndef LGPU_CLIENT_RUNTIME_DEVICE_CHOICE_H_
#define LGPU_CLIENT_RUNTIME_DEVICE_CHOICE_H_

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/session/lease.h"
#include "lgpu/bytes.h"
#include "lgpu/context.h"

namespace lgpu {

/// A GPU of the machine, as the daemon lists it or this process simulates it.
struct MachineCard {
  int index = 0;  // in PCI order
  std::string uuid;
  bool served = true;  // logical devices may be had on it
  std::string not_served_because;
  Bytes available;  // total less reserve: the largest limit
};

/// The environment's part in the choice of a Context's devices.
struct DeviceEnvironment {
  std::optional<std::string> cuda_visible_devices = {};    // CUDA_VISIBLE_DEVICES
  std::optional<std::string> cuda_device_order = {};       // CUDA_DEVICE_ORDER
  std::optional<std::string> force_gpu_allow_growth = {};  // TF_FORCE_GPU_ALLOW_GROWTH
  std::string lease = {};  // LGPU_LEASE: inside it the first variable counts the lease's cards
  /// The UUIDs of the GPUs that the CUDA driver shows this process, in its order: the driver applies the
  /// first two variables to real cards. Without it the list is read here, and the cards count in PCI order.
  std::optional<std::vector<std::string>> driver_cards = {};

  static DeviceEnvironment OfThisProcess();
};

/// The served cards that this process can have, as positions in `served`, in its own order. `machine` has all
/// UUIDs in PCI order. NOT_FOUND with both lists if none is left.
absl::StatusOr<std::vector<int>> UsableCards(std::span<const std::string> machine,
                                             std::span<const std::string> served,
                                             const DeviceEnvironment& environment);

/// `environment` with `driver_cards` where the machine has real cards. The driver's error where it does not
/// start although CUDA_VISIBLE_DEVICES leaves this process some of them.
absl::StatusOr<DeviceEnvironment> AskDriver(DeviceEnvironment environment,
                                            std::span<const std::string> machine,
                                            std::span<const std::string> served);

/// The smallest memory_limit: one chunk of a card.
inline constexpr Bytes kSmallestLimit = 2_MiB;

/// INVALID_ARGUMENT: more devices than a lease has, or a memory_limit below kSmallestLimit.
absl::Status CheckDevices(const std::vector<LogicalDeviceOptions>& devices);

/// The logical devices to ask for, after everything that this process decides by itself.
struct DeviceChoice {
  std::vector<LogicalDeviceSpec> devices;
  std::vector<std::string> notes;  // lines for the log
};

/// The devices of `options` on this machine: on cards that CUDA_VISIBLE_DEVICES leaves this process and that
/// are served; growth as TF_FORCE_GPU_ALLOW_GROWTH overrides it. Without any option: one growing device on
/// the first visible card. NOT_FOUND with both lists if no visible card is served, or a physical_device is
/// none of them; INVALID_ARGUMENT for one that is ambiguous, and for a memory_limit of 0.
absl::StatusOr<DeviceChoice> ChooseDevices(const std::vector<LogicalDeviceOptions>& options,
                                           const std::vector<MachineCard>& machine,
                                           const DeviceEnvironment& environment);

}  // namespace lgpu

#endif  // LGPU_CLIENT_RUNTIME_DEVICE_CHOICE_H_
