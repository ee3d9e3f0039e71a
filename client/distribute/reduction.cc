#include "client/distribute/reduction.h"

#include <algorithm>
#include <bit>
#include <chrono>

#include "client/runtime/tensor_buffer.h"
#include "kernels/text.h"
#include "lgpu/ops.h"
#include "lgpu/status.h"

namespace lgpu::internal {

namespace {

struct Slice {
  std::int64_t begin = 0;
  std::int64_t count = 0;
};

Slice SliceOf(std::int64_t elements, int member, int members) {
  const std::int64_t begin = elements * member / members;
  return {begin, elements * (member + 1) / members - begin};
}

Bytes BytesOf(std::span<const Tensor> tensors) {
  Bytes bytes;
  for (const Tensor& tensor : tensors) bytes += tensor.bytes();
  return bytes;
}

/// Waits for the device that the tensors are on.
absl::Status Wait(std::span<const Tensor> tensors) {
  return tensors.empty() ? absl::OkStatus() : TensorBuffer::Of(tensors.front())->device().Synchronize();
}

/// One tensor that has the elements of all, where they are few: copies cost more than their bytes.
absl::StatusOr<std::vector<Tensor>> Packed(std::span<const Tensor> tensors) {
  std::vector<Tensor> work(tensors.begin(), tensors.end());
  const auto differs = [&](const Tensor& tensor) { return tensor.dtype() != tensors.front().dtype(); };
  if (work.size() < 2 || BytesOf(work) > ReductionChoice::kSmall ||
      std::any_of(work.begin(), work.end(), differs)) {
    return work;
  }
  for (Tensor& tensor : work) {
    LGPU_ASSIGN_OR_RETURN(tensor, Reshape(tensor, Shape{tensor.shape().elements()}));
  }
  LGPU_ASSIGN_OR_RETURN(Tensor all, Concat(work));
  return std::vector<Tensor>{std::move(all)};
}

/// The parts of `all`, in the shapes of `like`.
absl::StatusOr<std::vector<Tensor>> Unpacked(const Tensor& all, std::span<const Tensor> like) {
  std::vector<Tensor> parts;
  std::int64_t begin = 0;
  for (const Tensor& tensor : like) {
    const std::int64_t elements = tensor.shape().elements();
    LGPU_ASSIGN_OR_RETURN(const Tensor part, SliceRows(all, begin, elements));
    LGPU_ASSIGN_OR_RETURN(Tensor shaped, Reshape(part, tensor.shape()));
    parts.push_back(std::move(shaped));
    begin += elements;
  }
  return parts;
}

absl::Status CheckValues(std::span<const Tensor> tensors) {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].has_value()) {
      return absl::InvalidArgumentError(Cat("input #", i, " of AllReduce is a Tensor without a value"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

ReductionChoice::Trial ReductionChoice::Next(Bytes bytes) {
  if (bytes <= kSmall) return {};
  const Measured& measured = by_size_[std::bit_width(bytes.count())];
  for (const int method : {0, 1}) {
    const auto at = static_cast<std::size_t>(method);
    if (measured.trials[at] < kTrials) return {static_cast<ReductionMethod>(method), true};
  }
  return {measured.best[1] < measured.best[0] ? ReductionMethod::kSlices : ReductionMethod::kOneDevice,
          false};
}

void ReductionChoice::Learn(Bytes bytes, const Trial& trial, double seconds) {
  Measured& measured = by_size_[std::bit_width(bytes.count())];
  const auto at = static_cast<std::size_t>(trial.method);
  double& best = measured.best[at];
  best = measured.trials[at]++ == 0 ? seconds : std::min(best, seconds);
}

absl::StatusOr<std::vector<Tensor>> AllReducer::Run(int member, Meeting& meeting,
                                                    std::span<const Tensor> tensors) {
  LGPU_RETURN_IF_ERROR(meeting.error());  // other members may still read this member's slots
  LGPU_RETURN_IF_ERROR(CheckValues(tensors));
  const auto own = static_cast<std::size_t>(member);
  offered_[own].assign(tensors.begin(), tensors.end());
  const bool is_alone = members_ == 1 && processes_ == nullptr;
  LGPU_ASSIGN_OR_RETURN(work_[own], is_alone ? offered_[own] : Packed(tensors));
  const Bytes bytes = BytesOf(tensors);
  if (member == 0) {
    trial_ = members_ > 1 && processes_ == nullptr ? choice_.Next(bytes) : ReductionChoice::Trial{};
    sums_.assign(work_[own].size(), std::vector<Tensor>(static_cast<std::size_t>(members_)));
  }
  LGPU_RETURN_IF_ERROR(meeting.Come());
  LGPU_RETURN_IF_ERROR(CheckOffers());
  const ReductionChoice::Trial trial = trial_;
  if (trial.measure) {
    LGPU_RETURN_IF_ERROR(Wait(tensors));
    LGPU_RETURN_IF_ERROR(meeting.Come());
  }
  const auto start = std::chrono::steady_clock::now();
  LGPU_ASSIGN_OR_RETURN(std::vector<Tensor> reduced, trial.method == ReductionMethod::kOneDevice
                                                         ? OnOneDevice(member, meeting)
                                                         : InSlices(member, meeting));
  if (trial.measure) LGPU_RETURN_IF_ERROR(Wait(reduced));
  // After this meeting every member has read the slots, so the next call may write them. Replica 0 learns
  // here how long the slowest member took.
  LGPU_RETURN_IF_ERROR(meeting.Come());
  if (member == 0 && trial.measure) {
    choice_.Learn(bytes, trial,
                  std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return reduced.size() == tensors.size() ? reduced : Unpacked(reduced.front(), tensors);
}

void AllReducer::Clear() {
  for (std::vector<Tensor>& tensors : offered_) tensors.clear();
  for (std::vector<Tensor>& tensors : work_) tensors.clear();
  sums_.clear();
}

absl::Status AllReducer::CheckOffers() const {
  const std::vector<Tensor>& first = offered_[0];
  for (std::size_t member = 1; member < offered_.size(); ++member) {
    const std::vector<Tensor>& other = offered_[member];
    if (other.size() != first.size()) {
      return absl::InvalidArgumentError(Cat("AllReduce of ", first.size(), " tensors on replica 0 and of ",
                                            other.size(), " on replica ", member));
    }
    for (std::size_t i = 0; i < first.size(); ++i) {
      if (other[i].shape() == first[i].shape() && other[i].dtype() == first[i].dtype()) continue;
      return absl::InvalidArgumentError(Cat("AllReduce of tensor #", i, ": it is ",
                                            DTypeName(first[i].dtype()), first[i].shape().ToString(),
                                            " on replica 0 and ", DTypeName(other[i].dtype()),
                                            other[i].shape().ToString(), " on replica ", member));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Tensor>> AllReducer::OnOneDevice(int member, Meeting& meeting) {
  if (member == 0) {
    for (std::size_t i = 0; i < sums_.size(); ++i) {
      std::vector<Tensor> values;
      for (const std::vector<Tensor>& offered : work_) values.push_back(offered[i]);
      LGPU_ASSIGN_OR_RETURN(sums_[i][0], AddN(values));
    }
    if (processes_ != nullptr) LGPU_RETURN_IF_ERROR(AddOtherProcesses());
  }
  LGPU_RETURN_IF_ERROR(meeting.Come());
  std::vector<Tensor> reduced;
  const std::vector<Tensor>& own = work_[static_cast<std::size_t>(member)];
  for (std::size_t i = 0; i < sums_.size(); ++i) {
    LGPU_ASSIGN_OR_RETURN(Tensor copy, CopyToDevice(sums_[i][0], own[i].device()));
    reduced.push_back(std::move(copy));
  }
  return reduced;
}

absl::Status AllReducer::AddOtherProcesses() {
  std::vector<Tensor> sums;
  for (const std::vector<Tensor>& sum : sums_) sums.push_back(sum[0]);
  LGPU_RETURN_IF_ERROR(processes_->Sum(context_, sums));
  for (std::size_t i = 0; i < sums.size(); ++i) sums_[i][0] = std::move(sums[i]);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Tensor>> AllReducer::InSlices(int member, Meeting& meeting) {
  for (std::size_t i = 0; i < sums_.size(); ++i) {
    const std::int64_t elements = work_[0][i].shape().elements();
    const Slice slice = SliceOf(elements, member, members_);
    std::vector<Tensor> values;
    for (const std::vector<Tensor>& offered : work_) {
      LGPU_ASSIGN_OR_RETURN(const Tensor flat, Reshape(offered[i], Shape{elements}));
      LGPU_ASSIGN_OR_RETURN(Tensor part, SliceRows(flat, slice.begin, slice.count));
      values.push_back(std::move(part));
    }
    LGPU_ASSIGN_OR_RETURN(sums_[i][static_cast<std::size_t>(member)], AddN(values));
  }
  LGPU_RETURN_IF_ERROR(meeting.Come());
  std::vector<Tensor> reduced;
  for (std::size_t i = 0; i < sums_.size(); ++i) {
    LGPU_ASSIGN_OR_RETURN(const Tensor flat, Concat(sums_[i]));
    LGPU_ASSIGN_OR_RETURN(Tensor whole, Reshape(flat, work_[0][i].shape()));
    reduced.push_back(std::move(whole));
  }
  return reduced;
}

}  // namespace lgpu::internal
