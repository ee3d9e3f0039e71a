#include "client/placement_recorder.h"

#include <chrono>
#include <cstdio>
#include <utility>

#include "kernels/registry.h"
#include "kernels/text.h"

namespace lgpu::internal {

namespace {

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

PlacementRecorder::PlacementRecorder(ClientPage& page, Sink sink)
    : page_(page), sink_(std::move(sink)), unix_offset_ns_(UnixNanoseconds() - MonotonicNanoseconds()) {
  for (const Op& op : AllOps()) SetOpName(page_, op.index, op.name);
}

void PlacementRecorder::Log(std::string_view line) const {
  if (sink_) {
    sink_(line);
    return;
  }
  const std::string text = Cat(line, "\n");  // one write, so that lines of threads do not mix
  std::fwrite(text.data(), 1, text.size(), stderr);
}

void PlacementRecorder::LogOp(const Op& op, const Device& device) const {
  Log(Cat("Executing op ", op.name, " in device ", device.name()));
}

void PlacementRecorder::AfterOp(const Op& op, DType dtype, const DeviceRequest* request, Device& device,
                                bool soft_placed, Bytes output, const OpTimes& times) {
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
  page_.ring.Push(entry);
}

void PlacementRecorder::NoteSoftPlacement(const Op& op, DType dtype, const DeviceRequest& request,
                                          const Device& device) {
  {
    const MutexLock lock(mutex_);
    if (!noted_.emplace(op.index, request.full_name).second) return;
  }
  const bool exists = request.match[0] != DeviceRequest::kNone || request.match[1] != DeviceRequest::kNone;
  const std::string why = exists ? Cat("no kernel for ", DTypeName(dtype), " there") : std::string("unknown");
  Log(Cat("lgpu: note: op ", op.name, " asked for ", request.local_name, " (", why, "), runs on /device:",
          DeviceTypeName(device.type()), ":", device.index(), " (soft placement). Further cases counted."));
}

}  // namespace lgpu::internal
