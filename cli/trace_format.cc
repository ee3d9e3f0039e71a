#include "cli/trace_format.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "google/protobuf/util/time_util.h"
#include "lgpu/status.h"

namespace lgpu::cli {
namespace {

using google::protobuf::util::TimeUtil;
using TraceJson = nlohmann::ordered_json;

// The lease itself, beside its programs, which have their pids.
constexpr std::int64_t kLeaseProcess = 0;

std::int64_t TraceMicroseconds(const google::protobuf::Timestamp& time) {
  return TimeUtil::TimestampToMicroseconds(time);
}

std::string TraceDeviceName(const std::string& name) {
  const std::size_t at = name.rfind("device:");
  return at == std::string::npos ? name : name.substr(at + 7);
}

TraceJson NameEvent(const char* what, std::int64_t pid, std::int64_t tid, const std::string& name) {
  return {{"name", what}, {"ph", "M"}, {"pid", pid}, {"tid", tid}, {"args", {{"name", name}}}};
}

TraceJson OpEvent(const v1::PlacementRecord& op, std::int64_t tid) {
  const bool has_device = op.has_device_ns();
  TraceJson args = {{"dtype", op.dtype()},
                    {"device", op.device()},
                    {"requested_device", op.requested_device()},
                    {"soft_placed", op.soft_placed()},
                    {"output_bytes", op.output_bytes()},
                    {"sequence", op.sequence()},
                    {"host_us", static_cast<double>(op.host_ns()) / 1e3}};
  if (has_device) args["device_us"] = static_cast<double>(op.device_ns()) / 1e3;
  return {{"name", op.op()},
          {"cat", "op"},
          {"ph", "X"},
          {"ts", TraceMicroseconds(op.submitted_at())},
          {"dur", static_cast<double>(op.host_ns()) / 1e3},
          {"pid", op.pid()},
          {"tid", tid},
          {"args", std::move(args)}};
}

TraceJson CopyEvent(const v1::CopyRecord& copy, std::int64_t tid) {
  return {
      {"name", absl::StrCat("copy ", TraceDeviceName(copy.source()), " to ", TraceDeviceName(copy.target()))},
      {"cat", "copy"},
      {"ph", "X"},
      {"ts", TraceMicroseconds(copy.submitted_at())},
      {"dur", static_cast<double>(copy.host_ns()) / 1e3},
      {"pid", copy.pid()},
      {"tid", tid},
      {"args",
       {{"source", copy.source()},
        {"target", copy.target()},
        {"dtype", copy.dtype()},
        {"bytes", copy.bytes()},
        {"sequence", copy.sequence()},
        {"host_us", static_cast<double>(copy.host_ns()) / 1e3}}}};
}

/// Gives each op a lane of its device, and each copy one of its target, in which no other one runs at that
/// time.
class TraceLanes {
 public:
  struct Lane {
    std::int64_t tid = 0;
    double end = 0;
  };
  std::int64_t Place(const v1::PlacementRecord& op) { return Place(op, TraceDeviceName(op.device())); }
  std::int64_t Place(const v1::CopyRecord& copy) {
    return Place(copy, "copies to " + TraceDeviceName(copy.target()));
  }
  template <typename Each>
  absl::Status EachName(const Each& each) const {
    for (const auto& [key, lanes] : lanes_) {
      for (std::size_t i = 0; i < lanes.size(); ++i) {
        const std::string name = i == 0 ? key.second : absl::StrCat(key.second, " (", i + 1, ")");
        LGPU_RETURN_IF_ERROR(each(NameEvent("thread_name", key.first, lanes[i].tid, name)));
      }
    }
    return absl::OkStatus();
  }

 private:
  template <typename Record>
  std::int64_t Place(const Record& record, const std::string& name) {
    const double begin = static_cast<double>(TraceMicroseconds(record.submitted_at()));
    const double end = begin + static_cast<double>(record.host_ns()) / 1e3;
    std::vector<Lane>& lanes = lanes_[{record.pid(), name}];
    for (Lane& lane : lanes) {
      if (lane.end > begin) continue;
      lane.end = end;
      return lane.tid;
    }
    lanes.push_back({.tid = ++tids_[record.pid()], .end = end});
    return lanes.back().tid;
  }

  std::map<std::pair<std::int64_t, std::string>, std::vector<Lane>> lanes_;  // by pid and name
  std::map<std::int64_t, std::int64_t> tids_;                                // the last one of each pid
};

TraceJson CounterEvent(const TraceRecord::Sample& sample, const v1::LogicalDeviceStats& device) {
  return {{"name", absl::StrCat(TraceDeviceName(device.name()), " memory")},
          {"cat", "memory"},
          {"ph", "C"},
          {"ts", TraceMicroseconds(sample.at)},
          {"pid", kLeaseProcess},
          {"args",
           {{"used_bytes", device.used_bytes()},
            {"held_bytes", device.held_bytes()},
            {"charged_bytes", device.charged_bytes()},
            {"limit_bytes", device.limit_bytes()}}}};
}

TraceJson InstantEvent(const v1::Event& event) {
  const bool refused = event.has_refusal();
  TraceJson args = {{"text", event.text()}, {"pid", event.pid()}, {"sequence", event.sequence()}};
  if (refused) args["asked_bytes"] = event.refusal().asked_bytes();
  std::string kind = v1::Event::Kind_Name(event.kind());
  if (constexpr std::string_view kPrefix = "KIND_"; kind.starts_with(kPrefix)) {
    kind = kind.substr(kPrefix.size());
  }
  return {{"name", absl::AsciiStrToLower(kind)},
          {"cat", refused ? "refusal" : "event"},
          {"ph", "i"},
          {"s", "g"},
          {"ts", TraceMicroseconds(event.at())},
          {"pid", kLeaseProcess},
          {"tid", 0},
          {"args", std::move(args)}};
}

/// The names that programs gave themselves, by pid.
std::map<std::int64_t, std::string> TracedPrograms(const TraceRecord& record) {
  std::map<std::int64_t, std::string> programs;
  for (const auto& [sequence, op] : record.ops) programs[op.pid()];
  for (const auto& [sequence, copy] : record.copies) programs[copy.pid()];
  for (const TraceRecord::Sample& sample : record.samples) {
    for (const v1::SessionStats& session : sample.lease.sessions()) {
      programs[session.pid()] = session.command();
    }
  }
  return programs;
}

/// Records come by sequence; lanes need them by time.
template <typename Record>
std::vector<const Record*> ByTime(const std::map<std::uint64_t, Record>& records) {
  std::vector<const Record*> sorted;
  for (const auto& [sequence, record] : records) sorted.push_back(&record);
  std::stable_sort(sorted.begin(), sorted.end(), [](const Record* a, const Record* b) {
    return TraceMicroseconds(a->submitted_at()) < TraceMicroseconds(b->submitted_at());
  });
  return sorted;
}

template <typename Record>
std::uint64_t MissingOf(const std::map<std::uint64_t, Record>& records) {
  return records.empty() ? 0 : records.rbegin()->first - records.begin()->first + 1 - records.size();
}

}  // namespace

std::uint64_t TraceRecord::MissingOps() const { return MissingOf(ops); }

std::uint64_t TraceRecord::MissingCopies() const { return MissingOf(copies); }

absl::Status WriteTrace(const TraceRecord& record, const Sink& sink) {
  const auto dump = [](const TraceJson& json) {
    return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  };
  const TraceJson about = {{"schema", "lgpu.trace/v1"},
                           {"daemon", record.daemon},
                           {"lease", record.lease_id},
                           {"lease_name", record.lease_name},
                           {"missing_ops", absl::StrCat(record.MissingOps())},
                           {"missing_copies", absl::StrCat(record.MissingCopies())}};
  LGPU_RETURN_IF_ERROR(
      sink(absl::StrCat("{\"displayTimeUnit\":\"ms\",\"otherData\":", dump(about), ",\"traceEvents\":[\n",
                        dump(NameEvent("process_name", kLeaseProcess, 0, "lease " + record.lease_name)))));
  const auto write = [&](const TraceJson& event) { return sink(absl::StrCat(",\n", dump(event))); };
  for (const auto& [pid, command] : TracedPrograms(record)) {
    LGPU_RETURN_IF_ERROR(write(
        NameEvent("process_name", pid, 0, absl::StrCat("pid ", pid, command.empty() ? "" : " ", command))));
  }
  TraceLanes lanes;
  for (const v1::PlacementRecord* const op : ByTime(record.ops)) {
    LGPU_RETURN_IF_ERROR(write(OpEvent(*op, lanes.Place(*op))));
  }
  for (const v1::CopyRecord* const copy : ByTime(record.copies)) {
    LGPU_RETURN_IF_ERROR(write(CopyEvent(*copy, lanes.Place(*copy))));
  }
  LGPU_RETURN_IF_ERROR(lanes.EachName(write));
  for (const TraceRecord::Sample& sample : record.samples) {
    for (const v1::LogicalDeviceStats& device : sample.lease.devices()) {
      LGPU_RETURN_IF_ERROR(write(CounterEvent(sample, device)));
    }
  }
  for (const auto& [sequence, event] : record.events) LGPU_RETURN_IF_ERROR(write(InstantEvent(event)));
  return sink("\n]}\n");
}

}  // namespace lgpu::cli
