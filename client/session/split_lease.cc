#include "client/session/split_lease.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "lgpu/status.h"

namespace lgpu {
namespace {

std::string NameOf(std::size_t i) { return "/device:GPU:" + std::to_string(i); }

}  // namespace

SplitLease::SplitLease(std::unique_ptr<Lease> whole, std::vector<Part> parts)
    : whole_(std::move(whole)), parts_(std::move(parts)), wholes_(whole_->devices().size()) {}

// The sources give their chunks back before the lease goes.
SplitLease::~SplitLease() {
  MutexLock lock(mutex_);
  sources_.clear();
}

absl::StatusOr<std::unique_ptr<Lease>> SplitLease::Open(std::unique_ptr<Lease> whole, std::vector<Part> parts,
                                                        std::chrono::nanoseconds timeout) {
  std::unique_ptr<SplitLease> lease(new SplitLease(std::move(whole), std::move(parts)));
  MutexLock lock(lease->mutex_);
  for (std::size_t of = 0; of < lease->whole_->devices().size(); ++of) {
    LGPU_RETURN_IF_ERROR(lease->CheckParts(static_cast<int>(of)));
  }
  LGPU_RETURN_IF_ERROR(lease->MakeSources(timeout));
  return std::unique_ptr<Lease>(std::move(lease));
}

absl::Status SplitLease::CheckParts(int of) const {
  const LeasedDevice& device = whole_->devices()[static_cast<std::size_t>(of)];
  const std::shared_ptr<RegionSource> source = wholes_[static_cast<std::size_t>(of)].lock();
  const Bytes limit = source != nullptr ? source->limit() : device.memory_limit;
  const Bytes page = device.card.granularity;
  Bytes sum;
  std::size_t count = 0;
  bool has_whole = false;
  for (const Part& part : parts_) {
    if (part.of != of) continue;
    ++count;
    has_whole = has_whole || !part.limit;
    sum = SaturatingAdd(sum, RoundUp(part.limit.value_or(Bytes()), page));
  }
  const std::string where =
      "device " + std::to_string(device.lease_index) + " of lease " + name() + " has " + FormatBytes(limit);
  if (has_whole && count > 1) {
    return absl::InvalidArgumentError(
        "this program splits a GPU of its lease, and one part has no memory_limit; " + where +
        "\n  try: a memory_limit for each part");
  }
  if (sum <= RoundUp(limit, page)) return absl::OkStatus();
  return absl::InvalidArgumentError("this program asks for " + FormatBytes(sum) + " of a GPU of its lease; " +
                                    where +
                                    "\n  try: smaller limits, or a larger lease: lgpu resize, lgpu run -m");
}

// Half of the device's addresses are divided among its parts in proportion to their limits, and half evenly,
// so that a small part can grow.
absl::Status SplitLease::MakeSources(std::chrono::nanoseconds timeout) {
  sources_.resize(parts_.size());
  limits_.resize(parts_.size());
  devices_.resize(parts_.size());
  for (std::size_t of = 0; of < whole_->devices().size(); ++of) {
    const LeasedDevice& device = whole_->devices()[of];
    std::vector<std::size_t> mine;
    Bytes sum;
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      if (parts_[i].of != static_cast<int>(of)) continue;
      mine.push_back(i);
      sum += parts_[i].limit.value_or(device.memory_limit);
    }
    if (mine.empty()) continue;
    const std::shared_ptr<RegionSource> source = whole_->TakeSource(static_cast<int>(of));
    wholes_[of] = source;
    const double half = static_cast<double>(source->reserved().count()) / 2;
    Bytes offset;
    for (const std::size_t i : mine) {
      const Bytes limit = parts_[i].limit.value_or(device.memory_limit);
      const double share = static_cast<double>(limit.count()) / static_cast<double>(sum.count());
      const double piece = half * share + half / static_cast<double>(mine.size());
      const Bytes reserved = RoundDown(Bytes(static_cast<std::uint64_t>(piece)), source->granularity());
      limits_[i] = std::make_shared<PartLimit>(parts_[i].limit);
      sources_[i] = std::make_unique<PartSource>(
          source, PartSource::Options{.offset = offset,
                                      .reserved = std::min(reserved, source->reserved() - offset),
                                      .limit = limits_[i],
                                      .device = NameOf(i),
                                      .lease = name()});
      offset += sources_[i]->reserved();
      devices_[i] = device;
      devices_[i].memory_limit = limit;
      devices_[i].preallocated = parts_[i].preallocate;
      devices_[i].guarantee = parts_[i].preallocate ? limit : Bytes();
    }
  }
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    if (parts_[i].preallocate) LGPU_RETURN_IF_ERROR(sources_[i]->SetAside(timeout));
  }
  return absl::OkStatus();
}

std::unique_ptr<RegionSource> SplitLease::TakeSource(int i) {
  MutexLock lock(mutex_);
  return std::move(sources_.at(static_cast<std::size_t>(i)));
}

absl::Status SplitLease::Resize(int i, Bytes limit, std::optional<Bytes> guarantee) {
  if (guarantee && !guarantee->is_zero()) return NoGuarantee();
  const auto index = static_cast<std::size_t>(i);
  MutexLock lock(mutex_);
  if (parts_.at(index).preallocate) {
    return absl::FailedPreconditionError(NameOf(index) + " is preallocated inside lease " + name() +
                                         ", so its limit cannot change\n  try: memory growth for this GPU");
  }
  const std::optional<Bytes> before = parts_[index].limit;
  parts_[index].limit = limit == kWholeCard ? std::nullopt : std::optional(limit);
  absl::Status status = CheckParts(parts_[index].of);
  if (status.ok()) status = limits_[index]->Set(parts_[index].limit);
  if (!status.ok()) parts_[index].limit = before;
  return status;
}

absl::Status SplitLease::Close() {
  {
    MutexLock lock(mutex_);
    sources_.clear();
  }
  return whole_->Close();
}

absl::Status SplitLease::NoGuarantee() {
  return absl::InvalidArgumentError(
      "a GPU that this program splits off its lease cannot have a guarantee of its own; only the lease can\n"
      "  try: lgpu run --guarantee, or no guarantee for this GPU");
}

}  // namespace lgpu
