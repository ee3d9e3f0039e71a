#include "tools/replay.h"

#include <algorithm>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lgpu/status.h"

namespace lgpu {
namespace {

using bench::Contender;
using bench::ContenderOptions;
using bench::Event;
using bench::kPage;
using bench::MakeContender;
using bench::Percentiles;

absl::StatusOr<MakeContender> MakerOf(const ReplayConfiguration& configuration) {
  if (configuration.allocator == "pool") {
    return [pool = configuration.pool](const ContenderOptions& options) -> std::unique_ptr<Contender> {
      return std::make_unique<bench::PoolContender>(options, pool);
    };
  }
  LGPU_ASSIGN_OR_RETURN(const bench::ContenderKind* const kind,
                        bench::FindContenderKind(configuration.allocator));
  return kind->make;
}

absl::StatusOr<Bytes> LimitOf(const ReplayConfiguration& configuration, Bytes peak) {
  if (configuration.limit && configuration.spare) {
    return absl::InvalidArgumentError("give a limit or spare memory, not both");
  }
  Bytes limit = SaturatingAdd(peak, peak);
  if (configuration.limit) {
    limit = *configuration.limit;
  } else if (configuration.spare) {
    limit = bench::LimitWithSpare(peak, *configuration.spare);
  }
  const Bytes largest = 1_TiB;
  limit = RoundUp(std::max(limit, kPage), kPage);
  if (limit > largest) {
    return absl::InvalidArgumentError(absl::StrCat("a limit of ", FormatBytes(limit), " is more than the ",
                                                   FormatBytes(largest), " that can be replayed"));
  }
  return limit;
}

struct PassTimes {  // ticks of each operation, in their order
  std::vector<std::uint32_t> allocations;
  std::vector<std::uint32_t> frees;
};

/// One replay with a stamp before and after each operation.
PassTimes TimedPass(const bench::Trace& trace, Contender& contender, bench::OnRefusal on_refusal) {
  PassTimes times;
  times.allocations.reserve(trace.events.size() / 2);
  times.frees.reserve(trace.events.size() / 2);
  std::vector<bool> live(trace.slots);
  const auto since = [](std::uint64_t start) {
    const std::uint64_t ticks = bench::OperationClock::Now() - start;
    return static_cast<std::uint32_t>(std::min<std::uint64_t>(ticks, ~std::uint32_t{0}));
  };
  for (const Event& event : trace.events) {
    if (event.kind == Event::Kind::kAllocate) {
      const std::uint64_t start = bench::OperationClock::Now();
      const bool allocated = contender.Allocate(event.slot, event.bytes);
      times.allocations.push_back(since(start));
      live[event.slot] = allocated;
      if (!allocated && on_refusal == bench::OnRefusal::kStop) break;
    } else if (event.kind == Event::Kind::kFree && live[event.slot]) {
      const std::uint64_t start = bench::OperationClock::Now();
      contender.Free(event.slot);
      times.frees.push_back(since(start));
      live[event.slot] = false;
    }
  }
  return times;
}

double RatioOf(Bytes part, Bytes whole) {
  return whole.is_zero() ? 0 : static_cast<double>(part.count()) / static_cast<double>(whole.count());
}

std::string Ratio(Bytes part, Bytes whole) {
  const auto ten_thousandths = static_cast<std::uint64_t>(RatioOf(part, whole) * 10000 + 0.5);
  std::string digits = absl::StrCat(ten_thousandths % 10000);
  digits.insert(0, 4 - digits.size(), '0');
  return absl::StrCat(ten_thousandths / 10000, ".", digits);
}

std::string TimeLine(std::string_view what, const Percentiles& times) {
  const auto ns = [](double value) { return absl::StrCat(static_cast<std::uint64_t>(value + 0.5), " ns"); };
  return absl::StrCat(std::string(what), " p50 ", ns(times.p50), ", p99 ", ns(times.p99), ", p99.9 ",
                      ns(times.p999), ", max ", ns(times.max), "\n");
}

nlohmann::json TimesJson(const Percentiles& times) {
  return {{"count", times.count},
          {"p50_ns", times.p50},
          {"p99_ns", times.p99},
          {"p99_9_ns", times.p999},
          {"max_ns", times.max}};
}

std::string SecondHalf(const bench::SpaceResult& space) {
  return space.warm_steps == 0 ? std::string() : absl::StrCat(" (", space.warm_steps, " steps)");
}

// A text of several lines, below the first word of a line of the report.
std::string Indented(std::string_view text) {
  std::string indented;
  for (const char c : text) {
    indented += c;
    if (c == '\n') indented += "           ";
  }
  return indented;
}

std::string_view FormatName(TraceFormat format) {
  return format == TraceFormat::kRmmLog ? "log" : "lifetimes";
}

}  // namespace

absl::StatusOr<ReplayReport> Replay(const bench::Trace& trace, const ReplayConfiguration& configuration) {
  LGPU_ASSIGN_OR_RETURN(const MakeContender make, MakerOf(configuration));
  ReplayReport report{.trace = bench::Summarize(trace), .limit = Bytes(), .space = {}};
  LGPU_ASSIGN_OR_RETURN(report.limit, LimitOf(configuration, report.trace.peak_live));
  const ContenderOptions options = {.limit = report.limit, .slots = trace.slots};
  {
    const std::unique_ptr<Contender> contender = make(options);
    report.space = bench::ReplayForSpace(trace, *contender, configuration.on_refusal);
    if (const auto* pool = dynamic_cast<const bench::PoolContender*>(contender.get())) {
      report.source = pool->source();
      report.first_refusal = std::string(pool->first_refusal().message());
    }
  }
  if (configuration.passes > 0) {
    PassTimes least;
    for (int pass = 0; pass < configuration.passes; ++pass) {
      const PassTimes now = TimedPass(trace, *make(options), configuration.on_refusal);
      bench::MergePass(now.allocations, least.allocations);
      bench::MergePass(now.frees, least.frees);
    }
    const bench::OperationClock clock;
    report.times = {.allocate = clock.Summarize(least.allocations), .free = clock.Summarize(least.frees)};
  }
  if (configuration.find_smallest_limit) {
    report.searched = true;
    report.smallest_limit = bench::SmallestLimit(trace, make);
  }
  return report;
}

std::string ReportText(const TraceReading& reading, const ReplayConfiguration& configuration,
                       const ReplayReport& report) {
  const bench::SpaceResult& space = report.space;
  const Bytes peak = report.trace.peak_live;
  std::string text = absl::StrCat("trace      ", reading.trace.name, ": ", reading.trace.what, "\n");
  absl::StrAppend(&text, "           ", report.trace.allocations, " allocations of ",
                  FormatBytes(report.trace.total), " in all, ", reading.trace.steps, " steps, at most ",
                  FormatBytes(peak), " live\n");
  if (reading.never_freed + reading.recorded_refusals + reading.unknown_frees + reading.empty_requests > 0) {
    absl::StrAppend(&text, "           in the file: ", reading.never_freed, " never freed, ",
                    reading.recorded_refusals, " refused, ", reading.unknown_frees,
                    " frees of blocks from before, ", reading.empty_requests, " of zero bytes\n");
  }
  absl::StrAppend(&text, "allocator  ", configuration.allocator, ", limit ", FormatBytes(report.limit), " (",
                  Ratio(report.limit, peak), " x peak)");
  if (report.source) {
    absl::StrAppend(&text, ", chunks up to ", FormatBytes(configuration.pool.chunk), ", growth step ",
                    FormatBytes(configuration.pool.pool.growth_step), ", front cache ",
                    FormatBytes(configuration.pool.pool.cache_per_thread));
  }
  absl::StrAppend(&text, "\nresult     ");
  if (space.completed) {
    absl::StrAppend(&text, "completed\n");
  } else {
    absl::StrAppend(&text, space.refusals, " refused, the first at event ", space.first_refusal, " (",
                    FormatBytes(reading.trace.events[space.first_refusal].bytes), ")\n");
    if (!report.first_refusal.empty()) {
      absl::StrAppend(&text, "           ", Indented(report.first_refusal), "\n");
    }
  }
  absl::StrAppend(&text, "memory     at most ", FormatBytes(space.peak_live), " live, ",
                  FormatBytes(space.peak_held), " held (", Ratio(space.peak_held, space.peak_live),
                  " x live)\n");
  absl::StrAppend(&text, "pages      ", space.operations.mapped, " mapped, ", space.operations.unmapped,
                  " unmapped");
  absl::StrAppend(&text, "; in the second half", SecondHalf(space), " ", space.warm_operations.mapped,
                  " mapped, ", space.warm_operations.unmapped, " moved");
  if (report.source) {
    absl::StrAppend(&text, "; calls: ", report.source->grow_calls, " grow, ", report.source->map_calls,
                    " map, ", report.source->unmap_calls, " unmap");
  }
  text += '\n';
  if (report.times) {
    text += TimeLine("time       allocate", report.times->allocate);
    text += TimeLine("           free    ", report.times->free);
  }
  if (report.searched) {
    absl::StrAppend(&text, "smallest   limit that completes: ",
                    report.smallest_limit ? absl::StrCat(FormatBytes(*report.smallest_limit), " (",
                                                         Ratio(*report.smallest_limit, peak), " x peak)")
                                          : std::string("none up to four times the peak"),
                    "\n");
  }
  return text;
}

nlohmann::json ReportJson(const TraceReading& reading, const ReplayConfiguration& configuration,
                          const ReplayReport& report) {
  const bench::SpaceResult& space = report.space;
  nlohmann::json json = {
      {"schema", "lgpu.allocator_replay/v1"},
      {"trace",
       {{"name", reading.trace.name},
        {"what", reading.trace.what},
        {"format", FormatName(reading.format)},
        {"allocations", report.trace.allocations},
        {"steps", reading.trace.steps},
        {"peak_live_bytes", report.trace.peak_live.count()},
        {"total_bytes", report.trace.total.count()},
        {"never_freed", reading.never_freed},
        {"recorded_refusals", reading.recorded_refusals},
        {"unknown_frees", reading.unknown_frees},
        {"empty_requests", reading.empty_requests}}},
      {"configuration", {{"allocator", configuration.allocator}, {"limit_bytes", report.limit.count()}}},
      {"result",
       {{"completed", space.completed},
        {"refusals", space.refusals},
        {"peak_live_bytes", space.peak_live.count()},
        {"peak_held_bytes", space.peak_held.count()},
        {"pages_mapped", space.operations.mapped},
        {"pages_unmapped", space.operations.unmapped},
        {"warm_steps", space.warm_steps},
        {"warm_pages_mapped", space.warm_operations.mapped},
        {"warm_pages_moved", space.warm_operations.unmapped}}}};
  if (!space.completed) {
    json["result"]["first_refusal_event"] = space.first_refusal;
    json["result"]["first_refusal_bytes"] = reading.trace.events[space.first_refusal].bytes.count();
    if (!report.first_refusal.empty()) json["result"]["first_refusal_text"] = report.first_refusal;
  }
  if (report.source) {
    json["configuration"]["chunk_bytes"] = configuration.pool.chunk.count();
    json["configuration"]["growth_step_bytes"] = configuration.pool.pool.growth_step.count();
    json["configuration"]["front_cache_bytes"] = configuration.pool.pool.cache_per_thread.count();
    json["result"]["grow_calls"] = report.source->grow_calls;
    json["result"]["map_calls"] = report.source->map_calls;
    json["result"]["unmap_calls"] = report.source->unmap_calls;
  }
  if (report.times) {
    json["time"] = {{"allocate", TimesJson(report.times->allocate)}, {"free", TimesJson(report.times->free)}};
  }
  if (report.searched) {
    json["smallest_limit"] = {{"found", report.smallest_limit.has_value()}};
    if (report.smallest_limit) {
      json["smallest_limit"]["bytes"] = report.smallest_limit->count();
      json["smallest_limit"]["of_peak"] = RatioOf(*report.smallest_limit, report.trace.peak_live);
    }
  }
  return json;
}

}  // namespace lgpu
