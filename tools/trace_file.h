#ifndef LGPU_TOOLS_TRACE_FILE_H_
#define LGPU_TOOLS_TRACE_FILE_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/workloads/trace.h"

namespace lgpu {

enum class TraceFormat {
  /// "Thread,Time,Action,Pointer,Size,Stream", as RMM's logging adaptor and lgpu's Pool write it. Actions:
  /// allocate, allocate failure (counted, not replayed), free. Time, thread and stream are not looked at:
  /// the order of the lines is the order of events.
  kRmmLog,
  /// "id,first,last,size", as MiniMalloc's inputs (id,lower,upper,size): a block is live from `first` until
  /// just before `last`. At one moment blocks end before others begin.
  kLifetimes,
};

struct TraceReading {
  bench::Trace trace;
  TraceFormat format = TraceFormat::kRmmLog;
  std::uint64_t recorded_refusals = 0;  // lines "allocate failure"
  std::uint64_t unknown_frees = 0;      // of blocks from before the recording began; left out
  std::uint64_t empty_requests = 0;     // of zero bytes; left out
  std::uint64_t never_freed = 0;        // freed at the end of the replay
};

struct TraceReadOptions {
  std::string name;  // of the file, for errors
  /// Sizes of lifetimes are multiplied by it.
  std::uint64_t size_multiplier = 1;
};

/// Columns are found by the names in the first line; other columns are not read. Empty lines, and lines that
/// begin with #, are skipped. INVALID_ARGUMENT, "name:line: what is wrong", for text that cannot be read, or
/// events that cannot have happened.
absl::StatusOr<TraceReading> ParseTrace(std::string_view text, const TraceReadOptions& options);
/// NOT_FOUND or PERMISSION_DENIED for the file itself.
absl::StatusOr<TraceReading> ReadTraceFile(const std::string& path, std::uint64_t size_multiplier = 1);

/// The trace without its division into steps. Blocks get addresses of their own; time is the number of
/// the event, in microseconds or plain.
std::string FormatTrace(const bench::Trace& trace, TraceFormat format);
absl::Status WriteTraceFile(const bench::Trace& trace, TraceFormat format, const std::string& path);

}  // namespace lgpu

#endif  // LGPU_TOOLS_TRACE_FILE_H_
