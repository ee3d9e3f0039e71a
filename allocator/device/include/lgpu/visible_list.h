#ifndef LGPU_VISIBLE_LIST_H_
#define LGPU_VISIBLE_LIST_H_

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lgpu/export.h"

namespace lgpu {

/// The GPUs of a list that a value of CUDA_VISIBLE_DEVICES leaves visible.
struct VisibleList {
  std::vector<int> devices;  // positions in the list of GPUs, in the order of the value
  std::string note;          // for people, why entries have no effect; empty where all have one
  std::string unknown_uuid;  // the entry that ended the list, where it is the UUID of none of the GPUs
};

/// Reads `value` (nothing: the variable is unset) against GPUs with these UUIDs ("GPU-6f1e...", "MIG-..."):
/// the machine's, in the order of that process's CUDA_DEVICE_ORDER, or inside a lease the lease's.
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

}  // namespace lgpu

#endif  // LGPU_VISIBLE_LIST_H_
