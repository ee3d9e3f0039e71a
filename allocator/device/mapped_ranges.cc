#include "allocator/device/mapped_ranges.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "allocator/device/simulated/memfd.h"
#include "base/check.h"

namespace lgpu {
namespace {

std::string At(const void* address) { return absl::StrFormat("%p", address); }

}  // namespace

void MappedRanges::AddReservation(std::byte* base, Bytes bytes) {
  MutexLock lock(mutex_);
  reservations_.emplace(base, bytes);
}

absl::Status MappedRanges::TakeReservation(std::byte* base, Bytes bytes) {
  MutexLock lock(mutex_);
  const auto reservation = reservations_.find(base);
  if (reservation == reservations_.end() || reservation->second != bytes) {
    return absl::InvalidArgumentError(absl::StrCat("unreserve: ", FormatBytes(bytes), " at ", At(base),
                                                   " is no reserved range as a whole"));
  }
  const auto first = mappings_.lower_bound(base);
  if (first != mappings_.end() && first->first < base + bytes.count()) {
    return absl::FailedPreconditionError(absl::StrCat("unreserve: memory is still mapped at ",
                                                      At(first->first), " in the range at ", At(base),
                                                      "; unmap it first"));
  }
  reservations_.erase(reservation);
  return absl::OkStatus();
}

absl::Status MappedRanges::BeginMap(std::byte* address, const Mapping& mapping, Bytes granularity) {
  if ((reinterpret_cast<std::uintptr_t>(address) & (granularity.count() - 1)) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("map: address ", At(address), " is no multiple of ", FormatBytes(granularity)));
  }
  MutexLock lock(mutex_);
  auto reservation = reservations_.upper_bound(address);
  const bool inside =
      reservation != reservations_.begin() && (reservation = std::prev(reservation), true) &&
      address < reservation->first + reservation->second.count() &&
      mapping.bytes <=
          Bytes(static_cast<std::uint64_t>(reservation->first + reservation->second.count() - address));
  if (!inside) {
    return absl::InvalidArgumentError(absl::StrCat("map: ", FormatBytes(mapping.bytes), " at ", At(address),
                                                   " do not lie in one reserved range"));
  }
  auto next = mappings_.lower_bound(address);
  const bool overlaps_next = next != mappings_.end() && next->first < address + mapping.bytes.count();
  const bool overlaps_previous =
      next != mappings_.begin() &&
      std::prev(next)->first + std::prev(next)->second.mapping.bytes.count() > address;
  if (overlaps_next || overlaps_previous) {
    return absl::FailedPreconditionError(absl::StrCat("map: other memory is mapped already in ",
                                                      FormatBytes(mapping.bytes), " at ", At(address)));
  }
  if (mappings_.size() >= max_mappings_) {
    return MachineRefusal(RefusalReason::kMapCount, "mapping of a chunk", mapping.bytes);
  }
  mappings_.emplace_hint(next, address, Entry{.mapping = mapping, .changing = true});
  return absl::OkStatus();
}

absl::StatusOr<MappedRanges::Mapping> MappedRanges::BeginUnmap(std::byte* address) {
  MutexLock lock(mutex_);
  const auto found = mappings_.find(address);
  if (found == mappings_.end()) {
    return absl::FailedPreconditionError(
        absl::StrCat("unmap: no mapping starts at ", At(address), "; mappings are taken away whole"));
  }
  if (found->second.changing) {
    return absl::FailedPreconditionError(
        absl::StrCat("unmap: the mapping at ", At(address), " is being changed by another call"));
  }
  found->second.changing = true;
  return found->second.mapping;
}

void MappedRanges::Settle(std::byte* address, bool mapped) {
  MutexLock lock(mutex_);
  const auto found = mappings_.find(address);
  LGPU_CHECK(found != mappings_.end() && found->second.changing);
  if (mapped) {
    found->second.changing = false;
  } else {
    mappings_.erase(found);
  }
}

absl::StatusOr<std::vector<MappedRanges::MappedRange>> MappedRanges::BeginAccess(std::byte* address,
                                                                                 Bytes bytes) {
  MutexLock lock(mutex_);
  std::vector<MappedRange> ranges;
  std::byte* const end = address + bytes.count();
  std::byte* reached = address;
  for (auto at = mappings_.find(address); reached < end; ++at) {
    if (at == mappings_.end() || at->first != reached || at->second.changing) {
      return absl::FailedPreconditionError(absl::StrCat("set access: nothing is mapped at ", At(reached),
                                                        " in ", FormatBytes(bytes), " at ", At(address),
                                                        "; the range has to be made of whole mappings"));
    }
    ranges.push_back({at->first, at->second.mapping});
    reached += at->second.mapping.bytes.count();
  }
  if (reached != end) {
    return absl::FailedPreconditionError(absl::StrCat("set access: ", FormatBytes(bytes), " at ", At(address),
                                                      " end inside a mapping; take whole ones"));
  }
  for (const MappedRange& range : ranges) mappings_.find(range.address)->second.changing = true;
  return ranges;
}

void MappedRanges::SettleAccess(const std::vector<MappedRange>& ranges, bool accessible) {
  MutexLock lock(mutex_);
  for (const MappedRange& range : ranges) {
    const auto found = mappings_.find(range.address);
    LGPU_CHECK(found != mappings_.end() && found->second.changing);
    found->second.changing = false;
    found->second.accessible |= accessible;
  }
}

absl::StatusOr<int> MappedRanges::DeviceOf(const std::byte* address, Bytes bytes) const {
  MutexLock lock(mutex_);
  // The map's keys are not const; nothing is written through them.
  auto* const begin = const_cast<std::byte*>(address);
  auto at = mappings_.upper_bound(begin);
  std::uint64_t left = bytes.count();
  std::byte* reached = begin;
  std::optional<int> device;
  if (at != mappings_.begin()) {
    for (--at; left != 0 && at != mappings_.end() && at->first <= reached; ++at) {
      const std::uint64_t skip = static_cast<std::uint64_t>(reached - at->first);
      const MappedRanges::Mapping& mapping = at->second.mapping;
      if (skip >= mapping.bytes.count() || !at->second.accessible) break;
      if (device.value_or(mapping.device) != mapping.device) {
        return absl::InvalidArgumentError(absl::StrCat("copy: ", bytes.count(), " bytes at ", At(address),
                                                       " are memory of several devices; copy each alone"));
      }
      device = mapping.device;
      const std::uint64_t step = std::min(left, mapping.bytes.count() - skip);
      left -= step;
      reached += step;
    }
  }
  if (left == 0) return device.value_or(0);
  return absl::FailedPreconditionError(absl::StrCat("copy: device memory at ", At(reached), " of ",
                                                    bytes.count(), " bytes at ", At(address),
                                                    " is not mapped or has no access set"));
}

std::vector<MappedRanges::MappedRange> MappedRanges::NotOpenTo(int peer, const std::byte* address,
                                                               Bytes bytes) const {
  MutexLock lock(mutex_);
  auto* const begin = const_cast<std::byte*>(address);
  auto at = mappings_.upper_bound(begin);
  std::vector<MappedRange> closed;
  if (at != mappings_.begin()) --at;
  for (; at != mappings_.end() && at->first < begin + bytes.count(); ++at) {
    const bool overlaps = at->first + at->second.mapping.bytes.count() > begin;
    if (overlaps && (at->second.open_to >> peer & 1) == 0) closed.push_back({at->first, at->second.mapping});
  }
  return closed;
}

void MappedRanges::SetOpenTo(int peer, const std::vector<MappedRange>& ranges) {
  MutexLock lock(mutex_);
  for (const MappedRange& range : ranges) {
    const auto found = mappings_.find(range.address);
    if (found != mappings_.end() && found->second.mapping.memory == range.mapping.memory) {
      found->second.open_to |= std::uint64_t{1} << peer;
    }
  }
}

MappedRanges::Everything MappedRanges::TakeAll() {
  Everything all;
  MutexLock lock(mutex_);
  for (const auto& [address, entry] : mappings_) all.mappings.push_back({address, entry.mapping});
  all.reservations.assign(reservations_.begin(), reservations_.end());
  mappings_.clear();
  reservations_.clear();
  return all;
}

void MappedRanges::Forget() {
  // The lock may have been held by a thread that does not exist in this process.
  mutex_.AssertHeld();
  reservations_.clear();
  mappings_.clear();
}

}  // namespace lgpu
