#include "bench/peers/core_contender.h"

#include <algorithm>

namespace lgpu::bench {
namespace {

constexpr std::uint64_t kReservedTimesLimit = 8;
constexpr Bytes kStep = 16_MiB;

}  // namespace

CoreContender::CoreContender(const ContenderOptions& options)
    : limit_(options.limit),
      core_(std::min(RoundUp(options.limit, kPage) * kReservedTimesLimit,
                     RoundDown(Suballocator::kMaxReserved, kPage)),
            kPage),
      blocks_(options.slots) {}

bool CoreContender::AllocateSlowly(Slot slot, Bytes bytes) {
  const Suballocator::Request request = {.bytes = bytes};
  const auto plan = core_.PlanGrowth(request, {});
  if (!plan || held_ + plan->fresh > limit_) return false;
  std::vector<Suballocator::Range> pages;
  Bytes end_of_room;
  for (const Suballocator::Run& run : core_.UnmappedRuns(*plan)) {
    for (Bytes offset = run.pages.offset; offset < run.pages.end(); offset += kPage) {
      pages.push_back({offset, kPage});
    }
    end_of_room = run.around.end();
  }
  Bytes fresh = plan->fresh;
  for (; fresh < kStep && !pages.empty() && pages.back().end() < end_of_room && held_ + fresh < limit_;
       fresh += kPage) {
    pages.push_back({pages.back().end(), kPage});
  }
  const Bytes first = pages.empty() ? plan->block.offset : pages.front().offset;
  const Bytes end = pages.empty() ? first : pages.back().end();
  const auto claim = core_.ClaimGrowth(request, *plan, {first, end - first});
  held_ += fresh;
  blocks_[slot] = core_.Commit(claim, pages);
  return true;
}

}  // namespace lgpu::bench
