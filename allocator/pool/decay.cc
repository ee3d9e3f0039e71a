#include "allocator/pool/decay.h"

#include <algorithm>

namespace lgpu {
namespace {

constexpr int kLongHold = 10;
constexpr std::uint64_t kReserveShare = 50;  // of the peak
constexpr std::uint64_t kReservePages = 16;
// Memory that had to be fetched again within this time was given back too early.
constexpr std::chrono::seconds kRegret{30};
constexpr int kMostPatience = 64;

}  // namespace

void Decay::Note(TimePoint now, const Look& look) {
  if (marks_.empty() || now - marks_.back().time >= hold() / 8) marks_.push_back({look.newest, now});
  while (marks_.size() > 1 && marks_[1].time + hold() * kLongHold <= now) marks_.pop_front();
  if (look.spare != spare_) {
    spare_ = look.spare;
    spare_since_ = now;
  }
  if (returned_ && look.round_trips != round_trips_) {
    patience_ = std::min(patience_ * 2, kMostPatience);
    returned_.reset();
  }
  if (returned_ && now - *returned_ > kRegret * patience_) returned_.reset();
  round_trips_ = look.round_trips;
}

bool Decay::IsQuiet(TimePoint now, std::uint64_t operations) {
  if (operations != operations_) {
    operations_ = operations;
    operations_since_ = now;
    return false;
  }
  return now - operations_since_ >= kHold;
}

void Decay::Rebase(Stamp by) {
  for (Mark& mark : marks_) mark.stamp -= std::min(mark.stamp, by);
}

// The last stamp of memory that has been idle for `age`; nothing: none is known to have been.
std::optional<Decay::Stamp> Decay::StampOfAge(TimePoint now, std::chrono::nanoseconds age) const {
  std::optional<Stamp> stamp;
  for (const Mark& mark : marks_) {
    if (mark.time + age > now) break;
    stamp = mark.stamp;
  }
  return stamp;
}

Decay::Surplus Decay::FindSurplus(TimePoint now, const std::function<Bytes(Stamp)>& idle, Stamp settled,
                                  Bytes peak_used, Bytes page) const {
  const auto idle_for = [&](std::chrono::nanoseconds age) {
    const std::optional<Stamp> stamp = StampOfAge(now, age);
    const Bytes spare = now - spare_since_ >= age ? spare_ : Bytes();
    return stamp ? idle(std::min(*stamp, settled)) + spare : spare;
  };
  const Bytes very_old = idle_for(hold() * kLongHold);
  const Bytes reserve = std::max(peak_used / kReserveShare, page * kReservePages);
  return {.bytes = very_old + SaturatingSub(SaturatingSub(idle_for(hold()), very_old), reserve / 2),
          .with_spare = now - spare_since_ >= hold(),
          .settled = std::min(StampOfAge(now, hold()).value_or(0), settled)};
}

}  // namespace lgpu
