#ifndef LGPU_CONFIG_H_
#define LGPU_CONFIG_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lgpu/bytes.h"
#include "lgpu/context.h"
#include "lgpu/export.h"

namespace lgpu {

enum class ConfigMode {
  /// Growth and limits go together, growth may differ between GPUs, limits may change while the program runs.
  kNative,
  /// TensorFlow's rules, with its refusals and texts: a GPU with limits preallocates, nothing changes once
  /// there is a Context.
  kStrict,
};

struct ConfigOptions {
  ConfigMode mode = ConfigMode::kNative;
  std::string endpoint = {};  // as ContextOptions::endpoint
  std::function<void(std::string_view line)> log_sink = {};
};

/// A device of the machine that this process may use, as TensorFlow's tf.config.PhysicalDevice. Inside a
/// lease
/// (`lgpu run`, LGPU_LEASE) the GPUs are the lease's logical devices: `total` is the limit of one, and what a
/// Config splits is within it.
struct PhysicalDeviceInfo {
  std::string name;         // "/physical_device:GPU:0", counted after CUDA_VISIBLE_DEVICES
  std::string device_type;  // "GPU", "CPU"
  std::string card_uuid = {};
  std::string card_name = {};
  std::string pci_bus_id = {};
  Bytes total = {};
  std::optional<Bytes> free = {};  // when the Config was made
  Bytes coming_back = {};          // on its way back to lgpud then: held still, and soon free
  int compute_major = 0;
  int compute_minor = 0;
  int multiprocessors = 0;  // 0: not known
  bool simulated = false;

  friend bool operator==(const PhysicalDeviceInfo&, const PhysicalDeviceInfo&) = default;
};

/// One logical device of a physical one: tf.config.LogicalDeviceConfiguration.
struct LogicalDeviceConfiguration {
  std::optional<Bytes> memory_limit =
      {};                            // strict: whole MiB count; native: nothing is all that the card has
  std::optional<int> priority = {};  // of its stream; lower is more urgent
  std::optional<int> device_ordinal = {};  // logical devices are numbered by it first
  Bytes guarantee = {};                    // native only

  friend bool operator==(const LogicalDeviceConfiguration&, const LogicalDeviceConfiguration&) = default;
};

/// tf.config.experimental.get_device_details; empty for a CPU.
struct DeviceDetails {
  std::optional<std::string> device_name = {};
  std::optional<std::pair<int, int>> compute_capability = {};
};

/// A Config says which devices a Context will have, with the calls of TensorFlow's tf.config, and makes that
/// Context: `Context::Create(config)`. It is an object, not a state of the process: two Configs are
/// independent. Devices are named as ListPhysicalDevices names them, or as people do ("GPU:0").
///
/// Errors: INVALID_ARGUMENT where TensorFlow raises ValueError, FAILED_PRECONDITION where it raises
/// RuntimeError, with its texts. Nothing changes on an error; setting what is set already is fine at any
/// time.
///
/// Thread-safety: one thread at a time. Movable. It may go before its Context.
class LGPU_API Config {
 public:
  /// Looks at the machine: the daemon's GPUs that CUDA_VISIBLE_DEVICES leaves. Allocates nothing.
  /// UNAVAILABLE: no daemon there.
  static absl::StatusOr<Config> Create(const ConfigOptions& options);
  ~Config();
  Config(Config&&) noexcept;
  Config& operator=(Config&&) noexcept;

  /// The CPU, then the GPUs; `device_type` "GPU" or "CPU" lists only these.
  std::vector<PhysicalDeviceInfo> ListPhysicalDevices(std::string_view device_type = {}) const;
  /// The devices that the Context has, or would have now. Unlike TensorFlow's, this starts nothing.
  absl::StatusOr<std::vector<LogicalDeviceName>> ListLogicalDevices(std::string_view device_type = {}) const;
  absl::StatusOr<DeviceDetails> GetDeviceDetails(std::string_view device) const;

  /// Only these are used; with a `device_type` the devices of other types stay as they are. Logical ids
  /// follow the physical order, not the order of `devices`.
  absl::Status SetVisibleDevices(const std::vector<std::string>& devices, std::string_view device_type = {});
  std::vector<PhysicalDeviceInfo> GetVisibleDevices(std::string_view device_type = {}) const;

  absl::Status SetMemoryGrowth(std::string_view device, bool growth);
  /// Nothing: it was never set.
  absl::StatusOr<std::optional<bool>> GetMemoryGrowth(std::string_view device) const;

  /// Splits a GPU. Native: once there is a Context, new limits and guarantees for the same number of devices
  /// reach it at once.
  absl::Status SetLogicalDeviceConfiguration(std::string_view device,
                                             const std::vector<LogicalDeviceConfiguration>& devices);
  /// Empty: the device is not split.
  absl::StatusOr<std::vector<LogicalDeviceConfiguration>> GetLogicalDeviceConfiguration(
      std::string_view device) const;

  /// The share of a card for a logical device without a limit of its own; 0: the free memory less a reserve
  /// (strict), or the whole card (native).
  absl::Status SetPerProcessGpuMemoryFraction(double fraction);

  /// How the lines of SetLogDevicePlacement look, for the Context that is made next.
  void SetPlacementLogFormat(PlacementLogFormat format);

  // The setters also change a Context that exists already; the getters say what it does.
  void SetSoftDevicePlacement(bool on);
  bool GetSoftDevicePlacement() const;
  void SetLogDevicePlacement(bool on);
  bool GetLogDevicePlacement() const;
  /// "silent", "silent_for_int32", "warn", "explicit"; nothing: the default, "silent". Else INVALID_ARGUMENT
  /// "Invalid argument `device_policy`: 'x'. ...".
  absl::Status SetDevicePolicy(std::optional<std::string_view> policy);
  std::string_view GetDevicePolicy() const;

  /// The options of the Context that is made next, without its devices: the endpoint, the sink and the
  /// switches that were set.
  ContextOptions GetContextOptions() const;

  class LGPU_HIDDEN Impl;

 private:
  friend class Context;
  explicit Config(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace lgpu

#endif  // LGPU_CONFIG_H_
