#include "daemon/sessions/placement_log.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/saturate.h"
#include "google/protobuf/util/time_util.h"

namespace lgpu::daemon {
namespace {

using google::protobuf::util::TimeUtil;

constexpr std::uint64_t kMaxUnixSeconds = 253'402'300'799ULL;  // the last that a Timestamp can hold
constexpr std::uint64_t kMaxHostNs = std::uint64_t{1} << 60;
constexpr std::uint16_t kMaxDType = 255;
// The ops of this version of the library.
constexpr std::string_view kOps[] = {"MatMul", "AddN", "Cast", "Identity", "_EagerConst"};

// Names of the numbers that PlacementEntry::dtype carries (TensorFlow's DataType).
std::string DTypeText(std::uint16_t dtype) {
  switch (dtype) {
    case 0:
      return "";
    case 1:
      return "float";
    case 2:
      return "double";
    case 3:
      return "int32";
    case 9:
      return "int64";
    case 14:
      return "bfloat16";
    case 19:
      return "half";
    default:
      return absl::StrCat("DT_", dtype);
  }
}

std::string DeviceText(std::uint16_t device) {
  if (device == PlacementEntry::kNoDevice) return "";
  return device == PlacementEntry::kHostDevice ? "/job:localhost/replica:0/task:0/device:CPU:0"
                                               : FullDeviceName(device);
}

v1::PlacementRecord ToProto(const PlacementLog::Record& record, std::uint64_t sequence) {
  const PlacementEntry& entry = record.entry;
  v1::PlacementRecord proto;
  proto.set_sequence(sequence);
  proto.set_session_id(record.session.value);
  proto.set_pid(record.pid);
  proto.set_op(record.op);
  proto.set_dtype(DTypeText(entry.dtype));
  proto.set_requested_device(DeviceText(entry.requested));
  proto.set_device(DeviceText(entry.device));
  proto.set_output_bytes(entry.output_bytes);
  *proto.mutable_submitted_at() =
      TimeUtil::NanosecondsToTimestamp(static_cast<std::int64_t>(entry.submitted_unix_ns));
  proto.set_host_ns(entry.host_ns);
  if ((entry.flags & PlacementEntry::kHasDeviceTime) != 0) proto.set_device_ns(entry.device_ns);
  proto.set_soft_placed((entry.flags & PlacementEntry::kSoftPlaced) != 0);
  return proto;
}

v1::CopyRecord ToCopy(const PlacementLog::Record& record, std::uint64_t sequence) {
  const PlacementEntry& entry = record.entry;
  v1::CopyRecord proto;
  proto.set_sequence(sequence);
  proto.set_session_id(record.session.value);
  proto.set_pid(record.pid);
  proto.set_source(DeviceText(entry.source));
  proto.set_target(DeviceText(entry.device));
  proto.set_dtype(DTypeText(entry.dtype));
  proto.set_bytes(entry.output_bytes);
  *proto.mutable_submitted_at() =
      TimeUtil::NanosecondsToTimestamp(static_cast<std::int64_t>(entry.submitted_unix_ns));
  proto.set_host_ns(entry.host_ns);
  return proto;
}

bool IsCopy(const PlacementEntry& entry) { return (entry.flags & PlacementEntry::kCopy) != 0; }

using TimePoint = std::chrono::system_clock::time_point;

TimePoint SubmittedAt(const PlacementEntry& entry) {
  return TimePoint(std::chrono::duration_cast<TimePoint::duration>(
      std::chrono::nanoseconds(std::min<std::uint64_t>(entry.submitted_unix_ns, INT64_MAX))));
}

}  // namespace

void PlacementLog::Add(const std::vector<Record>& records, std::uint64_t dropped) {
  if (records.empty() && dropped == 0) return;
  MutexLock lock(mutex_);
  dropped_ = Saturate(dropped_, dropped);
  const auto now = std::chrono::system_clock::now();
  for (const Record& record : records) {
    last_at_ = std::max(last_at_.value_or(TimePoint()), std::min(now, SubmittedAt(record.entry)));
    IsCopy(record.entry) ? AddCopy(record) : AddOp(record);
  }
}

void PlacementLog::AddOp(const Record& record) {
  Key key{record.entry.device, record.entry.dtype, record.op};
  auto found = totals_.find(key);
  if (found == totals_.end()) {
    if (totals_.size() == kMaxTotals) {
      dropped_ = Saturate(dropped_, 1);
      return;
    }
    found = totals_.emplace(std::move(key), Total()).first;
  }
  Total& total = found->second;
  ++total.count;
  total.output_bytes = Saturate(total.output_bytes, record.entry.output_bytes);
  total.host_ns = Saturate(total.host_ns, record.entry.host_ns);
  total.soft_placed += (record.entry.flags & PlacementEntry::kSoftPlaced) != 0 ? 1 : 0;
  ++total_;
  records_.push_back({record, total_ + copies_total_});
  if (records_.size() > kept_) records_.pop_front();
}

void PlacementLog::AddCopy(const Record& record) {
  CopyTotal& total = copy_totals_[{record.entry.source, record.entry.device}];
  ++total.count;
  total.bytes = Saturate(total.bytes, record.entry.output_bytes);
  total.host_ns = Saturate(total.host_ns, record.entry.host_ns);
  ++copies_total_;
  copies_.push_back({record, total_ + copies_total_});
  if (copies_.size() > kept_) copies_.pop_front();
}

std::optional<std::chrono::system_clock::time_point> PlacementLog::last_at() const {
  MutexLock lock(mutex_);
  return last_at_;
}

PlacementLog::Counts PlacementLog::counts() const {
  MutexLock lock(mutex_);
  return {.records = total_, .dropped = dropped_};
}

void PlacementLog::AddTo(OpCounts& counts) const {
  MutexLock lock(mutex_);
  for (const auto& [key, total] : totals_) {
    const bool known = std::find(std::begin(kOps), std::end(kOps), key.op) != std::end(kOps);
    OpCount& count = counts[{known ? key.op : "other", key.device != PlacementEntry::kHostDevice}];
    count.executed = Saturate(count.executed, total.count);
    count.soft_placed = Saturate(count.soft_placed, total.soft_placed);
  }
}

v1::PlacementReport PlacementLog::Report(std::size_t max_records) const {
  v1::PlacementReport report;
  MutexLock lock(mutex_);
  for (const auto& [key, total] : totals_) {
    v1::PlacementReport::Total& proto = *report.add_totals();
    proto.set_device(DeviceText(key.device));
    proto.set_op(key.op);
    proto.set_dtype(DTypeText(key.dtype));
    proto.set_count(total.count);
    proto.set_output_bytes(total.output_bytes);
    proto.set_host_ns(total.host_ns);
    proto.set_soft_placed(total.soft_placed);
  }
  const std::size_t count =
      max_records == 0 ? records_.size() : std::min<std::size_t>(max_records, records_.size());
  for (std::size_t i = records_.size() - count; i < records_.size(); ++i) {
    *report.add_records() = ToProto(records_[i].record, total_ - records_.size() + 1 + i);
  }
  report.set_records_total(total_);
  report.set_dropped_total(dropped_);
  ReportCopies(max_records, report);
  return report;
}

void PlacementLog::ReportCopies(std::size_t max_records, v1::PlacementReport& report) const {
  for (const auto& [route, total] : copy_totals_) {
    v1::PlacementReport::CopyTotal& proto = *report.add_copy_totals();
    proto.set_source(DeviceText(route.first));
    proto.set_target(DeviceText(route.second));
    proto.set_count(total.count);
    proto.set_bytes(total.bytes);
    proto.set_host_ns(total.host_ns);
  }
  const std::size_t count =
      max_records == 0 ? copies_.size() : std::min<std::size_t>(max_records, copies_.size());
  for (std::size_t i = copies_.size() - count; i < copies_.size(); ++i) {
    *report.add_copies() = ToCopy(copies_[i].record, copies_total_ - copies_.size() + 1 + i);
  }
  report.set_copies_total(copies_total_);
}

PlacementLog::Batch PlacementLog::Read(const Position& after, std::size_t max) const {
  Batch batch;
  MutexLock lock(mutex_);
  const Position kept = {total_ - records_.size(), copies_total_ - copies_.size()};  // before all of them
  Position& at = batch.last;
  at.op = std::max(std::min(after.op, total_), kept.op);
  at.copy = std::max(std::min(after.copy, copies_total_), kept.copy);
  while (batch.records.size() < max && (at.op < total_ || at.copy < copies_total_)) {
    const Kept* const op = at.op < total_ ? &records_[at.op - kept.op] : nullptr;
    const Kept* const copy = at.copy < copies_total_ ? &copies_[at.copy - kept.copy] : nullptr;
    if (copy == nullptr || (op != nullptr && op->order < copy->order)) {
      batch.records.push_back(ToProto(op->record, ++at.op));
    } else {
      *batch.records.emplace_back().mutable_copy() = ToCopy(copy->record, ++at.copy);
    }
  }
  batch.closed = closed_ && at.op == total_ && at.copy == copies_total_;
  return batch;
}

PlacementLog::Position PlacementLog::Before(std::size_t max_records) const {
  MutexLock lock(mutex_);
  const auto last = [max_records](const std::deque<Kept>& kept) {
    return max_records == 0 ? kept.size() : std::min(max_records, kept.size());
  };
  return {total_ - last(records_), copies_total_ - last(copies_)};
}

void PlacementLog::Close() {
  MutexLock lock(mutex_);
  closed_ = true;
}

bool PlacementReader::IsSensible(const PlacementEntry& entry, int devices) const {
  const auto is_device = [devices](std::uint16_t device) {
    return device == PlacementEntry::kHostDevice || device < devices;
  };
  if (IsCopy(entry) && (!is_device(entry.source) || entry.source == entry.device)) return false;
  return is_device(entry.device) &&
         (is_device(entry.requested) || entry.requested == PlacementEntry::kNoDevice) &&
         entry.dtype <= kMaxDType && entry.host_ns <= kMaxHostNs &&
         entry.submitted_unix_ns / 1'000'000'000 <= kMaxUnixSeconds &&
         entry.submitted_unix_ns <= std::uint64_t{std::numeric_limits<std::int64_t>::max()};
}

void PlacementReader::Drain(PlacementLog& log, int devices) {
  constexpr std::size_t kBatch = 512;
  // An honest ring takes a few milliseconds. A ring whose writer makes every step skip a lap must not delay
  // the rings of other sessions.
  constexpr std::uint64_t kLookAtClock = 64;
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(20);
  std::vector<PlacementLog::Record> records;
  std::uint64_t dropped = 0;
  const auto now = std::chrono::system_clock::now();
  MutexLock lock(mutex_);
  for (std::uint64_t step = 0; step < 2 * PlacementRing::kSlots; ++step) {
    if (step % kLookAtClock == kLookAtClock - 1 && std::chrono::steady_clock::now() > end) break;
    const std::optional<PlacementEntry> entry = ring_.Next();
    if (!entry) break;
    std::string op = GetOpName(*page_, entry->op);
    if (op == "?" || !IsSensible(*entry, devices)) {
      ++dropped;
      continue;
    }
    last_at_ = std::max(last_at_.value_or(TimePoint()), std::min(now, SubmittedAt(*entry)));
    records.push_back({.session = session_, .pid = pid_, .op = std::move(op), .entry = *entry});
    if (records.size() == kBatch) {
      log.Add(records, 0);
      records.clear();
    }
  }
  dropped = Saturate(dropped, ring_.lost() - lost_);
  lost_ = ring_.lost();
  log.Add(records, dropped);
}

std::optional<std::chrono::system_clock::time_point> PlacementReader::last_at() const {
  MutexLock lock(mutex_);
  return last_at_;
}

void PlacementReader::BeginWithLastLap() {
  MutexLock lock(mutex_);
  ring_.BeginWithLastLap();
}

void PlacementReader::WriterIsGone() {
  MutexLock lock(mutex_);
  ring_.WriterIsGone();
}

}  // namespace lgpu::daemon
