#include "daemon/leases/lease_ends.h"

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "daemon/recovery/journal.h"
#include "lgpu/status.h"

namespace lgpu::daemon {
namespace {

constexpr std::chrono::hours kLongest{24 * 3650};

absl::StatusOr<LeaseEnds::BootTime> ParseTime(std::uint64_t asked_ms, const char* what) {
  constexpr auto kLongestMs = std::chrono::duration_cast<std::chrono::milliseconds>(kLongest).count();
  if (asked_ms > static_cast<std::uint64_t>(kLongestMs)) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, " of ", asked_ms, " ms is more than ten years; leave it out"));
  }
  return std::chrono::milliseconds(asked_ms);
}

}  // namespace

absl::StatusOr<LeaseEnds> ParseLeaseEnds(const v1::LeaseEnds& request, LeaseEnds::BootTime now) {
  LGPU_ASSIGN_OR_RETURN(const LeaseEnds::BootTime life,
                        ParseTime(request.time_to_live_ms(), "a time to live"));
  LeaseEnds ends;
  LGPU_ASSIGN_OR_RETURN(ends.when_idle, ParseTime(request.when_idle_ms(), "an idle time"));
  if (life.count() > 0) {
    ends.at = now + life;
    LGPU_ASSIGN_OR_RETURN(ends.boot_id, ReadBootId());
  }
  return ends;
}

v1::LeaseEnds ToProto(const LeaseEnds& ends, LeaseEnds::BootTime now) {
  v1::LeaseEnds proto;
  const auto milliseconds = [](LeaseEnds::BootTime time) {
    return std::chrono::duration_cast<std::chrono::milliseconds>(time).count();
  };
  // 0 would say that it has no end.
  if (ends.at) {
    proto.set_time_to_live_ms(
        static_cast<std::uint64_t>(std::max<std::int64_t>(milliseconds(*ends.at - now), 1)));
  }
  proto.set_when_idle_ms(static_cast<std::uint64_t>(milliseconds(ends.when_idle)));
  return proto;
}

v1::JournalEnds RecordOf(const LeaseEnds& ends) {
  v1::JournalEnds record;
  record.set_boot_id(ends.boot_id);
  if (ends.at) record.set_ends_boottime_ns(ends.at->count());
  record.set_when_idle_ns(ends.when_idle.count());
  return record;
}

LeaseEnds FromRecord(const v1::JournalEnds& record) {
  LeaseEnds ends;
  if (record.ends_boottime_ns() != 0) ends.at = LeaseEnds::BootTime(record.ends_boottime_ns());
  ends.when_idle = LeaseEnds::BootTime(record.when_idle_ns());
  ends.boot_id = record.boot_id();
  return ends;
}

bool IsOfAnotherBoot(const v1::JournalEnds& record, const std::string& boot_id) {
  return record.ends_boottime_ns() != 0 && record.boot_id() != boot_id;
}

std::string WhyOver(const LeaseEnds& ends, bool has_programs, LeaseEnds::BootTime used_at,
                    LeaseEnds::BootTime now) {
  if (ends.at && now >= *ends.at) return "its time to live has passed";
  const bool is_idle = ends.when_idle.count() > 0 && !has_programs && now - used_at >= ends.when_idle;
  return is_idle ? "it was idle for as long as its owner allowed" : "";
}

}  // namespace lgpu::daemon
