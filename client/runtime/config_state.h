#ifndef LGPU_CLIENT_RUNTIME_CONFIG_STATE_H_
#define LGPU_CLIENT_RUNTIME_CONFIG_STATE_H_

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/runtime/config_words.h"
#include "client/runtime/logical_plan.h"
#include "lgpu/config.h"

namespace lgpu {

/// A ConfigState has a Config's settings and the rules of their changes; pure. Devices are positions in
/// devices().
class ConfigState {
 public:
  /// `devices`: CPUs, then GPUs in their order.
  ConfigState(ConfigMode mode, std::vector<PhysicalDeviceInfo> devices);

  const std::vector<PhysicalDeviceInfo>& devices() const { return devices_; }
  ConfigMode mode() const { return mode_; }
  /// "Unrecognized device: ..." for a name that is none of devices().
  absl::StatusOr<std::size_t> Find(std::string_view name) const;

  absl::Status SetVisible(const std::vector<std::string>& names, std::string_view device_type);
  std::vector<PhysicalDeviceInfo> Visible(std::string_view device_type) const;

  absl::Status SetGrowth(std::string_view name, bool growth);
  absl::StatusOr<std::optional<bool>> Growth(std::string_view name) const;

  absl::Status SetLogical(std::string_view name, const std::vector<LogicalDeviceConfiguration>& devices);
  absl::StatusOr<std::vector<LogicalDeviceConfiguration>> Logical(std::string_view name) const;
  /// The new limits of a split GPU are nothing but that: a native Context takes them while it runs.
  bool IsResize(std::string_view name, const std::vector<LogicalDeviceConfiguration>& devices) const;

  absl::Status SetFraction(double fraction);

  /// The memory of the GPUs now, as a later list of the machine has them; it may have another order.
  void SetFree(const std::vector<PhysicalDeviceInfo>& now);
  /// Whether there is a Context.
  void set_initialized(bool initialized) { initialized_ = initialized; }
  bool initialized() const { return initialized_; }

  /// TensorFlow's GPUOptions for this configuration; strict.
  absl::StatusOr<GpuOptions> ToGpuOptions() const;

  /// The devices of a Context.
  struct Plan {
    int cpus = 1;
    struct Gpu {
      std::size_t device = 0;  // in devices()
      std::size_t part = 0;    // of its logical devices
      LogicalDeviceOptions options;
    };
    std::vector<Gpu> gpus;  // GPU:0 first
  };
  /// The environment's part of a strict plan.
  struct Variables {
    std::optional<std::string> min_system_memory_mb = {};  // TF_DEVICE_MIN_SYS_MEMORY_IN_MB
    std::optional<std::string> min_multiprocessors = {};   // TF_MIN_GPU_MULTIPROCESSOR_COUNT
  };
  /// Warnings go to `notes`.
  absl::StatusOr<Plan> MakePlan(const Variables& variables, std::vector<std::string>& notes) const;
  /// A limit of a strict plan comes from a card's free memory, and the card has more in a moment.
  bool IsEarly(const Plan& plan) const;
  /// RESOURCE_EXHAUSTED: a strict plan has a device whose card has no free memory. No Context is made of it.
  absl::Status CheckPlan(const Plan& plan) const;

 private:
  bool strict() const { return mode_ == ConfigMode::kStrict; }
  bool IsVisible(std::size_t device) const;
  std::vector<std::size_t> Gpus() const;  // all of them, in order
  /// The error where no change is possible any more: TensorFlow's text, and in native mode what to do.
  absl::Status Initialized(std::string_view what) const;
  absl::Status CheckLogical(const PhysicalDeviceInfo& device,
                            const std::vector<LogicalDeviceConfiguration>& parts) const;
  absl::StatusOr<Plan> StrictPlan(const Variables& variables, std::vector<std::string>& notes) const;
  absl::StatusOr<Plan> NativePlan() const;
  absl::StatusOr<int> CountCpus() const;

  ConfigMode mode_;
  std::vector<PhysicalDeviceInfo> devices_;
  std::vector<std::size_t> visible_;  // as it was set
  std::map<std::size_t, std::optional<bool>> growth_;
  std::map<std::size_t, std::vector<LogicalDeviceConfiguration>> logical_;
  double fraction_ = 0;
  bool initialized_ = false;
};

}  // namespace lgpu

#endif  // LGPU_CLIENT_RUNTIME_CONFIG_STATE_H_
