#ifndef LGPU_CLIENT_RUNTIME_PLACEMENT_RECORDER_H_
#define LGPU_CLIENT_RUNTIME_PLACEMENT_RECORDER_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"
#include "client/runtime/device.h"
#include "client/runtime/placer.h"
#include "kernels/op.h"
#include "lgpu/context.h"
#include "proto/wire/pages.h"

namespace lgpu::internal {

/// The times of one op.
struct OpTimes {
  std::uint64_t submitted_ns = 0;  // of the monotonic clock
  std::uint64_t returned_ns = 0;
  std::unique_ptr<StreamTimer> device = {};  // null: not measured
};
std::uint64_t MonotonicNanoseconds();

/// A PlacementRecorder tells where ops run: a record in the client page for the daemon, and lines for
/// people. Thread-safe.
class PlacementRecorder {
 public:
  using Sink = std::function<void(std::string_view line)>;

  /// `page` outlives the recorder; names of all ops are written to it. An empty `sink` is stderr.
  /// `wake`: RecordMeasured should be called soon.
  PlacementRecorder(ClientPage& page, Sink sink, PlacementLogFormat format = PlacementLogFormat::kEager,
                    std::function<void()> wake = {});

  /// One line, to the sink or stderr.
  void Log(std::string_view line) const;
  /// Whether this thread is inside of a sink, of any recorder.
  static bool IsInSink();

  bool logging() const { return logging_.load(std::memory_order_relaxed); }
  void set_logging(bool on) { logging_.store(on, std::memory_order_relaxed); }
  /// The lines at the start of a context: its devices, if logging is on or `always`.
  void BeforeAll(const std::vector<LogicalDeviceInfo>& devices, bool always) const;
  /// TensorFlow's line, if logging is on; before the op runs. A graph's nodes are numbered in any case.
  void BeforeOp(const Op& op, const Device& device) const {
    if (logging() || format_ == PlacementLogFormat::kGraph) NoteOp(op, device);
  }
  /// The name of the next node of `op` in a graph; empty where lines are not in that format.
  std::string NextNodeName(const Op& op) const;
  /// Records an op whose kernel was launched; a measured op is recorded when its device time is known.
  void AfterOp(const Op& op, DType dtype, const DeviceRequest* request, Device& device, bool soft_placed,
               Bytes output, OpTimes times);
  /// Records a copy of values from a device, or nullptr for the host, to another one or the host.
  void AfterCopy(const Device* from, const Device* to, DType dtype, Bytes bytes, OpTimes times);
  /// Records the ops of a GPU whose device time is known by now, or all that are left.
  void RecordMeasured(Device& device, OpTimers::Which which);
  /// Says once for each (op, device asked for) that soft placement went elsewhere, and why.
  void NoteSoftPlacement(const Op& op, DType dtype, const DeviceRequest& request, const Device& device);

  using CopyRoutes = std::map<std::pair<std::string, std::string>, std::pair<std::uint64_t, std::uint64_t>>;
  void CountCopy(const Device& from, const Device& to, Bytes bytes);
  /// Copies of tensors between devices and their bytes, by the names of source and target.
  CopyRoutes copy_routes() const;
  /// The same of every copy that has a record, by the record ids of source and target.
  using RecordedCopies =
      std::map<std::pair<std::uint16_t, std::uint16_t>, std::pair<std::uint64_t, std::uint64_t>>;
  RecordedCopies recorded_copies() const;
  std::uint64_t copies() const { return copies_.load(std::memory_order_relaxed); }
  Bytes copied_bytes() const { return Bytes(copied_bytes_.load(std::memory_order_relaxed)); }

 private:
  void NoteOp(const Op& op, const Device& device) const;
  /// "MatMul", "MatMul_1", ...: the names that a graph gives its nodes.
  std::string NodeName(const Op& op) const;

  ClientPage& page_;
  const Sink sink_;
  const std::uint64_t unix_offset_ns_;  // unix time - monotonic time
  std::atomic<bool> logging_{false};
  std::atomic<std::uint64_t> copies_{0};
  std::atomic<std::uint64_t> copied_bytes_{0};
  const PlacementLogFormat format_;
  const std::function<void()> wake_;
  mutable Mutex mutex_;
  mutable std::map<std::uint16_t, std::uint64_t> nodes_ ABSL_GUARDED_BY(mutex_);
  CopyRoutes routes_ ABSL_GUARDED_BY(mutex_);
  RecordedCopies recorded_copies_ ABSL_GUARDED_BY(mutex_);
  std::set<std::pair<std::uint16_t, std::string>> noted_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace lgpu::internal

#endif  // LGPU_CLIENT_RUNTIME_PLACEMENT_RECORDER_H_
