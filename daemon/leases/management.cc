#include "daemon/leases/management.h"

#include <time.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <set>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/read_file.h"
#include "base/utf8.h"
#include "daemon/recovery/journal.h"
#include "lgpu/status.h"

namespace lgpu::daemon {
namespace {

constexpr int kMaxLabels = 16;
constexpr std::size_t kMaxLabelPartBytes = 63;
constexpr std::size_t kMaxPathBytes = 1024;
constexpr std::chrono::hours kLongestTimeToLive{24 * 3650};

bool IsLabelKey(std::string_view key) {
  return !key.empty() && key.size() <= kMaxLabelPartBytes && std::all_of(key.begin(), key.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' || c == '.' || c == '/';
  });
}

bool IsLabelValue(std::string_view value) {
  return value.size() <= kMaxLabelPartBytes && std::all_of(value.begin(), value.end(), [](char c) {
           return absl::ascii_isprint(static_cast<unsigned char>(c));
         });
}

absl::Status CheckLabels(const v1::Management& request) {
  if (request.labels_size() > kMaxLabels) {
    return absl::InvalidArgumentError(
        absl::StrCat("a lease has at most ", kMaxLabels, " labels, not ", request.labels_size()));
  }
  std::set<std::string> keys;
  for (const v1::Label& label : request.labels()) {
    if (label.key().empty() || label.key().front() == '=') {
      return absl::InvalidArgumentError(absl::StrCat(
          "label \"", AsUtf8(label.key().substr(0, 80)), "=", AsUtf8(label.value().substr(0, 80)),
          "\" begins with '=': write a key before it, as in team=vision"));
    }
    if (!IsLabelKey(label.key()) || !IsLabelValue(label.value())) {
      return absl::InvalidArgumentError(
          absl::StrCat("label \"", AsUtf8(label.key().substr(0, 80)), "\": a key is 1 to ",
                       kMaxLabelPartBytes, " letters, digits, '-', '_', '.' or '/'; a value at most ",
                       kMaxLabelPartBytes, " printable characters"));
    }
    if (!keys.insert(label.key()).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("label ", label.key(), " is given twice; a key has one value"));
    }
  }
  return absl::OkStatus();
}

// The value of a line "KEY VALUE" of a file in a cgroup's folder.
std::optional<std::string> ValueOf(absl::string_view text, absl::string_view key) {
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    if (absl::StartsWith(line, key) && line.substr(key.size(), 1) == " ") {
      return std::string(line.substr(key.size() + 1));
    }
  }
  return std::nullopt;
}

// Each cgroup of version 2 has cpu.stat, with any controllers. 0: there is no such cgroup yet.
std::optional<std::uint64_t> CpuUsec(const std::string& cgroup) {
  const absl::StatusOr<std::string> stat = ReadWholeFile(absl::StrCat(cgroup, "/cpu.stat"));
  if (absl::IsNotFound(stat.status()) && absl::IsNotFound(IsPopulated(cgroup).status())) return 0;
  std::uint64_t usec = 0;
  const std::optional<std::string> value = stat.ok() ? ValueOf(*stat, "usage_usec") : std::nullopt;
  return value && absl::SimpleAtoi(*value, &usec) ? std::optional(usec) : std::nullopt;
}

absl::Status CheckCgroup(const std::string& cgroup) {
  if (cgroup.front() != '/' || cgroup.size() > kMaxPathBytes) {
    return absl::InvalidArgumentError(absl::StrCat("cgroup ", AsUtf8(cgroup.substr(0, 80)),
                                                   ": its folder is an absolute path of at most ",
                                                   kMaxPathBytes, " bytes, such as /sys/fs/cgroup/jobs/7"));
  }
  // One that is not there yet is made later.
  const absl::Status readable = IsPopulated(cgroup).status();
  if (readable.ok() || absl::IsNotFound(readable)) return absl::OkStatus();
  return absl::InvalidArgumentError(std::string(readable.message()));
}

}  // namespace

Management::BootTime BootTimeNow() {
  timespec now{};
  ::clock_gettime(CLOCK_BOOTTIME, &now);
  return std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
}

absl::StatusOr<Management> ParseManagement(const v1::Management& request, Management::BootTime now) {
  LGPU_RETURN_IF_ERROR(CheckLabels(request));
  Management management;
  for (const v1::Label& label : request.labels()) management.labels.emplace_back(label.key(), label.value());
  if (request.time_to_live_ms() > 0) {
    const auto longest = std::chrono::duration_cast<std::chrono::milliseconds>(kLongestTimeToLive).count();
    if (request.time_to_live_ms() > static_cast<std::uint64_t>(longest)) {
      return absl::InvalidArgumentError(absl::StrCat("a time to live of ", request.time_to_live_ms(),
                                                     " ms is more than ten years; leave it out"));
    }
    management.ends_at = now + std::chrono::milliseconds(request.time_to_live_ms());
  }
  management.cgroup = request.end_with_cgroup();
  if (!management.cgroup.empty()) {
    LGPU_RETURN_IF_ERROR(CheckCgroup(management.cgroup));
    management.cgroup_cpu_usec = CpuUsec(management.cgroup);
  }
  if (management.ends_by_itself()) {
    LGPU_ASSIGN_OR_RETURN(management.boot_id, ReadBootId());
  }
  return management;
}

v1::Management ToProto(const Management& management, Management::BootTime now) {
  v1::Management proto;
  for (const auto& [key, value] : management.labels) {
    v1::Label& label = *proto.add_labels();
    label.set_key(key);
    label.set_value(value);
  }
  if (management.ends_at) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(*management.ends_at - now).count();
    // 0 would say that it has no end.
    proto.set_time_to_live_ms(static_cast<std::uint64_t>(std::max<std::int64_t>(left, 1)));
  }
  proto.set_end_with_cgroup(management.cgroup);
  return proto;
}

v1::JournalManagement RecordOf(const Management& management) {
  v1::JournalManagement record;
  for (const auto& [key, value] : management.labels) {
    v1::Label& label = *record.add_labels();
    label.set_key(key);
    label.set_value(value);
  }
  record.set_boot_id(management.boot_id);
  if (management.ends_at) record.set_ends_boottime_ns(management.ends_at->count());
  record.set_cgroup(management.cgroup);
  record.set_was_populated(management.was_populated);
  if (management.cgroup_cpu_usec) record.set_cgroup_cpu_usec(*management.cgroup_cpu_usec);
  return record;
}

Management FromRecord(const v1::JournalManagement& record) {
  Management management;
  for (const v1::Label& label : record.labels()) management.labels.emplace_back(label.key(), label.value());
  if (record.ends_boottime_ns() != 0) management.ends_at = Management::BootTime(record.ends_boottime_ns());
  management.cgroup = record.cgroup();
  management.was_populated = record.was_populated();
  if (record.has_cgroup_cpu_usec()) management.cgroup_cpu_usec = record.cgroup_cpu_usec();
  management.boot_id = record.boot_id();
  return management;
}

bool IsOfAnotherBoot(const v1::JournalManagement& record, const std::string& boot_id) {
  return FromRecord(record).ends_by_itself() && record.boot_id() != boot_id;
}

absl::StatusOr<bool> IsPopulated(const std::string& cgroup) {
  const absl::StatusOr<std::string> events = ReadWholeFile(absl::StrCat(cgroup, "/cgroup.events"));
  if (absl::IsNotFound(events.status()) && ReadWholeFile(absl::StrCat(cgroup, "/cgroup.procs")).ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat(cgroup, " is a cgroup of version 1, which does not tell when its processes have ended"));
  }
  LGPU_RETURN_IF_ERROR(events.status());
  if (const std::optional<std::string> populated = ValueOf(*events, "populated")) return *populated != "0";
  return absl::FailedPreconditionError(
      absl::StrCat(cgroup, "/cgroup.events does not say whether processes are there"));
}

bool HasBeenPopulated(const Management& management) {
  const absl::StatusOr<bool> populated = IsPopulated(management.cgroup);
  if (!populated.ok()) return false;
  if (*populated || !management.cgroup_cpu_usec) return *populated;
  // A process that came and went between two looks has left its CPU time. A cgroup that was made again has
  // less of it than the one that the lease was made with.
  const std::optional<std::uint64_t> usec = CpuUsec(management.cgroup);
  return usec && *usec != 0 && *usec != *management.cgroup_cpu_usec;
}

}  // namespace lgpu::daemon
