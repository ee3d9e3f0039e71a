#ifndef LGPU_BENCH_PEERS_CONTENDERS_H_
#define LGPU_BENCH_PEERS_CONTENDERS_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/peers/contender.h"

namespace lgpu::bench {

using MakeContender = std::function<std::unique_ptr<Contender>(const ContenderOptions&)>;

/// One way to allocate that can be compared.
struct ContenderKind {
  std::string_view name;  // "flat"
  std::string_view what;  // for a table
  MakeContender make;
  /// Replays events on a contender of this kind without virtual calls, and stops at the first refusal;
  /// says how many were replayed.
  std::size_t (*replay)(Contender& contender, std::span<const Event> events);
  bool for_time = true;
  bool for_space = true;
  bool scans_lists = false;  // too slow for traces with many blocks
};

/// The base of the ratios first, then ours, then the models of other allocators.
const std::vector<ContenderKind>& ContenderKinds();
/// NOT_FOUND, with the names that there are, for an unknown one.
absl::StatusOr<const ContenderKind*> FindContenderKind(std::string_view name);

}  // namespace lgpu::bench

#endif  // LGPU_BENCH_PEERS_CONTENDERS_H_
