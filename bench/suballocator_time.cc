#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "bench/peers/contenders.h"
#include "bench/peers/latency.h"
#include "bench/suballocator_tables.h"
#include "bench/text_table.h"
#include "bench/workloads/catalog.h"

namespace lgpu::bench {
namespace {

using Clock = std::chrono::steady_clock;

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

struct TimeCell {
  std::vector<double> ns_per_pair;  // by round
  Percentiles latency;
  bool cut = false;     // the time was over before the events were
  std::string failure;  // why there is nothing
};

class TimeTable {
 public:
  TimeTable(const Settings& settings, Goals& goals) : settings_(settings), goals_(goals) {}

  void Measure(const TimeWorkload& workload) {
    const absl::StatusOr<Trace> trace = MakeWorkload(workload.name);
    if (!trace.ok()) {
      return;
    }
    std::vector<const ContenderKind*> kinds;
    for (const ContenderKind& kind : ContenderKinds()) {
      if (kind.for_time && (settings_.WantsContender(kind.name) || kind.name == "flat")) {
        kinds.push_back(&kind);
      }
    }
    std::vector<TimeCell> cells(kinds.size());
    for (int round = 0; round < settings_.rounds; ++round) {
      for (std::size_t i = 0; i < kinds.size(); ++i) {
        if (cells[i].failure.empty() && !(cells[i].cut && kinds[i]->scans_lists)) {
          MeasureRound(*kinds[i], *trace, workload.limit, cells[i]);
        }
      }
    }
    for (std::size_t i = 0; i < kinds.size(); ++i) {
      if (cells[i].failure.empty()) {
        MeasureLatency(*kinds[i], *trace, workload.limit, cells[i]);
      }
    }
    PrintRows(*trace, kinds, cells);
  }

 private:
  static constexpr std::size_t kBatch = 1024;

  std::unique_ptr<Contender> Filled(const ContenderKind& kind, const Trace& trace, Bytes limit,
                                    TimeCell& cell) const {
    std::unique_ptr<Contender> contender = kind.make({.limit = limit, .slots = trace.slots});
    const std::span<const Event> fill(trace.events.data(), trace.fill_end);
    const Clock::time_point start = Clock::now();
    for (std::size_t i = 0; i < fill.size(); i += kBatch) {
      const std::span<const Event> batch = fill.subspan(i, std::min(kBatch, fill.size() - i));
      if (kind.replay(*contender, batch) < batch.size()) {
        cell.failure = "refused in the fill";
        return nullptr;
      }
      if (Clock::now() - start > std::chrono::seconds(10)) {
        cell.failure = "fill takes too long";
        return nullptr;
      }
    }
    return contender;
  }

  void MeasureRound(const ContenderKind& kind, const Trace& trace, Bytes limit, TimeCell& cell) const {
    const std::unique_ptr<Contender> contender = Filled(kind, trace, limit, cell);
    if (contender == nullptr) {
      return;
    }
    const std::span<const Event> work(trace.events.data() + trace.fill_end,
                                      trace.drain_begin - trace.fill_end);
    const Clock::time_point start = Clock::now();
    std::chrono::duration<double> elapsed{};
    std::size_t done = 0;
    while (done < work.size()) {
      const std::span<const Event> batch = work.subspan(done, std::min(kBatch, work.size() - done));
      if (kind.replay(*contender, batch) < batch.size()) {
        cell.failure = "refused";
        return;
      }
      done += batch.size();
      elapsed = Clock::now() - start;
      if (elapsed.count() > settings_.seconds) {
        break;
      }
    }
    cell.cut = done < work.size();
    cell.ns_per_pair.push_back(elapsed.count() * 1e9 / (static_cast<double>(done) / 2));
  }

  // The smallest of three passes of each: what neighbours on the machine do to one is not in all.
  void MeasureLatency(const ContenderKind& kind, const Trace& trace, Bytes limit, TimeCell& cell) const {
    for (int pass = 0; pass < 3; ++pass) {
      const std::unique_ptr<Contender> contender = Filled(kind, trace, limit, cell);
      if (contender == nullptr) {
        return;
      }
      const Percentiles now = MeasurePass(kind, trace, *contender);
      Percentiles& least = cell.latency;
      least = pass == 0 ? now
                        : Percentiles{.count = now.count,
                                      .p50 = std::min(least.p50, now.p50),
                                      .p99 = std::min(least.p99, now.p99),
                                      .p999 = std::min(least.p999, now.p999),
                                      .max = std::min(least.max, now.max)};
    }
  }

  Percentiles MeasurePass(const ContenderKind& kind, const Trace& trace, Contender& contender) const {
    std::vector<std::uint32_t> ticks;
    ticks.reserve(trace.drain_begin - trace.fill_end);
    const Clock::time_point start = Clock::now();
    for (std::size_t i = trace.fill_end; i < trace.drain_begin; ++i) {
      const std::uint64_t before = OperationClock::Now();
      kind.replay(contender, {&trace.events[i], 1});
      ticks.push_back(static_cast<std::uint32_t>(
          std::min<std::uint64_t>(OperationClock::Now() - before, ~std::uint32_t{0})));
      if (i % kBatch == 0 &&
          std::chrono::duration<double>(Clock::now() - start).count() > settings_.seconds) {
        break;
      }
    }
    return clock_.Summarize(ticks);
  }

  void PrintRows(const Trace& trace, const std::vector<const ContenderKind*>& kinds,
                 const std::vector<TimeCell>& cells) {
    TextTable table({"allocator", "ns/pair", "ratio", "p50", "p99", "p99.9", "max us", ""});
    for (std::size_t i = 0; i < kinds.size(); ++i) {
      const TimeCell& cell = cells[i];
      if (!cell.failure.empty()) {
        table.AddRow({std::string(kinds[i]->what), cell.failure});
        continue;
      }
      // Of the same round: what disturbs one contender disturbs the base as well.
      std::vector<double> ratios;
      for (std::size_t round = 0; round < cell.ns_per_pair.size(); ++round) {
        ratios.push_back(cell.ns_per_pair[round] / cells[0].ns_per_pair[round]);
      }
      table.AddRow({std::string(kinds[i]->what), Fixed(Median(cell.ns_per_pair), 1),
                    Fixed(Median(ratios), 2) + "x", Fixed(cell.latency.p50, 0), Fixed(cell.latency.p99, 0),
                    Fixed(cell.latency.p999, 0), Fixed(cell.latency.max / 1000, 1),
                    cell.cut ? "not all events" : ""});
      AddGoals(*kinds[i], trace, cell, Median(ratios));
    }
    Print(trace.name + ": " + trace.what + "\n" + table.Text() + "\n");
  }

  void AddGoals(const ContenderKind& kind, const Trace& trace, const TimeCell& cell, double ratio) {
    if (kind.name == "core") {
      goals_.push_back({.figure = "time of a pair, core / flat, " + trace.name,
                        .measured = ratio,
                        .at_most = trace.name == "F" ? 2.0 : 1.3,
                        .digits = 2});
    } else if (kind.name == "pool" && trace.name == "A") {
      goals_.push_back({.figure = "ns per pair, Pool, A",
                        .measured = Median(cell.ns_per_pair),
                        .at_most = 100,
                        .digits = 0});
      goals_.push_back({.figure = "p99.9 / p50, Pool, A",
                        .measured = cell.latency.p999 / cell.latency.p50,
                        .at_most = 10,
                        .digits = 1});
      goals_.push_back({.figure = "longest operation, ms, Pool, A",
                        .measured = cell.latency.max / 1e6,
                        .at_most = 1,
                        .digits = 2});
    } else if (kind.name == "pool" && trace.name == "D") {
      goals_.push_back({.figure = "ns per pair, Pool, D",
                        .measured = Median(cell.ns_per_pair),
                        .at_most = 45,
                        .digits = 0});
    }
  }

  const Settings& settings_;
  Goals& goals_;
  OperationClock clock_;
};

}  // namespace

void TimeTables(const Settings& settings, Goals& goals) {
  Print("Time of a pair of allocate and free, one thread; medians of " + std::to_string(settings.rounds) +
        " interleaved rounds; percentiles of single operations in ns, with the clock's ~10, least of three "
        "passes\n\n");
  TimeTable table(settings, goals);
  for (const TimeWorkload& workload : TimeWorkloads()) {
    if (settings.WantsWorkload(workload.name)) {
      table.Measure(workload);
    }
  }
}

}  // namespace lgpu::bench
