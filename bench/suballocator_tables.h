#ifndef LGPU_BENCH_SUBALLOCATOR_TABLES_H_
#define LGPU_BENCH_SUBALLOCATOR_TABLES_H_

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "lgpu/bytes.h"

namespace lgpu::bench {

/// The measurements of a run of suballocator_bench.
struct Settings {
  std::vector<std::string> tables = {"time", "space", "waste", "first-refusal", "moves", "metadata"};
  std::vector<std::string> workloads = {};   // empty: all
  std::vector<std::string> contenders = {};  // empty: all
  bool is_short = false;
  int rounds = 7;
  double seconds = 0.5;  // the most of one cell in one round
  int seeds = 5;

  bool WantsWorkload(std::string_view name) const { return workloads.empty() || Has(workloads, name); }
  bool WantsContender(std::string_view name) const { return contenders.empty() || Has(contenders, name); }

 private:
  static bool Has(const std::vector<std::string>& names, std::string_view name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  }
};

/// A goal of lgpu's allocator, and its figure in this run.
struct Goal {
  std::string figure;
  double measured = 0;
  double at_most = 0;  // zero: at_least holds
  double at_least = 0;
  int digits = 4;

  bool IsReached() const { return at_least > 0 ? measured >= at_least : measured <= at_most; }
};
using Goals = std::vector<Goal>;

// Each measures, prints its table and adds the goals that it saw.
void TimeTables(const Settings& settings, Goals& goals);
void SpaceTable(const Settings& settings, Goals& goals);
void WasteTable(const Settings& settings, Goals& goals);
void FirstRefusalTable(const Settings& settings, Goals& goals);
void MovesTable(const Settings& settings, Goals& goals);
void MetadataTable(const Settings& settings, Goals& goals);

/// To stdout, at once.
void Print(const std::string& text);

}  // namespace lgpu::bench

#endif  // LGPU_BENCH_SUBALLOCATOR_TABLES_H_
