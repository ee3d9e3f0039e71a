#include "client/runtime/placement_recorder.h"

#include <chrono>
#include <cstdio>
#include <utility>

#include "base/interrupt.h"
#include "base/this_thread.h"
#include "client/runtime/device_text.h"
#include "kernels/registry.h"
#include "kernels/text.h"

namespace lgpu::internal {

namespace {

// The name of copies for an lgpud that knows them as ops only.
constexpr std::string_view kCopyName = "Copy";

int CopyIndex() { return static_cast<int>(AllOps().size()); }

std::uint16_t RecordIdOf(const Device* device) {
  return device == nullptr ? PlacementEntry::kHostDevice : device->record_id();
}

/// A constant is an op of the graph in TensorFlow 1.
std::string_view NameInGraph(const Op& op) {
  return &op == &EagerConstOp() ? std::string_view("Const") : std::string_view(op.name);
}

std::uint64_t UnixNanoseconds() {
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                        std::chrono::system_clock::now().time_since_epoch())
                                        .count());
}

}  // namespace

std::uint64_t MonotonicNanoseconds() {
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                        std::chrono::steady_clock::now().time_since_epoch())
                                        .count());
}

PlacementRecorder::PlacementRecorder(ClientPage& page, Sink sink, PlacementLogFormat format,
                                     std::function<void()> wake)
    : page_(page),
      sink_(std::move(sink)),
      unix_offset_ns_(UnixNanoseconds() - MonotonicNanoseconds()),
      format_(format),
      wake_(std::move(wake)) {
  for (const Op& op : AllOps()) SetOpName(page_, op.index, op.name);
  SetOpName(page_, CopyIndex(), kCopyName);
}

void PlacementRecorder::Log(std::string_view line) const {
  Interrupt::BeforeWait();  // the sink may need the program's lock, and stderr may be a pipe
  if (sink_) {
    const ThisThread::SinkCall inside;
    sink_(line);
    return;
  }
  const std::string text = Cat(line, "\n");  // one write, so that lines of threads do not mix
  std::fwrite(text.data(), 1, text.size(), stderr);
}

bool PlacementRecorder::IsInSink() { return ThisThread::IsInSink(); }

void PlacementRecorder::BeforeAll(const std::vector<LogicalDeviceInfo>& devices, bool always) const {
  if (!logging() && !always) return;
  for (const LogicalDeviceInfo& device : devices) Log(CreatedDeviceLine(device));
  if (format_ != PlacementLogFormat::kGraph || !logging()) return;
  std::string mapping = DeviceMappingText(devices);
  mapping.pop_back();  // Log ends the line
  Log(mapping);
}

std::string PlacementRecorder::NextNodeName(const Op& op) const {
  if (format_ != PlacementLogFormat::kGraph) return "";
  const MutexLock lock(mutex_);
  const auto before = nodes_.find(op.index);
  return before == nodes_.end() ? std::string(op.name) : Cat(op.name, "_", before->second);
}

std::string PlacementRecorder::NodeName(const Op& op) const {
  std::uint64_t before = 0;
  {
    const MutexLock lock(mutex_);
    before = nodes_[op.index]++;
  }
  const std::string_view name = NameInGraph(op);
  return before == 0 ? std::string(name) : Cat(name, "_", before);
}

void PlacementRecorder::CountCopy(const Device& from, const Device& to, Bytes bytes) {
  copies_.fetch_add(1, std::memory_order_relaxed);
  copied_bytes_.fetch_add(bytes.count(), std::memory_order_relaxed);
  const MutexLock lock(mutex_);
  auto& count = routes_[{from.name(), to.name()}];
  ++count.first;
  count.second += bytes.count();
}

PlacementRecorder::CopyRoutes PlacementRecorder::copy_routes() const {
  const MutexLock lock(mutex_);
  return routes_;
}

void PlacementRecorder::NoteOp(const Op& op, const Device& device) const {
  if (format_ == PlacementLogFormat::kGraph) {
    const std::string node = NodeName(op);
    if (logging()) Log(Cat(node, ": (", NameInGraph(op), "): ", device.name()));
    return;
  }
  Log(Cat("Executing op ", op.name, " in device ", device.name()));
}

void PlacementRecorder::AfterOp(const Op& op, DType dtype, const DeviceRequest* request, Device& device,
                                bool soft_placed, Bytes output, OpTimes times) {
  device.CountOp(soft_placed);
  PlacementEntry entry;
  entry.op = op.index;
  entry.dtype = static_cast<std::uint16_t>(dtype);
  entry.requested = request == nullptr ? PlacementEntry::kNoDevice : request->record_id;
  entry.device = device.record_id();
  entry.flags = soft_placed ? PlacementEntry::kSoftPlaced : std::uint16_t{0};
  entry.output_bytes = output.count();
  entry.submitted_unix_ns = times.submitted_ns + unix_offset_ns_;
  entry.host_ns = times.returned_ns - times.submitted_ns;
  if (times.device != nullptr) {
    if (const auto kept = device.timers().Keep(std::move(times.device), entry)) {
      if (*kept == OpTimers::Kept::kUnwatched && wake_) wake_();
      return;
    }
  }
  page_.ring.Push(entry);
}

void PlacementRecorder::AfterCopy(const Device* from, const Device* to, DType dtype, Bytes bytes,
                                  OpTimes times) {
  PlacementEntry entry;
  entry.op = static_cast<std::uint16_t>(CopyIndex());
  entry.dtype = static_cast<std::uint16_t>(dtype);
  entry.device = RecordIdOf(to);
  entry.flags = PlacementEntry::kCopy;
  entry.source = RecordIdOf(from);
  entry.output_bytes = bytes.count();
  entry.submitted_unix_ns = times.submitted_ns + unix_offset_ns_;
  entry.host_ns = times.returned_ns - times.submitted_ns;
  page_.ring.Push(entry);
  const MutexLock lock(mutex_);
  auto& [count, sum] = recorded_copies_[{entry.source, entry.device}];
  ++count;
  sum += bytes.count();
}

PlacementRecorder::RecordedCopies PlacementRecorder::recorded_copies() const {
  const MutexLock lock(mutex_);
  return recorded_copies_;
}

void PlacementRecorder::RecordMeasured(Device& device, OpTimers::Which which) {
  for (const PlacementEntry& entry : device.timers().Take(which)) page_.ring.Push(entry);
}

void PlacementRecorder::NoteSoftPlacement(const Op& op, DType dtype, const DeviceRequest& request,
                                          const Device& device) {
  {
    const MutexLock lock(mutex_);
    if (!noted_.emplace(op.index, request.full_name).second) return;
  }
  const bool exists = request.match[0] != DeviceRequest::kNone || request.match[1] != DeviceRequest::kNone;
  const std::string why = exists ? Cat("no kernel for ", DTypeName(dtype), " there") : std::string("unknown");
  Log(Cat("lgpu: note: op ", op.name, " asked for ", request.local_name, " (", why,
          "), runs on /device:", DeviceTypeName(device.type()), ":", device.index(),
          " (soft placement). Later ones are only counted."));
}

}  // namespace lgpu::internal
