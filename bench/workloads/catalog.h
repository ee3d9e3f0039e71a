#ifndef LGPU_BENCH_WORKLOADS_CATALOG_H_
#define LGPU_BENCH_WORKLOADS_CATALOG_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/workloads/churn.h"
#include "bench/workloads/trace.h"
#include "lgpu/bytes.h"

namespace lgpu::bench {

/// kSmall keeps a workload's kind and cuts its length and model, for tests.
enum class Scale { kFull, kSmall };

struct WorkloadOptions {
  Scale scale = Scale::kFull;
  std::uint64_t seed = 0;  // 0: the workload's own
};

/// A to F: for time.
struct TimeWorkload {
  std::string_view name;
  Bytes limit;  // ample, so that placement is all that is measured
};
const std::vector<TimeWorkload>& TimeWorkloads();

/// S1 to S12: for space.
const std::vector<std::string_view>& SpaceWorkloads();

/// A trace by name. NOT_FOUND, with the names that there are, for another.
absl::StatusOr<Trace> MakeWorkload(std::string_view name, const WorkloadOptions& options = {});

/// L1 to L3: rising churn, for the use at the first refusal.
struct RisingWorkload {
  std::string_view name;
  std::string_view what;
  RisingChurnShape shape;
};
const std::vector<RisingWorkload>& RisingWorkloads();

}  // namespace lgpu::bench

#endif  // LGPU_BENCH_WORKLOADS_CATALOG_H_
