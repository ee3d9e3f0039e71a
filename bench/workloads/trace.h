#ifndef LGPU_BENCH_WORKLOADS_TRACE_H_
#define LGPU_BENCH_WORKLOADS_TRACE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "lgpu/bytes.h"

namespace lgpu::bench {

/// Names a block within a trace. A slot is used again after its block was freed, so that a replay keeps its
/// handles in a plain array.
using Slot = std::uint32_t;

struct Event {
  enum class Kind : std::uint32_t { kAllocate, kFree, kStep };
  Kind kind = Kind::kStep;
  Slot slot = 0;  // kStep: how many steps began before
  Bytes bytes{};  // kAllocate: the size asked for, never zero
};

/// A Trace is a program's requests to its allocator, made ahead of time so that a replay measures only the
/// allocator. It frees every block that it allocates:
///
///   events [0, fill_end)               brings the program up; not timed
///   events [fill_end, drain_begin)     its work, divided into steps where it has any
///   events [drain_begin, end)          frees what was kept to the end
struct Trace {
  std::string name;  // "S3"
  std::string what;  // one line for people
  std::vector<Event> events;
  Slot slots = 0;  // every slot is below this
  std::uint32_t steps = 0;
  std::size_t fill_end = 0;
  std::size_t drain_begin = 0;
};

struct TraceSummary {
  std::uint64_t allocations = 0;
  std::uint64_t frees = 0;
  Bytes peak_live{};  // bytes asked for, before any rounding
  Bytes total{};      // of all allocations
  std::uint64_t hash = 0;
};

TraceSummary Summarize(const Trace& trace);
/// OK, or INTERNAL with the first event that allocates a live slot, frees a dead one or asks for nothing, or
/// with the blocks that are live at the end.
absl::Status Validate(const Trace& trace);

/// A TraceBuilder writes a trace as the program would run. Not thread-safe.
class TraceBuilder {
 public:
  TraceBuilder(std::string name, std::string what);

  Slot Allocate(Bytes bytes);  // zero counts as one byte
  void Free(Slot slot);
  void BeginStep();
  /// Ends the fill, which is all events so far.
  void EndFill() { trace_.fill_end = trace_.events.size(); }
  /// Frees all live blocks, in the order of allocation, and ends the trace.
  Trace Finish() &&;

 private:
  Trace trace_;
  std::vector<Slot> vacant_;
  std::vector<std::uint64_t> born_;  // by slot: one more than the event that allocated it; 0: not live
};

}  // namespace lgpu::bench

#endif  // LGPU_BENCH_WORKLOADS_TRACE_H_
