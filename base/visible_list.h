#ifndef LGPU_BASE_VISIBLE_LIST_H_
#define LGPU_BASE_VISIBLE_LIST_H_

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lgpu {

/// The GPUs of a list that a value of CUDA_VISIBLE_DEVICES leaves visible.
struct VisibleEntries {
  std::vector<int> devices;  // positions in the list of GPUs, in the order of the value
  std::string note;          // for people, why entries have no effect; empty where all have one
  std::string unknown_uuid;  // the entry that ended the list, where it is the UUID of none of the GPUs
};

/// Reads `value` (nothing: the variable is unset) against GPUs with these UUIDs, by the rules of
/// ParseVisibleDevices (lgpu/visibility.h): the machine's GPUs, or inside a lease the lease's.
VisibleEntries ReadVisibleDevices(std::optional<std::string_view> value, std::span<const std::string> uuids);

}  // namespace lgpu

#endif  // LGPU_BASE_VISIBLE_LIST_H_
