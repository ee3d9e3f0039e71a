#ifndef LGPU_BENCH_LOAD_FIGURES_H_
#define LGPU_BENCH_LOAD_FIGURES_H_

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace lgpu::bench {

inline double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

/// The machine's load, which is printed beside every figure.
inline std::string Load() {
  double loads[3] = {};
  return ::getloadavg(loads, 3) == 3 ? absl::StrCat(loads[0]) : "unknown";
}

}  // namespace lgpu::bench

#endif  // LGPU_BENCH_LOAD_FIGURES_H_
