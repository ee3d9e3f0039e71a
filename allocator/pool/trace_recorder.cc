#include "allocator/pool/trace_recorder.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace lgpu {
namespace {

constexpr std::size_t kBuffer = std::size_t{256} << 10;

const char* NameOf(TraceRecorder::Action action) {
  switch (action) {
    case TraceRecorder::Action::kAllocate:
      return "allocate";
    case TraceRecorder::Action::kFree:
      return "free";
    case TraceRecorder::Action::kFailure:
      return "allocate failure";
  }
  return "";
}

// "13:35:26:000123", as RMM writes it; in UTC.
void AppendTime(std::string& line) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto micros = std::chrono::duration_cast<std::chrono::microseconds>(now).count();
  const auto seconds = micros / 1'000'000;
  absl::StrAppendFormat(&line, "%02d:%02d:%02d:%06d", seconds / 3600 % 24, seconds / 60 % 60, seconds % 60,
                        micros % 1'000'000);
}

}  // namespace

absl::StatusOr<std::unique_ptr<TraceRecorder>> TraceRecorder::Open(const std::string& path) {
  std::unique_ptr<TraceRecorder> recorder(new TraceRecorder(path));
  MutexLock file(recorder->file_mutex_);
  recorder->file_.open(path, std::ios::trunc);
  if (!recorder->file_) {
    const int error = errno;
    return absl::ErrnoToStatus(error, absl::StrCat("the trace file ", path, " cannot be written"));
  }
  MutexLock lock(recorder->mutex_);
  recorder->lines_ = "Thread,Time,Action,Pointer,Size,Stream\n";
  return recorder;
}

void TraceRecorder::Record(Action action, const void* address, Bytes bytes, StreamId stream) {
  std::string line = absl::StrCat(syscall(SYS_gettid), ",");
  std::string full;
  {
    MutexLock lock(mutex_);
    if (finished_) return;
    AppendTime(line);
    absl::StrAppend(&lines_, line, ",", NameOf(action), ",0x",
                    absl::Hex(reinterpret_cast<std::uintptr_t>(address)), ",", bytes.count(), ",0x",
                    absl::Hex(stream), "\n");
    if (lines_.size() < kBuffer) return;
  }
  // Takes the lines out under the file's lock, so that they are written in order.
  MutexLock file(file_mutex_);
  {
    MutexLock lock(mutex_);
    full = std::exchange(lines_, {});
  }
  Write(full);
}

void TraceRecorder::Write(const std::string& lines) {
  file_mutex_.AssertHeld();
  file_ << lines;
  if (!file_ && status_.ok()) {
    status_ = absl::DataLossError(absl::StrCat("the trace file ", path_, " could not be written to its end"));
  }
}

absl::Status TraceRecorder::Finish() {
  MutexLock file(file_mutex_);
  std::string rest;
  {
    MutexLock lock(mutex_);
    rest = std::exchange(lines_, {});
    finished_ = true;
  }
  Write(rest);
  file_.close();
  Write({});  // notes that closing failed
  return status_;
}

}  // namespace lgpu
