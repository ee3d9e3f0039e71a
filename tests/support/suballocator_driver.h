#ifndef LGPU_TESTS_SUPPORT_SUBALLOCATOR_DRIVER_H_
#define LGPU_TESTS_SUPPORT_SUBALLOCATOR_DRIVER_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "allocator/suballocator.h"
#include "base/check.h"

namespace lgpu {

/// A SuballocatorDriver turns bytes into operations on a Suballocator and compares every answer with an
/// account of its own: of live ranges, of mapped pages and their chunks, and of when each page was last
/// freed. It aborts where the two differ, or where an invariant does not hold. For random tests and the
/// fuzzer.
class SuballocatorDriver {
 public:
  static constexpr std::size_t kStepBytes = 5;

  SuballocatorDriver()
      : core_({.reserved = kPage * kPages, .page = kPage, .names_per_slot = 40, .spare_slots = 256}),
        pages_(kPages) {}

  void Run(const std::uint8_t* data, std::size_t size) {
    for (; size >= kStepBytes; data += kStepBytes, size -= kStepBytes) {
      Step(data);
      CheckAll();
    }
    Finish();
  }

 private:
  using Range = Suballocator::Range;
  using Handle = Suballocator::Handle;
  static constexpr Bytes kPage = Bytes(std::uint64_t{2} << 20);
  static constexpr std::uint64_t kPages = 64;
  struct Page {
    std::uint32_t chunk = 0;  // 0: not mapped
    std::uint32_t freed = 0;  // the stamp of the last block here
  };
  struct Open {
    Suballocator::Claim claim;
    std::vector<Range> chunks;
  };

  static std::uint64_t First(Range range) { return range.offset / kPage; }
  static std::uint64_t End(Range range) { return RoundUp(range.end(), kPage) / kPage; }

  void Step(const std::uint8_t* step) {
    const std::uint32_t a = step[1] + step[2] * 256u;
    const std::uint32_t b = step[3] + step[4] * 256u;
    switch (step[0] % 8) {
      case 0:
      case 1:
      case 2:
        Allocate(a, b, step[0] / 8);
        break;
      case 3:
      case 4:
        FreeOne(a);
        break;
      case 5:
        Detach(a, b);
        break;
      case 6:
        Close(a, b % 3 != 0);
        break;
      default:
        if (b % 64 == 0) {
          core_.RebaseStamps(a % 4);
          for (Page& page : pages_) page.freed -= std::min(page.freed, a % 4);
          stamp_ -= std::min(stamp_, a % 4);
        } else {
          LGPU_CHECK(stale_.empty() || !core_.IsLive(stale_[a % stale_.size()]));
        }
    }
  }

  void Allocate(std::uint32_t a, std::uint32_t b, std::uint32_t home) {
    const std::uint64_t units[] = {1, 512, 70'000, 3'000'000};
    Suballocator::Request request{
        .bytes = Bytes(1 + (a % 97) * units[b % 4]),
        .alignment = Bytes(std::uint64_t{256} << (b / 4 % 4 == 0 ? b / 16 % 14 : 0)),
        .any_chunk = b / 1024 % 16 == 0,
        .home = home % 4 * 21};
    const auto effort = static_cast<Suballocator::Effort>(b / 4096 % 3);
    if (const auto block = core_.Allocate(request, effort)) {
      AddLive(*block, request);
      return;
    }
    const Suballocator::GrowthOptions options{
        .prefer = static_cast<Suballocator::Prefer>(a / 128 % 2),
        .search = static_cast<Suballocator::Search>(a / 256 % 2),
        .settled = a / 512 % 2 == 0 ? Suballocator::kYoungest : stamp_ / 2};
    const auto plan = core_.PlanGrowth(request, options);
    if (!plan || open_.size() > 3) return;
    Open open;
    Bytes fresh;
    for (const Suballocator::Run& run : core_.UnmappedRuns(*plan)) {
      fresh += run.pages.bytes;
      Bytes at = run.pages.offset;
      const bool one_page = run.pages.end() > core_.small_zone() ||
                            (!request.any_chunk && request.bytes <= Suballocator::kLargestSmall);
      const Bytes chunk = one_page ? kPage : kPage * (1 + a / 1024 % 5);
      while (at < run.pages.end()) {
        const Bytes limit = one_page ? run.pages.end() : std::min(run.around.end(), core_.small_zone());
        open.chunks.push_back({at, std::min(chunk, limit - at)});
        at = open.chunks.back().end();
      }
    }
    LGPU_CHECK(fresh == plan->fresh && plan->fresh <= plan->whole);
    LGPU_CHECK(plan->block.offset.count() % std::max<std::uint64_t>(request.alignment.count(), 512) == 0);
    Range pages{};
    if (!open.chunks.empty()) {
      pages = {open.chunks.front().offset, open.chunks.back().end() - open.chunks.front().offset};
    }
    open.claim = core_.ClaimGrowth(request, *plan, pages);
    open_.push_back(open);
  }

  void Close(std::uint32_t a, bool commit) {
    if (open_.empty()) return;
    const std::size_t i = a % open_.size();
    const Open open = open_[i];
    open_.erase(open_.begin() + static_cast<std::ptrdiff_t>(i));
    if (!commit) {
      core_.Abandon(open.claim);
      return;
    }
    for (const Range& chunk : open.chunks) {
      ++next_chunk_;
      for (std::uint64_t p = First(chunk); p < End(chunk); ++p) {
        LGPU_CHECK(pages_[p].chunk == 0);
        pages_[p] = {next_chunk_, 0};
      }
    }
    AddLive(core_.Commit(open.claim, open.chunks), open.claim.request);
  }

  void AddLive(Handle block, const Suballocator::Request& request) {
    const Range range = core_.range(block);
    LGPU_CHECK(range.bytes == RoundUp(request.bytes, Suballocator::kGranule));
    LGPU_CHECK(range.offset.count() % std::max<std::uint64_t>(request.alignment.count(), 512) == 0);
    LGPU_CHECK(core_.IsLive(block));
    const auto next = live_.lower_bound(range.offset);
    LGPU_CHECK(next == live_.end() || range.end() <= next->first);
    LGPU_CHECK(next == live_.begin() || std::prev(next)->second.first.end() <= range.offset);
    const bool small = !request.any_chunk && request.bytes <= Suballocator::kLargestSmall;
    for (std::uint64_t p = First(range); p < End(range); ++p) {
      LGPU_CHECK(pages_[p].chunk != 0);
      LGPU_CHECK(!small || ((p == 0 || pages_[p - 1].chunk != pages_[p].chunk) &&
                            (p + 1 == kPages || pages_[p + 1].chunk != pages_[p].chunk)));
    }
    for (const Handle stale : stale_) LGPU_CHECK(stale != block);
    live_[range.offset] = {range, block};
    used_ += range.bytes;
  }

  void FreeOne(std::uint32_t a) {
    if (live_.empty()) return;
    const auto at = std::next(live_.begin(), static_cast<std::ptrdiff_t>(a % live_.size()));
    const auto [range, block] = at->second;
    live_.erase(at);
    core_.Free(block, ++stamp_);
    LGPU_CHECK(!core_.IsLive(block));
    used_ -= range.bytes;
    for (std::uint64_t p = First(range); p < End(range); ++p) pages_[p].freed = stamp_;
    stale_.push_back(block);
    if (stale_.size() > 64) stale_.erase(stale_.begin());
  }

  void Detach(std::uint32_t a, std::uint32_t b) {
    const Suballocator::Stamp settled = b % 4 == 0 ? stamp_ / 2 : Suballocator::kYoungest;
    const auto runs = core_.IdleRuns(settled);
    Bytes idle;
    for (const Suballocator::IdleRun& run : runs) {
      idle += run.range.bytes;
      LGPU_CHECK(run.stamp <= settled);
      for (std::uint64_t p = First(run.range); p < End(run.range); ++p) {
        LGPU_CHECK(pages_[p].chunk != 0 && pages_[p].freed <= run.stamp);
      }
    }
    LGPU_CHECK(idle == core_.idle(settled));
    if (runs.empty()) return;
    const Suballocator::IdleRun& run = runs[a % runs.size()];
    // From a chunk's start to a chunk's end.
    std::uint64_t first = First(run.range) + a / 256 % (run.range.bytes / kPage);
    std::uint64_t end = first + 1;
    while (first > First(run.range) && pages_[first - 1].chunk == pages_[first].chunk) --first;
    while (end < End(run.range) && (pages_[end].chunk == pages_[end - 1].chunk || b / 8 % 4 != 0)) ++end;
    const Handle detached = core_.Detach(run, {kPage * first, kPage * (end - first)});
    CheckAll();
    if (b / 4 % 2 == 0) {
      core_.Reattach(detached);
      return;
    }
    core_.CommitUnmapped(detached);
    std::fill(pages_.begin() + static_cast<std::ptrdiff_t>(first),
              pages_.begin() + static_cast<std::ptrdiff_t>(end), Page{});
  }

  void CheckAll() const {
    const absl::Status status = core_.CheckInvariants();
    if (!status.ok()) std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
    LGPU_CHECK(status.ok());
    LGPU_CHECK(core_.used() == used_ && core_.live_blocks() == live_.size());
    std::uint64_t mapped = 0;
    for (const Page& page : pages_) mapped += page.chunk != 0 ? 1 : 0;
    LGPU_CHECK(core_.mapped() == kPage * mapped);
  }

  // Nothing is left when all is given back: one free range for each run of mapped pages.
  void Finish() {
    while (!open_.empty()) Close(0, false);
    while (!live_.empty()) FreeOne(0);
    CheckAll();
    std::size_t ranges = 0;
    Suballocator::Snapshot snapshot;
    core_.CopyTo(snapshot);
    snapshot.ForEach([&](const Suballocator::NodeInfo& node) {
      LGPU_CHECK(node.state == Suballocator::State::kFree || node.state == Suballocator::State::kUnmapped);
      ++ranges;
    });
    std::size_t expected = 1;
    for (std::uint64_t p = 1; p < kPages; ++p) {
      expected += (pages_[p].chunk != 0) != (pages_[p - 1].chunk != 0) ? 1 : 0;
    }
    LGPU_CHECK(ranges == expected && core_.used().is_zero());
    LGPU_CHECK(core_.free() == core_.mapped() && core_.idle(Suballocator::kYoungest) == core_.mapped());
  }

  Suballocator core_;
  std::vector<Page> pages_;
  std::map<Bytes, std::pair<Range, Handle>> live_;
  std::vector<Open> open_;
  std::vector<Handle> stale_;
  Bytes used_;
  std::uint32_t stamp_ = 0;
  std::uint32_t next_chunk_ = 0;
};

}  // namespace lgpu

#endif  // LGPU_TESTS_SUPPORT_SUBALLOCATOR_DRIVER_H_
