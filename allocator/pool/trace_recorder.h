#ifndef LGPU_ALLOCATOR_POOL_TRACE_RECORDER_H_
#define LGPU_ALLOCATOR_POOL_TRACE_RECORDER_H_

#include <fstream>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "lgpu/bytes.h"
#include "lgpu/stream_fences.h"

namespace lgpu {

/// A TraceRecorder writes what a pool did to a file, one line each, in the columns of RMM's log:
/// "Thread,Time,Action,Pointer,Size,Stream". An allocation is recorded after it happened and a free before,
/// so that an address is free in the file wherever it is handed out again. Thread-safe.
class TraceRecorder {
 public:
  /// Makes the file, or empties it. NOT_FOUND or PERMISSION_DENIED if it cannot be.
  static absl::StatusOr<std::unique_ptr<TraceRecorder>> Open(const std::string& path);

  enum class Action { kAllocate, kFree, kFailure };
  void Record(Action action, const void* address, Bytes bytes, StreamId stream);
  /// Writes what is left; the first error of all. Nothing is recorded afterwards.
  absl::Status Finish();

 private:
  explicit TraceRecorder(std::string path) : path_(std::move(path)) {}
  void Write(const std::string& lines);

  const std::string path_;
  Mutex mutex_;
  std::string lines_ ABSL_GUARDED_BY(mutex_);
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  // Guards the file only, and is held over writing: only threads that record wait for it.
  Mutex file_mutex_ ABSL_ACQUIRED_BEFORE(mutex_);
  std::ofstream file_ ABSL_GUARDED_BY(file_mutex_);
  absl::Status status_ ABSL_GUARDED_BY(file_mutex_);
};

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_POOL_TRACE_RECORDER_H_
