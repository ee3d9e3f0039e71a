#ifndef LGPU_EXPLAIN_H_
#define LGPU_EXPLAIN_H_

#include <iosfwd>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "lgpu/bytes.h"
#include "lgpu/dtype.h"
#include "lgpu/export.h"

namespace lgpu {

/// A device that an op might have run on.
struct PlacementCandidate {
  std::string device;  // "/job:localhost/replica:0/task:0/device:GPU:0"
  bool taken = false;
  std::string why;  // for people: "no kernel for int32", "asked for is /device:GPU:1"
};

/// An input that would have to be copied.
struct PlacementCopy {
  int input = 0;
  std::string from;
  std::string to;
  Bytes bytes;
  std::string why;  // the device policy's error or warning; empty: it copies silently
};

/// A PlacementExplanation says where an op would run and why, without running it. A value type.
struct PlacementExplanation {
  std::string op;
  DType dtype = DType::kInvalid;
  std::string requested;  // as it was written; empty: nothing was asked for
  bool soft_placement = true;
  /// In the order in which they are looked at: by kernel, then by name.
  std::vector<PlacementCandidate> candidates;
  std::string device;        // where it would run; empty: nowhere, see status
  bool soft_placed = false;  // elsewhere than asked for
  std::vector<PlacementCopy> copies;
  absl::Status status;  // the error that the op would return before it needs memory, or OK

  /// A few lines for people, with newlines.
  LGPU_API std::string ToString() const;
};
LGPU_API std::ostream& operator<<(std::ostream& out, const PlacementExplanation& explanation);

}  // namespace lgpu

#endif  // LGPU_EXPLAIN_H_
