#ifndef LGPU_CLIENT_DISTRIBUTE_REDUCTION_H_
#define LGPU_CLIENT_DISTRIBUTE_REDUCTION_H_

#include <array>
#include <cstdint>
#include <map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/distribute/meeting.h"
#include "client/distribute/process_group.h"
#include "lgpu/bytes.h"
#include "lgpu/mirrored_strategy.h"
#include "lgpu/tensor.h"

namespace lgpu::internal {

/// How tensors of all replicas become one. Both add in the order of the replicas, so their sums have the same
/// bits.
enum class ReductionMethod {
  kOneDevice,  // replica 0 adds whole tensors, the others copy the sum
  kSlices,     // each replica adds one slice of every tensor, and copies the slices of the others
};

/// A ReductionChoice learns which method is faster for how many bytes: it has each of them measured twice,
/// and takes the better one from then on. Used by replica 0 alone.
class ReductionChoice {
 public:
  struct Trial {
    ReductionMethod method = ReductionMethod::kOneDevice;
    bool measure = false;  // the device's work is waited for, and Learn gets the time
  };
  /// Up to this slices are not worth their copies.
  static constexpr Bytes kSmall = Bytes(std::uint64_t{64} << 10);
  static constexpr int kTrials = 2;  // of each method

  Trial Next(Bytes bytes);
  void Learn(Bytes bytes, const Trial& trial, double seconds);

 private:
  struct Measured {
    std::array<int, 2> trials = {};
    std::array<double, 2> best = {};
  };
  std::map<int, Measured> by_size_;  // by the number of bits of the size
};

/// An AllReducer is where the replicas of a step hand each other their tensors. All members call Run equally
/// often, each on the thread of its replica and in the scope of its device.
class AllReducer {
 public:
  /// `processes`, if any: their sums are added; member 0 meets them. Both outlive the AllReducer.
  AllReducer(int members, const Context& context, ProcessGroup* processes)
      : members_(members),
        context_(context),
        processes_(processes),
        offered_(static_cast<std::size_t>(members)),
        work_(offered_.size()) {}

  /// An error of one member, such as INVALID_ARGUMENT where shapes differ, is the result of all members.
  absl::StatusOr<std::vector<Tensor>> Run(int member, Meeting& meeting, std::span<const Tensor> tensors);
  /// Drops the members' tensors; to be called between steps.
  void Clear();

 private:
  using Parts = std::vector<std::vector<Tensor>>;  // by tensor, by member
  absl::Status CheckOffers() const;
  absl::StatusOr<std::vector<Tensor>> OnOneDevice(int member, Meeting& meeting);
  absl::StatusOr<std::vector<Tensor>> InSlices(int member, Meeting& meeting);

  /// By member 0: `sums_` of this process become those of all.
  absl::Status AddOtherProcesses();

  const int members_;
  const Context& context_;
  ProcessGroup* const processes_;
  // Written by its member before a meeting, read by all after it.
  std::vector<std::vector<Tensor>> offered_;
  std::vector<std::vector<Tensor>> work_;  // the same, or one tensor that has all of them behind one another
  // Written by the member whose slice it is (kOneDevice: replica 0), read by all after the next meeting.
  Parts sums_;
  ReductionChoice choice_;  // replica 0's
  ReductionChoice::Trial trial_;
};

}  // namespace lgpu::internal

#endif  // LGPU_CLIENT_DISTRIBUTE_REDUCTION_H_
