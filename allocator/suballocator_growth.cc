#include <algorithm>
#include <tuple>
#include <utility>

#include "allocator/suballocator_inl.h"
#include "base/check.h"

namespace lgpu {
namespace {

// A quick plan looks at all unmapped ranges where there are this few, ...
constexpr int kFewHoles = 32;
// ... else at this many of the block's own size class, and at this many neighbours of each.
constexpr int kQuickHoles = 8;
constexpr int kQuickNeighbours = 4;

using suballocator_internal::AlignDown;
using suballocator_internal::AlignUp;

}  // namespace

// ---- planning

/// Compares places for one block. A place lies in a row of neighbouring free and unmapped ranges. The cost
/// of a place changes only where its start passes a border of pages, and there is always one of least cost
/// that starts or ends with a range of the row: in between, moving to one side never costs more.
struct Suballocator::Planner {
  using Score = std::tuple<std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t>;

  const Suballocator& core;
  const Want want;
  const GrowthOptions& options;
  std::optional<Placement> best{};
  Score best_score{};

  static bool IsOpen(const Node& node) {
    return node.state() == State::kFree || node.state() == State::kUnmapped;
  }

  // Tries the places in the row around an unmapped range; `reach` neighbours on each side, or all of them.
  void TryRow(std::uint32_t unmapped, int reach) {
    const auto& nodes = core.nodes_;
    std::uint32_t first = unmapped;
    for (int i = 0; i != reach; ++i) {
      const std::uint32_t previous = nodes[first].previous;
      if (previous == 0 || !IsOpen(nodes[previous])) break;
      if (reach < 0 && nodes[previous].state() == State::kUnmapped) {
        return;  // the row was tried from there
      }
      first = previous;
    }
    std::uint32_t last = unmapped;
    for (int i = 0; i != reach; ++i) {
      const std::uint32_t next = nodes[last].next;
      if (next == 0 || !IsOpen(nodes[next])) break;
      last = next;
    }
    const std::uint64_t begin = nodes[first].offset;
    const std::uint64_t end = nodes[last].end();
    if (end - begin < want.size) return;
    for (std::uint32_t at = first;; at = nodes[at].next) {
      Try(first, begin, end, AlignUp(nodes[at].offset, want.alignment));
      if (nodes[at].end() >= begin + want.size) {
        Try(first, begin, end, AlignDown(nodes[at].end() - want.size, want.alignment));
      }
      // The empty middle of the region reaches over several zones.
      if (const std::uint64_t zone = core.zones_[want.zone];
          nodes[at].offset < zone && zone < nodes[at].end()) {
        Try(first, begin, end, zone);
      }
      if (at == last) break;
    }
  }

  void Try(std::uint32_t first, std::uint64_t begin, std::uint64_t end, std::uint64_t start) {
    if (start < begin || start + want.size > end || !core.MayLieIn(want, start)) return;
    const auto& nodes = core.nodes_;
    while (nodes[first].end() <= start) first = nodes[first].next;
    const Pages span = {start / core.page_, (start + want.size - 1) / core.page_ + 1};
    std::uint64_t fresh = 0;
    std::uint64_t idle = 0;
    std::uint64_t behind = 0;
    for (std::uint32_t at = first; at != 0 && nodes[at].offset < start + want.size; at = nodes[at].next) {
      const Node& node = nodes[at];
      const bool unmapped = node.state() == State::kUnmapped;
      if (!unmapped && node.stamp > options.settled) continue;
      const Pages pages =
          unmapped ? Pages{node.offset / core.page_, node.end() / core.page_} : core.IdlePages(node);
      const std::uint64_t from = std::max(pages.first, span.first);
      const std::uint64_t to = std::min(pages.end, span.end);
      (unmapped ? fresh : idle) += to > from ? to - from : 0;
      behind = unmapped
                   ? std::min(node.end(), core.zones_[1]) - std::min(span.end * core.page_, core.zones_[1])
                   : 0;
    }
    if (behind < options.room_behind / kGranule) return;
    const bool wrong_zone = core.ZoneOf(start) != want.zone;
    const std::uint64_t whole = fresh + idle;
    const auto [major, minor] =
        options.prefer == Prefer::kFewestNew ? std::pair(fresh, whole) : std::pair(whole, fresh);
    const Score score = options.search == Search::kQuick ? Score(wrong_zone, major, minor, start)
                                                         : Score(major, minor, wrong_zone, start);
    if (!best || score < best_score) {
      best_score = score;
      best = Placement{.block = {FromGranules(start), FromGranules(want.size)},
                       .fresh = FromGranules(fresh * core.page_),
                       .whole = FromGranules(whole * core.page_),
                       .node = first};
    }
  }
};

std::optional<Suballocator::Placement> Suballocator::PlanGrowth(const Request& request,
                                                                const GrowthOptions& options) const {
  const Want want = WantOf(request);
  if (want.size > reserved_) return std::nullopt;
  Planner planner{*this, want, options};
  int seen = 0;
  const bool all = options.search == Search::kExhaustive;
  unmapped_.ForEach(nodes_.data(), 0, [&](std::uint32_t index) {
    planner.TryRow(index, all ? -1 : kQuickNeighbours);
    return all || ++seen < kFewHoles;
  });
  if (!all && seen == kFewHoles) {
    seen = 0;
    const std::uint32_t own = Index::ClassOf(static_cast<std::uint32_t>(want.size));
    unmapped_.ForEach(nodes_.data(), own, [&](std::uint32_t index) {
      planner.TryRow(index, kQuickNeighbours);
      return ++seen < kQuickHoles;
    });
    if (const std::uint32_t largest = unmapped_.LastClass(); largest < Index::kClasses) {
      planner.TryRow(unmapped_.head(largest), kQuickNeighbours);
    }
  }
  return planner.best;
}

std::vector<Suballocator::Run> Suballocator::UnmappedRuns(const Placement& placement) const {
  std::vector<Run> runs;
  const std::uint64_t start = placement.block.offset / kGranule;
  const std::uint64_t end = placement.block.end() / kGranule;
  for (std::uint32_t at = placement.node; at != 0 && nodes_[at].offset < end; at = nodes_[at].next) {
    const Node& node = nodes_[at];
    if (node.state() == State::kUnmapped) {
      const std::uint64_t from = std::max<std::uint64_t>(node.offset, AlignDown(start, page_));
      const std::uint64_t to = std::min(node.end(), AlignUp(end, page_));
      runs.push_back({{FromGranules(from), FromGranules(to - from)}, RangeOf(node)});
    }
  }
  return runs;
}

// ---- claims

Suballocator::Claim Suballocator::ClaimGrowth(const Request& request, const Placement& placement,
                                              Range pages) {
  const bool any = !pages.bytes.is_zero();
  const std::uint64_t start =
      (any ? std::min(placement.block.offset, pages.offset) : placement.block.offset) / kGranule;
  const std::uint64_t end =
      (any ? std::max(placement.block.end(), pages.end()) : placement.block.end()) / kGranule;
  std::uint32_t claimed = 0;
  std::uint32_t at = placement.node;
  for (std::uint64_t reached = start; reached < end;) {
    LGPU_CHECK(at != 0 && Planner::IsOpen(nodes_[at]) && nodes_[at].offset <= reached);
    const std::uint64_t to = std::min(nodes_[at].end(), end);
    const std::uint32_t piece =
        Carve(at, static_cast<std::uint32_t>(reached), static_cast<std::uint32_t>(to - reached));
    if (nodes_[piece].state() == State::kUnmapped) nodes_[piece].stamp = 0;
    if (claimed == 0) {
      claimed = piece;
    } else {
      nodes_[claimed].size = nodes_[claimed].size + nodes_[piece].size;
      nodes_[claimed].stamp = std::max(nodes_[claimed].stamp, nodes_[piece].stamp);
      Unlink(piece);
      DropNode(piece);
    }
    reached = to;
    at = nodes_[claimed].next;
  }
  claimed = WithNames(claimed);
  nodes_[claimed].set_state(State::kClaimed);
  return {.place = HandleOf(claimed), .block = placement.block, .request = request};
}

// Gives back a node that is in no index and has mapped and unmapped pages.
void Suballocator::SettlePieces(std::uint32_t index, Stamp stamp) {
  for (bool more = true; more;) {
    const std::uint64_t end = nodes_[index].end();
    const std::uint64_t page = nodes_[index].offset / page_;
    const std::uint64_t last = AlignUp(end, page_) / page_;
    const bool mapped = pages_.IsMapped(page);
    const std::uint64_t border =
        (mapped ? pages_.NextUnmapped(page, last) : pages_.NextMapped(page, last)) * page_;
    std::uint32_t rest = 0;
    more = border < end;
    if (more) rest = SplitAfter(index, static_cast<std::uint32_t>(border - nodes_[index].offset));
    Settle(index, mapped ? State::kFree : State::kUnmapped, mapped ? stamp : 0);
    index = rest;
  }
}

Suballocator::Handle Suballocator::Commit(const Claim& claim, std::span<const Range> chunks) {
  std::uint32_t index = NodeOf(claim.place, State::kClaimed);
  for (const Range& chunk : chunks) {
    LGPU_CHECK(chunk.offset / kGranule >= AlignDown(nodes_[index].offset, page_) &&
               chunk.end() / kGranule <= nodes_[index].end());
    pages_.Map(PageOf(chunk.offset / kGranule), PageOf(chunk.end() / kGranule));
  }
  EndName(index);
  const auto start = ToGranules(claim.block.offset);
  const auto size = ToGranules(claim.block.bytes);
  std::uint32_t before = 0;
  if (nodes_[index].offset != start) {
    before = index;
    index = SplitAfter(before, start - nodes_[before].offset);
  }
  const std::uint32_t after = nodes_[index].size != size ? SplitAfter(index, size) : 0;
  const Handle block = MakeLive(index, claim.request);
  // The rest of the claim is fresh pages, or pages that no chunk came for.
  if (before != 0) SettlePieces(before, 0);
  if (after != 0) SettlePieces(after, 0);
  return block;
}

void Suballocator::Abandon(const Claim& claim) {
  const std::uint32_t index = NodeOf(claim.place, State::kClaimed);
  EndName(index);
  SettlePieces(index, nodes_[index].stamp);
}

// ---- giving pages back

// The pages of a free range's idle chunks.
Suballocator::Pages Suballocator::IdlePages(const Node& node) const {
  const std::uint64_t first = AlignUp(node.offset, page_) / page_;
  const std::uint64_t end = node.end() / page_;
  if (first >= end) return {first, first};
  const std::uint64_t from = pages_.NextBorder(first, end);
  return {from, std::max(from, pages_.PreviousBorder(end, from))};
}

template <typename Visit>
void Suballocator::ForEachIdle(Stamp settled, Visit visit) const {
  for (const Index& index : free_ranges_) {
    index.ForEach(nodes_.data(), Index::ClassOf(page_), [&](std::uint32_t at) {
      if (nodes_[at].stamp <= settled) {
        if (const Pages pages = IdlePages(nodes_[at]); pages.end > pages.first) visit(at, pages);
      }
      return true;
    });
  }
}

std::vector<Suballocator::IdleRun> Suballocator::IdleRuns(Stamp settled) const {
  std::vector<IdleRun> runs;
  ForEachIdle(settled, [&](std::uint32_t at, Pages pages) {
    runs.push_back(
        {.range = {FromGranules(pages.first * page_), FromGranules((pages.end - pages.first) * page_)},
         .stamp = nodes_[at].stamp,
         .node = at});
  });
  return runs;
}

Bytes Suballocator::idle(Stamp settled) const {
  std::uint64_t pages = 0;
  ForEachIdle(settled, [&](std::uint32_t, Pages idle) { pages += idle.end - idle.first; });
  return FromGranules(pages * page_);
}

Suballocator::Handle Suballocator::Detach(const IdleRun& run, Range chunks) {
  const auto start = ToGranules(chunks.offset);
  const Node& node = nodes_[run.node];
  LGPU_CHECK(node.state() == State::kFree && node.offset <= start && chunks.end() <= RangeOf(node).end());
  const std::uint32_t index = WithNames(Carve(run.node, start, ToGranules(chunks.bytes)));
  nodes_[index].set_state(State::kDetached);
  return HandleOf(index);
}

void Suballocator::CommitUnmapped(Handle detached) {
  const std::uint32_t index = NodeOf(detached, State::kDetached);
  pages_.Unmap(PageOf(nodes_[index].offset), PageOf(nodes_[index].end()));
  EndName(index);
  Settle(index, State::kUnmapped, 0);
}

void Suballocator::Reattach(Handle detached) {
  const std::uint32_t index = NodeOf(detached, State::kDetached);
  EndName(index);
  Settle(index, State::kFree, nodes_[index].stamp);
}

void Suballocator::ReplaceChunks(Range range, std::span<const Range> chunks) {
  pages_.Unmap(range.offset / kGranule / page_, range.end() / kGranule / page_);
  Bytes reached = range.offset;
  for (const Range& chunk : chunks) {
    LGPU_CHECK(chunk.offset == reached);
    pages_.Map(chunk.offset / kGranule / page_, chunk.end() / kGranule / page_);
    reached = chunk.end();
  }
  LGPU_CHECK(reached == range.end());
}

}  // namespace lgpu
