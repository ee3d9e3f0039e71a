#include "bench/peers/contenders.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "bench/peers/best_fit_coalescing.h"
#include "bench/peers/caching_allocator.h"
#include "bench/peers/core_contender.h"
#include "bench/peers/flat_fit.h"
#include "bench/peers/list_pool.h"
#include "bench/peers/page_bound.h"
#include "bench/peers/pool_contender.h"

namespace lgpu::bench {
namespace {

template <typename T>
std::unique_ptr<Contender> Make(const ContenderOptions& options) {
  return std::make_unique<T>(options);
}

template <typename T>
std::size_t Replay(Contender& contender, std::span<const Event> events) {
  T& exact = static_cast<T&>(contender);
  std::size_t done = 0;
  for (const Event& event : events) {
    if (event.kind == Event::Kind::kAllocate) {
      if (!exact.Allocate(event.slot, event.bytes)) break;
    } else if (event.kind == Event::Kind::kFree) {
      exact.Free(event.slot);
    }
    ++done;
  }
  return done;
}

template <typename T>
ContenderKind Kind(std::string_view name, std::string_view what) {
  return {.name = name, .what = what, .make = Make<T>, .replay = Replay<T>};
}

std::vector<ContenderKind> MakeKinds() {
  std::vector<ContenderKind> kinds = {
      Kind<FlatFit>("flat", "two-level fit, flat (the base)"),
      Kind<CoreContender>("core", "lgpu: core, handles"),
      Kind<LockedFlatFit>("flat-locked", "two-level fit, lock and lookup"),
      Kind<PoolContender>("pool", "lgpu: Pool"),
      Kind<GpuPoolContender>("pool-gpu", "lgpu: Pool, a GPU's chunks"),
      Kind<ExpandableCachingAllocator>("expandable", "caching, expandable segment"),
      Kind<SegmentCachingAllocator>("segments", "caching, segments"),
      Kind<BestFitCoalescing>("bfc", "best fit with coalescing"),
      Kind<ListPool>("list", "list pool"),
      Kind<PageBound>("bound", "bound: live bytes in pages"),
  };
  for (ContenderKind& kind : kinds) {
    kind.for_time = kind.name != "bound";
    kind.for_space = kind.name != "core" && kind.name != "flat-locked";
    kind.scans_lists = kind.name == "list";
  }
  return kinds;
}

}  // namespace

const std::vector<ContenderKind>& ContenderKinds() {
  static const std::vector<ContenderKind> kKinds = MakeKinds();
  return kKinds;
}

absl::StatusOr<const ContenderKind*> FindContenderKind(std::string_view name) {
  std::vector<std::string> names;
  for (const ContenderKind& kind : ContenderKinds()) {
    if (kind.name == name) return &kind;
    names.emplace_back(kind.name);
  }
  return absl::NotFoundError(
      absl::StrCat("there is no allocator ", std::string(name), "; there are ", absl::StrJoin(names, " ")));
}

}  // namespace lgpu::bench
