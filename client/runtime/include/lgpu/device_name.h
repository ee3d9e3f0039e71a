#ifndef LGPU_DEVICE_NAME_H_
#define LGPU_DEVICE_NAME_H_

#include <compare>
#include <iosfwd>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "lgpu/export.h"

// Device names as TensorFlow's C++ runtime reads and writes them. All of this is pure.

namespace lgpu {

/// A DeviceName says which device is meant: "/job:localhost/replica:0/task:0/device:GPU:1". A part that is
/// not set does not constrain. A value type; its order is that of TensorFlow: an unset part before
/// a set one, then job, replica, task, type, id.
struct DeviceName {
  std::optional<std::string> job = {};
  std::optional<int> replica = {};
  std::optional<int> task = {};
  std::optional<std::string> type = {};  // "GPU", "CPU"; case counts
  std::optional<int> id = {};

  bool IsComplete() const { return job && replica && task && type && id; }

  friend auto operator<=>(const DeviceName&, const DeviceName&) = default;
  friend bool operator==(const DeviceName&, const DeviceName&) = default;
};

/// Reads any sequence of "/job:NAME", "/replica:N", "/task:N", "/device:TYPE", "/device:TYPE:N" and the
/// legacy
/// "/cpu:N", "/CPU:N", "/gpu:N", "/GPU:N" (the type becomes upper case). "*" for a NAME, TYPE or N sets
/// nothing; a repeated part counts as it stands last; "" and "/" set nothing. NAME and TYPE are a letter
/// and then letters, digits and underscores. Nothing for all else, and for numbers above INT_MAX (which
/// TensorFlow lets wrap).
LGPU_API std::optional<DeviceName> ParseFullName(std::string_view text);
/// Reads "TYPE:N", nothing before or after it.
LGPU_API std::optional<DeviceName> ParseLocalName(std::string_view text);
/// As a full name, else as a local one.
LGPU_API std::optional<DeviceName> ParseFullOrLocalName(std::string_view text);

/// Reads what people write: full and local names, a first slash or none ("gpu:0", "/GPU:1",
/// "device:GPU:0", "job:localhost/gpu:0"), a CPU or GPU in any case and without a number ("GPU": any). Types
/// cpu and gpu become upper case. INVALID_ARGUMENT, with what to write, for anything else, and for two
/// types in one name.
LGPU_API absl::StatusOr<DeviceName> ParseLenientName(std::string_view text);

/// Reads what TensorFlow's Python front end does (DeviceSpec.from_string): pieces between slashes, "gpu:0"
/// and "CPU" in any case and without "device:", types become upper case; "device:" needs a type and a number.
/// INVALID_ARGUMENT with Python's texts. Stricter than the C++ grammar here, laxer there.
LGPU_API absl::StatusOr<DeviceName> ParseDeviceSpec(std::string_view text);
/// The name that TensorFlow's Python makes of `text` (a DeviceSpec): parts that it leaves open come from
/// `base`, then from
/// "/job:localhost/replica:0/task:0/device:CPU:0".
LGPU_API absl::StatusOr<std::string> CanonicalDeviceSpec(std::string_view text, std::string_view base = {});

/// "/job:J/replica:R/task:T/device:TYPE:ID" with the parts that are set; a type without an id ends in ":*";
/// an id without a type is left out.
LGPU_API std::string ToString(const DeviceName& name);
LGPU_API std::ostream& operator<<(std::ostream& out, const DeviceName& name);

/// ToString of a complete name; INVALID_ARGUMENT if a part is missing, negative, or no NAME or TYPE.
LGPU_API absl::StatusOr<std::string> FullName(const DeviceName& name);

/// The full name that `text` (tried as a local name first) stands for; parts that it leaves open come from
/// `base`, a complete name. INVALID_ARGUMENT with TensorFlow's texts.
LGPU_API absl::StatusOr<std::string> CanonicalizeDeviceName(std::string_view text, std::string_view base);

/// Every part that is set in `less` is set in `more` and equal.
LGPU_API bool IsSpecification(const DeviceName& less, const DeviceName& more);
/// `name` is complete, and every part that is set in `pattern` is equal.
LGPU_API bool IsCompleteSpecification(const DeviceName& pattern, const DeviceName& name);
/// No part is set in both and different.
LGPU_API bool AreCompatible(const DeviceName& a, const DeviceName& b);
/// Job, replica and task are set in both and equal.
LGPU_API bool IsSameAddressSpace(const DeviceName& a, const DeviceName& b);

/// MergeConflicts decides how Merge treats types or ids that are set in both and differ. Differing jobs,
/// replicas and tasks are always errors.
enum class MergeConflicts {
  kError,     // an error
  kDrop,      // a type drops type and id, an id drops the id
  kOverride,  // `other` counts
};
/// The parts of both. INVALID_ARGUMENT "Cannot merge devices with incompatible jobs: 'A' and 'B'" (replicas,
/// tasks, types, ids).
LGPU_API absl::StatusOr<DeviceName> Merge(const DeviceName& target, const DeviceName& other,
                                          MergeConflicts conflicts = MergeConflicts::kError);
/// `target`, with the parts that it leaves open taken from `other`.
LGPU_API DeviceName MergeUnset(const DeviceName& target, const DeviceName& other);

struct SplitName {
  std::string task;    // "/job:foo/replica:1/task:2", may be empty
  std::string device;  // "GPU:3"
};
/// The two halves of a full name; nothing if it does not parse or type or id are not set.
LGPU_API std::optional<SplitName> SplitDeviceName(std::string_view text);

/// Orders the texts of full names: texts that do not parse come first.
LGPU_API bool FullNameLess(std::string_view a, std::string_view b);

/// The texts under which a device is looked up: its full name, its full legacy name (".../gpu:1"),
/// "/device:GPU:1" and "GPU:1"; only the last two where no more is set, none without type and id.
LGPU_API std::vector<std::string> LookupNames(const DeviceName& name);

}  // namespace lgpu

#endif  // LGPU_DEVICE_NAME_H_
