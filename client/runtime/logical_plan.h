#ifndef LGPU_CLIENT_RUNTIME_LOGICAL_PLAN_H_
#define LGPU_CLIENT_RUNTIME_LOGICAL_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lgpu/bytes.h"

// How TensorFlow's runtime makes logical GPUs out of the cards that a process sees, with its errors and
// texts. All of this is pure: the caller passes the environment's values and the cards in.

namespace lgpu {

/// A GPU that CUDA_VISIBLE_DEVICES leaves the process, as far as a plan asks.
struct PlanCard {
  Bytes total = {};
  std::optional<Bytes> free = {};  // nothing: it cannot be known
  int compute_major = 0;
  int compute_minor = 0;
  int multiprocessors = 0;       // 0: not known
  std::string description = {};  // "device: 0, name: ...", for lines about it
  // Stream priorities: the greatest one is the lower number.
  int priority_greatest = -5;
  int priority_least = 0;
};

/// The logical GPUs that one visible GPU is split into; none: it is not split.
struct VirtualDevices {
  std::vector<float> memory_limit_mb = {};
  std::vector<int> priority = {};
  std::vector<int> device_ordinal = {};
};

/// TensorFlow's GPUOptions, and device_count["GPU"].
struct GpuOptions {
  std::optional<int> device_count = {};
  std::string visible_device_list = {};
  double per_process_gpu_memory_fraction = 0;
  bool use_unified_memory = false;
  bool allow_growth = false;
  int num_virtual_devices_per_gpu = 0;
  std::int64_t gpu_system_memory_size_in_mb = 0;
  std::vector<VirtualDevices> virtual_devices = {};  // one for each visible GPU, or none at all
};

struct PlannedDevice {
  int card = 0;  // position in the list of cards
  Bytes memory_limit = {};
  int priority = 0;
  int device_ordinal = 0;
  std::size_t part = 0;  // of the card's logical GPUs, as they were configured
  friend bool operator==(const PlannedDevice&, const PlannedDevice&) = default;
};

struct PlanRequest {
  const GpuOptions& options;
  std::span<const PlanCard> cards;
  /// TF_DEVICE_MIN_SYS_MEMORY_IN_MB
  std::optional<std::string_view> min_system_memory_mb = {};
  /// TF_MIN_GPU_MULTIPROCESSOR_COUNT
  std::optional<std::string_view> min_multiprocessors = {};
};

/// The visible cards (positions in request.cards) that TensorFlow takes: of compute capability 3.5 at least,
/// and with 8 multiprocessors or as many as the largest one (or `min_multiprocessors`). An unknown value does
/// not exclude a card. A line for each card that is left out goes to `notes`.
std::vector<int> ValidCards(const PlanRequest& request, std::span<const int> visible,
                            std::vector<std::string>& notes);

/// The logical GPUs by id, GPU:0 first. Warnings go to `notes`.
absl::StatusOr<std::vector<PlannedDevice>> PlanDevices(const PlanRequest& request,
                                                       std::vector<std::string>& notes);

/// The limit of a logical GPU that has a card for itself and no limit of its own: the free memory less a
/// reserve, or a fraction of the total. `card` is its position, for messages.
absl::StatusOr<Bytes> DefaultMemoryLimit(const PlanRequest& request, int card,
                                         std::vector<std::string>& notes);

/// The setting after TF_FORCE_GPU_ALLOW_GROWTH, of which exactly "true" or "false" count. `note` is the line
/// for the log, if there is one.
struct GrowthSwitch {
  bool growth = false;
  std::string note = {};
};
GrowthSwitch OverrideGrowth(std::optional<std::string_view> variable, bool growth);

/// Which card each logical GPU is on. TensorFlow has one such map per process, and for good; here each plan
/// has its own.
class DeviceIdMap {
 public:
  /// ALREADY_EXISTS if the logical GPU is on another card already.
  absl::Status Insert(int logical, int card);
  /// NOT_FOUND for a logical GPU that was never inserted.
  absl::StatusOr<int> Find(int logical) const;

 private:
  std::map<int, int> cards_;
};

}  // namespace lgpu

#endif  // LGPU_CLIENT_RUNTIME_LOGICAL_PLAN_H_
