#ifndef LGPU_VISIBILITY_H_
#define LGPU_VISIBILITY_H_

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "lgpu/export.h"

// Which GPUs a process may use, by the rules that the driver applies to CUDA_VISIBLE_DEVICES. All of
// this is pure: callers read the environment, once, and hand the value in.

namespace lgpu {

/// The order in which a process counts the machine's GPUs.
enum class DeviceOrder {
  kFastestFirst,  // the driver's default
  kPciBusId,      // that of nvidia-smi
};
/// The order that a value of CUDA_DEVICE_ORDER names; the default where it is unset or neither word.
LGPU_API DeviceOrder ParseDeviceOrder(std::optional<std::string_view> value);

/// The GPUs of a list that a value of CUDA_VISIBLE_DEVICES leaves visible.
struct VisibleList {
  std::vector<int> devices;  // positions in the list of GPUs, in the order of the value
  std::string note;          // for people, why entries have no effect; empty where all have one
};

/// Reads `value` (nothing: the variable is unset) against the machine's GPUs, whose UUIDs
/// ("GPU-6f1e...", "MIG-...") come in the order of that process's CUDA_DEVICE_ORDER.
///
/// Unset leaves all, an empty value none. Else entries are separated by commas and
/// enumerated in their order, and the first one that is invalid ends the list; what precedes it stays:
///   - an index is read as strtoul does: blanks around it, a sign and trailing text are fine ("+1", "-0",
///     "1gpu2"); below zero, beyond the last GPU, or no number at all is invalid;
///   - if the value begins with "GPU-" or "MIG-", all entries are UUIDs of that kind, exactly as
///     printed or cut to a prefix that fits one GPU; an unknown or ambiguous one is invalid;
///   - an entry of another kind than the first is invalid;
///   - a GPU that is named twice empties the whole list;
///   - of MIG instances only the first is enumerated.
LGPU_API VisibleList ParseVisibleDevices(std::optional<std::string_view> value,
                                         std::span<const std::string> uuids);
/// ParseVisibleDevices(...).devices.
LGPU_API std::vector<int> VisibleDevices(std::optional<std::string_view> value,
                                         std::span<const std::string> uuids);

struct VisibleCardsOptions {
  std::optional<std::string_view> value = {};  // the client's CUDA_VISIBLE_DEVICES
  std::span<const std::string> machine = {};   // UUIDs of all GPUs, in the client's order
  std::span<const std::string> served = {};    // UUIDs of the GPUs that the daemon serves
};
/// The GPUs that a client can have: visible by its own value, and served by the daemon, as positions in
/// `served`, in the client's order. NOT_FOUND, with both lists, where none is left.
LGPU_API absl::StatusOr<std::vector<int>> VisibleCards(const VisibleCardsOptions& options);

/// The GPUs that a program inside a lease can have. `value` counts the lease's GPUs alone, as it counts a
/// container's: positions in `lease`, the UUIDs of the lease's GPUs, each once. CUDA_DEVICE_ORDER changes
/// nothing. NOT_FOUND where none is left.
LGPU_API absl::StatusOr<std::vector<int>> VisibleCardsOfLease(std::optional<std::string_view> value,
                                                              std::span<const std::string> lease);

/// Reads a visible_device_list: positions among the GPUs that CUDA_VISIBLE_DEVICES leaves, separated by
/// commas, blanks around them allowed; an empty list stands for all `count` of them in order.
/// INVALID_ARGUMENT with TensorFlow's texts, from left to right, and at last for a GPU that is named twice.
LGPU_API absl::StatusOr<std::vector<int>> ParseVisibleDeviceList(std::string_view list, int count);

}  // namespace lgpu

#endif  // LGPU_VISIBILITY_H_
