#ifndef LGPU_TOOLS_REPLAY_H_
#define LGPU_TOOLS_REPLAY_H_

#include <cstdint>
#include <optional>
#include <string>

#include "bench/peers/contenders.h"
#include "bench/peers/latency.h"
#include "bench/peers/pool_contender.h"
#include "bench/peers/space.h"
#include "bench/workloads/trace.h"
#include "lgpu/bytes.h"
#include "nlohmann/json.hpp"
#include "tools/trace_file.h"

namespace lgpu {

/// The subject of a replay, and its measurements.
struct ReplayConfiguration {
  std::string allocator = "pool";   // or the name of a model of bench/peers
  std::optional<Bytes> limit{};     // nothing: twice the peak of the trace
  std::optional<double> spare{};    // instead of a limit: the peak and this fraction of it
  bench::PoolConfiguration pool{};  // of the allocator "pool"
  bench::OnRefusal on_refusal = bench::OnRefusal::kGoOn;
  int passes = 3;  // over which times are taken; zero: none are
  bool find_smallest_limit = false;
};

struct ReplayTimes {
  bench::Percentiles allocate;
  bench::Percentiles free;
};

struct ReplayReport {
  bench::TraceSummary trace;
  Bytes limit;  // in whole pages
  bench::SpaceResult space;
  std::optional<bench::SourceCounters> source{};  // of a Pool
  std::string first_refusal{};                    // of a Pool: its text
  std::optional<ReplayTimes> times{};             // of each operation the shortest of all passes
  bool searched = false;
  std::optional<Bytes> smallest_limit{};  // nothing: not within four times the peak
};

/// INVALID_ARGUMENT or NOT_FOUND for a configuration that makes no sense.
absl::StatusOr<ReplayReport> Replay(const bench::Trace& trace, const ReplayConfiguration& configuration);

/// For people; several lines.
std::string ReportText(const TraceReading& reading, const ReplayConfiguration& configuration,
                       const ReplayReport& report);
/// Schema lgpu.allocator_replay/v1: bytes, nanoseconds, ratios.
nlohmann::json ReportJson(const TraceReading& reading, const ReplayConfiguration& configuration,
                          const ReplayReport& report);

}  // namespace lgpu

#endif  // LGPU_TOOLS_REPLAY_H_
