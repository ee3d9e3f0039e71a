#include <time.h>

#include <algorithm>
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

// The thread's own processor time: other processes may load the machine.
class CpuTimer {
 public:
  CpuTimer() : start_(Now()) {}
  double Seconds() const { return Now() - start_; }

 private:
  static double Now() {
    timespec now{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
  }
  const double start_;
};

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
    if (!trace.ok()) return;
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
      if (cells[i].failure.empty()) MeasureLatency(*kinds[i], *trace, workload.limit, cells[i]);
    }
    PrintRows(*trace, kinds, cells);
  }

 private:
  static constexpr std::size_t kBatch = 1024;

  std::unique_ptr<Contender> Filled(const ContenderKind& kind, const Trace& trace, Bytes limit,
                                    TimeCell& cell) const {
    std::unique_ptr<Contender> contender = kind.make({.limit = limit, .slots = trace.slots});
    const std::span<const Event> fill(trace.events.data(), trace.fill_end);
    const CpuTimer timer;
    for (std::size_t i = 0; i < fill.size(); i += kBatch) {
      const std::span<const Event> batch = fill.subspan(i, std::min(kBatch, fill.size() - i));
      if (kind.replay(*contender, batch) < batch.size()) {
        cell.failure = "refused in the fill";
        return nullptr;
      }
      if (timer.Seconds() > 10) {
        cell.failure = "fill takes too long";
        return nullptr;
      }
    }
    return contender;
  }

  void MeasureRound(const ContenderKind& kind, const Trace& trace, Bytes limit, TimeCell& cell) const {
    const std::unique_ptr<Contender> contender = Filled(kind, trace, limit, cell);
    if (contender == nullptr) return;
    const std::span<const Event> work(trace.events.data() + trace.fill_end,
                                      trace.drain_begin - trace.fill_end);
    const CpuTimer timer;
    double elapsed = 0;
    std::size_t done = 0;
    while (done < work.size()) {
      const std::span<const Event> batch = work.subspan(done, std::min(kBatch, work.size() - done));
      if (kind.replay(*contender, batch) < batch.size()) {
        cell.failure = "refused";
        return;
      }
      done += batch.size();
      elapsed = timer.Seconds();
      if (elapsed > settings_.seconds) break;
    }
    cell.cut = done < work.size();
    cell.ns_per_pair.push_back(elapsed * 1e9 / (static_cast<double>(done) / 2));
  }

  // Every pass does the same. The shortest time of each operation counts: other processes disturb an
  // operation in some passes, while the contender's own work is in all of them.
  void MeasureLatency(const ContenderKind& kind, const Trace& trace, Bytes limit, TimeCell& cell) const {
    constexpr int kPasses = 4;
    std::vector<std::uint32_t> least;
    for (int pass = 0; pass < kPasses; ++pass) {
      const std::unique_ptr<Contender> contender = Filled(kind, trace, limit, cell);
      if (contender == nullptr) return;
      MergePass(MeasurePass(kind, trace, *contender), least);
    }
    cell.latency = clock_.Summarize(least);
  }

  std::vector<std::uint32_t> MeasurePass(const ContenderKind& kind, const Trace& trace,
                                         Contender& contender) const {
    std::vector<std::uint32_t> ticks;
    ticks.reserve(trace.drain_begin - trace.fill_end);
    const CpuTimer timer;
    for (std::size_t i = trace.fill_end; i < trace.drain_begin; ++i) {
      const std::uint64_t before = OperationClock::Now();
      kind.replay(contender, {&trace.events[i], 1});
      ticks.push_back(static_cast<std::uint32_t>(
          std::min<std::uint64_t>(OperationClock::Now() - before, ~std::uint32_t{0})));
      if (i % kBatch == 0 && timer.Seconds() > settings_.seconds) break;
    }
    return ticks;
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
      // Ratios within one round: a disturbance of one contender disturbs the base as well.
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
  Print("Time of a pair of allocate and free, one thread, ns of its own time: medians of " +
        std::to_string(settings.rounds) +
        " interleaved rounds; then percentiles of single operations,\nwith the clock's ~10 ns, of each the "
        "shortest of four passes\n\n");
  TimeTable table(settings, goals);
  for (const TimeWorkload& workload : TimeWorkloads()) {
    if (settings.WantsWorkload(workload.name)) table.Measure(workload);
  }
}

}  // namespace lgpu::bench
