#include <malloc.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bench/peers/contenders.h"
#include "bench/peers/space.h"
#include "bench/suballocator_tables.h"
#include "bench/text_table.h"
#include "bench/workloads/catalog.h"

namespace lgpu::bench {
namespace {

std::vector<const ContenderKind*> SpaceKinds(const Settings& settings) {
  std::vector<const ContenderKind*> kinds;
  for (const ContenderKind& kind : ContenderKinds()) {
    if (kind.for_space && settings.WantsContender(kind.name)) kinds.push_back(&kind);
  }
  return kinds;
}

std::vector<Trace> SpaceTraces(const Settings& settings) {
  std::vector<Trace> traces;
  for (const std::string_view name : SpaceWorkloads()) {
    if (settings.WantsWorkload(name)) traces.push_back(*MakeWorkload(name));
  }
  return traces;
}

bool TakesTooLong(const ContenderKind& kind, const Trace& trace) {
  return kind.scans_lists && trace.events.size() > 150000;
}

LimitSearch SearchFor(const Settings& settings, const Trace& trace) {
  if (!settings.is_short) return {};
  return trace.events.size() < 200000 ? LimitSearch{.resolution = 0.0005}
                                      : LimitSearch{.resolution = 0.0005, .confirmations = 4};
}

double Ratio(Bytes part, Bytes whole) {
  return static_cast<double>(part.count()) / static_cast<double>(whole.count());
}

void AddSpaceGoal(const Trace& trace, double measured, Goals& goals) {
  static const std::map<std::string_view, double> kGoals = {
      {"S1", 1.003}, {"S2", 1.003}, {"S3", 1.006}, {"S4", 1.002}, {"S5", 1.003},
      {"S6", 1.003}, {"S7", 1.006}, {"S8", 1.02},  {"S9", 1.02},  {"S10", 1.0005}};
  const auto goal = kGoals.find(trace.name);
  if (goal != kGoals.end()) {
    goals.push_back({.figure = "smallest limit / peak live, " + trace.name,
                     .measured = measured,
                     .at_most = goal->second});
  }
}

void AddFirstRefusalGoal(std::string_view workload, double use, double of_bound, Goals& goals) {
  if (workload == "L2") {
    goals.push_back({.figure = "use at first refusal / bound, L2", .measured = of_bound, .at_least = 0.995});
  } else {
    goals.push_back({.figure = "use at first refusal, " + std::string(workload),
                     .measured = use,
                     .at_least = workload == "L1" ? 0.978 : 0.975});
  }
}

void AddMovesGoal(const Trace& trace, double spare, double moves, Goals& goals) {
  const std::string figure = "pages moved per step, " + trace.name + " at " + Fixed(spare * 100, 0) + " %";
  const bool still = trace.name == "S1" || trace.name == "S2" || trace.name == "S4" || trace.name == "S5";
  if (still && spare == 0.01) {
    goals.push_back({.figure = figure, .measured = moves, .at_most = 0, .digits = 1});
  } else if (trace.name == "S3" && spare >= 0.05) {
    goals.push_back(
        {.figure = figure, .measured = moves, .at_most = spare == 0.05 ? 200.0 : 0.0, .digits = 1});
  }
}

// The private anonymous memory that this process has touched, malloc's own and mappings without malloc
// included. In whole pages.
std::uint64_t HostMemoryInUse() {
  ::malloc_trim(0);
  std::ifstream rollup("/proc/self/smaps_rollup");
  std::string word;
  std::uint64_t kibibytes = 0;
  while (rollup >> word && word != "Anonymous:") {
  }
  rollup >> kibibytes;
  return kibibytes * 1024;
}

}  // namespace

void SpaceTable(const Settings& settings, Goals& goals) {
  const std::vector<Trace> traces = SpaceTraces(settings);
  std::vector<std::string> header = {"smallest limit / peak live"};
  std::vector<std::string> peaks = {"peak live, GiB"};
  for (const Trace& trace : traces) {
    header.push_back(trace.name);
    peaks.push_back(Fixed(Ratio(Summarize(trace).peak_live, 1_GiB), 2));
  }
  TextTable table(header);
  table.AddRow(peaks);
  for (const ContenderKind* kind : SpaceKinds(settings)) {
    std::vector<std::string> row = {std::string(kind->what)};
    for (const Trace& trace : traces) {
      if (TakesTooLong(*kind, trace)) {
        row.emplace_back("-");
        continue;
      }
      const std::optional<Bytes> limit = SmallestLimit(trace, kind->make, SearchFor(settings, trace));
      const double ratio = limit ? Ratio(*limit, Summarize(trace).peak_live) : 99;
      row.push_back(limit ? Fixed(ratio, 4) : ">4");
      if (kind->name == "pool") AddSpaceGoal(trace, ratio, goals);
    }
    table.AddRow(row);
  }
  Print("The smallest limit at which, and at larger ones, a trace completes\n\n" + table.Text() + "\n");
}

void WasteTable(const Settings& settings, Goals&) {
  const std::vector<Trace> traces = SpaceTraces(settings);
  std::vector<std::string> header = {"1 - peak live / peak held, %"};
  for (const Trace& trace : traces) header.push_back(trace.name);
  TextTable table(header);
  for (const ContenderKind* kind : SpaceKinds(settings)) {
    std::vector<std::string> row = {std::string(kind->what)};
    for (const Trace& trace : traces) {
      if (TakesTooLong(*kind, trace)) {
        row.emplace_back("-");
        continue;
      }
      const auto contender = kind->make({.limit = 400_GiB, .slots = trace.slots});
      const SpaceResult result = ReplayForSpace(trace, *contender, OnRefusal::kStop);
      row.push_back(Fixed(100 * (1 - Ratio(result.peak_live, result.peak_held)), 2));
    }
    table.AddRow(row);
  }
  Print("Memory taken and not used at the peak, with an ample limit\n\n" + table.Text() + "\n");
}

void FirstRefusalTable(const Settings& settings, Goals& goals) {
  std::vector<std::string> header = {"use at first refusal"};
  for (const RisingWorkload& workload : RisingWorkloads()) {
    header.insert(header.end(), {std::string(workload.name), "least", "/ bound"});
  }
  TextTable table(header);
  std::map<std::string_view, double> bounds;
  const auto measure = [&](const ContenderKind& kind) {
    std::vector<std::string> row = {std::string(kind.what)};
    for (const RisingWorkload& workload : RisingWorkloads()) {
      double sum = 0;
      double least = 1;
      for (int seed = 0; seed < settings.seeds; ++seed) {
        const double use =
            UseAtFirstRefusal(workload.shape, kind.make, 1000 + static_cast<std::uint64_t>(seed));
        sum += use;
        least = std::min(least, use);
      }
      const double mean = sum / settings.seeds;
      if (kind.name == "bound") bounds[workload.name] = mean;
      const double of_bound = mean / bounds[workload.name];
      row.insert(row.end(), {Fixed(mean, 4), Fixed(least, 4), Fixed(of_bound, 4)});
      if (kind.name == "pool") AddFirstRefusalGoal(workload.name, mean, of_bound, goals);
    }
    table.AddRow(row);
  };
  measure(**FindContenderKind("bound"));
  for (const ContenderKind* kind : SpaceKinds(settings)) {
    if (kind->name != "bound") measure(*kind);
  }
  Print("Rising churn: live bytes / limit at the first refusal, mean and least of " +
        std::to_string(settings.seeds) + " seeds\n\n" + table.Text() + "\n");
}

void MovesTable(const Settings& settings, Goals& goals) {
  constexpr double kSpare[] = {0.01, 0.03, 0.05, 0.08};
  std::vector<std::string> header = {"pages moved per step"};
  for (const double spare : kSpare) header.push_back(Fixed(spare * 100, 0) + " % spare");
  TextTable table(header);
  for (const std::string_view name : {"S1", "S2", "S3", "S4", "S5", "S6", "S7"}) {
    if (!settings.WantsWorkload(name)) continue;
    const Trace trace = *MakeWorkload(name);
    const Bytes peak = Summarize(trace).peak_live;
    for (const std::string_view kind_name : {"pool", "expandable"}) {
      const ContenderKind& kind = **FindContenderKind(kind_name);
      if (!settings.WantsContender(kind_name)) continue;
      std::vector<std::string> row = {trace.name + " " + std::string(kind.what)};
      for (const double spare : kSpare) {
        const auto contender = kind.make({.limit = LimitWithSpare(peak, spare), .slots = trace.slots});
        const SpaceResult result = ReplayForSpace(trace, *contender, OnRefusal::kStop);
        row.push_back(result.completed ? Fixed(result.WarmMovesPerStep(), 1) : "refused");
        if (kind_name == "pool") {
          AddMovesGoal(trace, spare, result.completed ? result.WarmMovesPerStep() : 1e9, goals);
        }
      }
      table.AddRow(row);
    }
  }
  Print(
      "Pages taken from one place to be used at another, per step of the second half of a trace, at a limit "
      "of "
      "peak live and some spare\n(a page of the expandable segment is 20 MiB, of lgpu 2 MiB)\n\n" +
      table.Text() + "\n");
}

void MetadataTable(const Settings& settings, Goals& goals) {
  TextTable table({"host memory", "bytes/block", "MiB", "and in the original, MiB"});
  const Trace trace = *MakeWorkload("A");
  const std::span<const Event> fill(trace.events.data(), trace.fill_end);
  const auto blocks = static_cast<double>(trace.fill_end);
  for (const ContenderKind& kind : ContenderKinds()) {
    if (!settings.WantsContender(kind.name) || kind.name == "bound") continue;
    const std::uint64_t before = HostMemoryInUse();
    const auto contender = kind.make({.limit = 24_GiB, .slots = trace.slots});
    if (kind.replay(*contender, fill) < fill.size()) {
      table.AddRow({std::string(kind.what), "refused"});
      continue;
    }
    const auto handles = trace.fill_end * contender->handle_size();
    // Whole pages, so where there is next to nothing it may come out as less.
    const double bytes = std::max(0.0, static_cast<double>(HostMemoryInUse()) - static_cast<double>(before) -
                                           static_cast<double>(handles));
    table.AddRow({std::string(kind.what), Fixed(bytes / blocks, 1), Fixed(bytes / (1 << 20), 2),
                  Fixed(Ratio(contender->left_out_metadata(), 1_MiB), 1)});
    if (kind.name == "pool") {
      // A bit per page that the limit allows is allowed as well.
      const double pages = Ratio(24_GiB, kPage) / 8;
      goals.push_back({.figure = "host bytes per live block, Pool",
                       .measured = (bytes - pages) / blocks,
                       .at_most = 64,
                       .digits = 1});
    }
  }
  Print("Host memory with 100k live blocks (A, filled), without the handles that a caller keeps\n\n" +
        table.Text() + "\n");
}

}  // namespace lgpu::bench
