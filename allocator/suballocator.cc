#include "allocator/suballocator.h"

#include <algorithm>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "allocator/check.h"

namespace lgpu {
namespace {

// A handle is a slot and how often the slot was used, so that most stale handles are noticed.
constexpr std::uint32_t kSlotBits = 26;
constexpr std::uint32_t kSlotMask = (std::uint32_t{1} << kSlotBits) - 1;
constexpr std::uint32_t kGenerationMask = ~std::uint32_t{0} >> kSlotBits;
// How many ranges of the request's own class a quick search looks at before it rounds up.
constexpr int kQuickTries = 4;

constexpr std::uint64_t AlignUp(std::uint64_t value, std::uint64_t alignment) {
  return (value + alignment - 1) & ~(alignment - 1);
}

std::uint32_t AlignmentInGranules(Bytes alignment) {
  return static_cast<std::uint32_t>(std::max<std::uint64_t>(alignment / Suballocator::kGranule, 1));
}

}  // namespace

Suballocator::Suballocator(Bytes reserved, Bytes page)
    : page_(ToGranules(page)), reserved_(reserved / kGranule), nodes_(1), mapped_pages_(reserved / page) {
  LGPU_CHECK(reserved <= kMaxReserved && !reserved.is_zero() && reserved == RoundDown(reserved, page));
  first_ = NewNode();
  nodes_[first_].size = static_cast<std::uint32_t>(reserved_);
  nodes_[first_].state = State::kUnmapped;
  unmapped_index_.Insert(nodes_, first_);
}

// ---- nodes

std::uint32_t Suballocator::NodeOf(Handle handle) const {
  const std::uint32_t index = handle & kSlotMask;
  LGPU_CHECK(index != 0 && index < nodes_.size() && HandleOf(index) == handle);
  return index;
}

Suballocator::Handle Suballocator::HandleOf(std::uint32_t node) const {
  return node | (std::uint32_t{nodes_[node].generation} << kSlotBits);
}

std::uint32_t Suballocator::NewNode() {
  if (vacant_ == 0) {
    LGPU_CHECK(nodes_.size() <= kSlotMask);
    nodes_.emplace_back();
    return static_cast<std::uint32_t>(nodes_.size() - 1);
  }
  const std::uint32_t index = vacant_;
  Node& node = nodes_[index];
  vacant_ = node.link.next;
  const auto generation = static_cast<std::uint8_t>((node.generation + 1) & kGenerationMask);
  node = Node{};
  node.generation = generation;
  return index;
}

void Suballocator::DropNode(std::uint32_t index) {
  nodes_[index].state = State::kVacant;
  nodes_[index].link.next = vacant_;
  vacant_ = index;
}

// Cuts a node that is in no index; the new one is what lies behind the first `size` granules.
std::uint32_t Suballocator::SplitAfter(std::uint32_t index, std::uint32_t size) {
  const std::uint32_t rest = NewNode();
  Node& node = nodes_[index];
  Node& behind = nodes_[rest];
  behind.offset = node.offset + size;
  behind.size = node.size - size;
  behind.previous = index;
  behind.next = node.next;
  behind.state = node.state;
  if (node.next != 0) {
    nodes_[node.next].previous = rest;
  }
  node.next = rest;
  node.size = size;
  return rest;
}

void Suballocator::AbsorbNext(std::uint32_t index) {
  Node& node = nodes_[index];
  const std::uint32_t gone = node.next;
  node.size += nodes_[gone].size;
  node.next = nodes_[gone].next;
  if (node.next != 0) {
    nodes_[node.next].previous = index;
  }
  DropNode(gone);
}

// Cuts [start, start + size) out of a free node; it is in no index afterwards, the rest is.
std::uint32_t Suballocator::Carve(std::uint32_t index, std::uint32_t start, std::uint32_t size, State state) {
  const State kind = nodes_[index].state;
  FitIndex<Node>& fits = IndexOf(kind);
  fits.Remove(nodes_, index);
  if (start != nodes_[index].offset) {
    const std::uint32_t before = index;
    index = SplitAfter(before, start - nodes_[before].offset);
    fits.Insert(nodes_, before);
  }
  if (size != nodes_[index].size) {
    fits.Insert(nodes_, SplitAfter(index, size));
  }
  nodes_[index].state = state;
  if (kind == State::kFree) {
    free_ -= size;
  }
  return index;
}

// Makes a node that is in no index a free one of `kind` and merges it with neighbours of that kind.
std::uint32_t Suballocator::MakeFree(std::uint32_t index, State kind) {
  FitIndex<Node>& fits = IndexOf(kind);
  if (kind == State::kFree) {
    free_ += nodes_[index].size;
  }
  nodes_[index].state = kind;
  if (const std::uint32_t next = nodes_[index].next; next != 0 && nodes_[next].state == kind) {
    fits.Remove(nodes_, next);
    AbsorbNext(index);
  }
  if (const std::uint32_t previous = nodes_[index].previous;
      previous != 0 && nodes_[previous].state == kind) {
    fits.Remove(nodes_, previous);
    AbsorbNext(previous);
    index = previous;
  }
  fits.Insert(nodes_, index);
  return index;
}

// ---- blocks

Suballocator::Fit Suballocator::FindFit(std::uint32_t size, std::uint32_t alignment, Effort effort) const {
  Fit fit;
  int tries = effort == Effort::kQuick ? kQuickTries : -1;
  const auto fits = [&](std::uint32_t index) {
    const Node& node = nodes_[index];
    const std::uint64_t start = AlignUp(node.offset, alignment);
    if (start + size <= std::uint64_t{node.offset} + node.size) {
      fit = {index, static_cast<std::uint32_t>(start)};
      return false;
    }
    return --tries != 0;
  };
  const std::uint32_t own = FitIndex<Node>::ClassOf(size);
  if (effort == Effort::kExhaustive) {
    mapped_index_.ForEach(nodes_, own, fits);
    return fit;
  }
  for (std::uint32_t index = mapped_index_.head(own); index != 0; index = nodes_[index].link.next) {
    if (!fits(index)) {
      break;
    }
  }
  if (fit.node == 0) {
    // Whatever lies in a higher class than this holds the size at any alignment.
    const std::uint64_t enough = std::uint64_t{size} + alignment - 1;
    const std::uint32_t above = FitIndex<Node>::ClassOf(static_cast<std::uint32_t>(
                                    std::min<std::uint64_t>(enough, ~std::uint32_t{0}))) +
                                1;
    const std::uint32_t found = mapped_index_.NextClass(above);
    if (found < FitIndex<Node>::kClasses) {
      fits(mapped_index_.head(found));
    }
  }
  return fit;
}

Suballocator::Handle Suballocator::MakeLive(std::uint32_t index, Bytes requested) {
  Node& node = nodes_[index];
  node.state = State::kLive;
  node.padding = static_cast<std::uint16_t>((FromGranules(node.size) - requested).count());
  node.generation = static_cast<std::uint8_t>((node.generation + 1) & kGenerationMask);
  used_ += node.size;
  padding_ += node.padding;
  ++live_blocks_;
  return HandleOf(index);
}

std::optional<Suballocator::Handle> Suballocator::Allocate(Bytes requested, Bytes alignment, Effort effort) {
  const Bytes rounded = RoundUp(requested, kGranule);
  if (rounded > free()) {
    return std::nullopt;
  }
  const std::uint32_t size = ToGranules(rounded);
  const Fit fit = FindFit(size, AlignmentInGranules(alignment), effort);
  if (fit.node == 0) {
    return std::nullopt;
  }
  return MakeLive(Carve(fit.node, fit.start, size, State::kLive), requested);
}

void Suballocator::Free(Handle block) {
  const std::uint32_t index = NodeOf(block);
  LGPU_CHECK(nodes_[index].state == State::kLive);
  used_ -= nodes_[index].size;
  padding_ -= nodes_[index].padding;
  --live_blocks_;
  MakeFree(index, State::kFree);
}

bool Suballocator::IsLive(Handle block) const {
  const std::uint32_t index = block & kSlotMask;
  return index != 0 && index < nodes_.size() && nodes_[index].state == State::kLive &&
         HandleOf(index) == block;
}

Suballocator::Range Suballocator::range(Handle handle) const { return RangeOf(nodes_[NodeOf(handle)]); }

Bytes Suballocator::largest_free() const {
  std::uint32_t largest = 0;
  const std::uint32_t last = mapped_index_.LastClass();
  if (last < FitIndex<Node>::kClasses) {
    for (std::uint32_t index = mapped_index_.head(last); index != 0; index = nodes_[index].link.next) {
      largest = std::max(largest, nodes_[index].size);
    }
  }
  return FromGranules(largest);
}

// ---- growth

// The block starts in the free range in front of the unmapped one, if there is one, and may end in the
// free range behind it.
std::optional<Suballocator::Spot> Suballocator::SpotAt(std::uint32_t unmapped_node, std::uint64_t size,
                                                       std::uint64_t alignment) const {
  const Node& unmapped = nodes_[unmapped_node];
  const Node& before = nodes_[unmapped.previous];
  const Node& after = nodes_[unmapped.next];
  std::uint64_t start = unmapped.offset;
  if (unmapped.previous != 0 && before.state == State::kFree) {
    start = AlignUp(before.offset, alignment);  // at most unmapped.offset, which is a page's
  }
  const std::uint64_t end = start + size;
  const std::uint64_t unmapped_end = std::uint64_t{unmapped.offset} + unmapped.size;
  if (end <= unmapped_end) {
    // A fit without any new page is Allocate's to find.
    const std::uint64_t fresh = end <= unmapped.offset ? page_ : AlignUp(end - unmapped.offset, page_);
    return Spot{unmapped_node, start, fresh};
  }
  if (unmapped.next != 0 && after.state == State::kFree && end <= std::uint64_t{after.offset} + after.size) {
    return Spot{unmapped_node, start, unmapped.size};
  }
  return std::nullopt;
}

// The granules of pages that are wholly free and of which a block takes some, around its fresh pages.
std::uint64_t Suballocator::WholeFreePages(const Spot& spot, std::uint64_t end) const {
  const std::uint64_t down = ~std::uint64_t{page_ - 1};
  const Node& unmapped = nodes_[spot.unmapped_node];
  std::uint64_t whole = 0;
  if (spot.start < unmapped.offset) {
    const std::uint64_t first = std::max(spot.start & down, AlignUp(nodes_[unmapped.previous].offset, page_));
    whole += unmapped.offset - std::min<std::uint64_t>(first, unmapped.offset);
  }
  const std::uint64_t behind = std::uint64_t{unmapped.offset} + unmapped.size;
  if (end > behind) {
    const Node& after = nodes_[unmapped.next];
    whole += std::min(AlignUp(end, page_), (std::uint64_t{after.offset} + after.size) & down) - behind;
  }
  return whole;
}

std::optional<Suballocator::Placement> Suballocator::PlanGrowth(Bytes requested, Bytes alignment,
                                                                Prefer prefer) const {
  const Bytes rounded = RoundUp(requested, kGranule);
  const std::uint64_t size = rounded / kGranule;
  const std::uint64_t aligned = AlignmentInGranules(alignment);
  std::optional<Spot> best;
  std::tuple<std::uint64_t, std::uint64_t, std::uint64_t> best_cost;
  unmapped_index_.ForEach(nodes_, 0, [&](std::uint32_t index) {
    if (const std::optional<Spot> spot = SpotAt(index, size, aligned)) {
      const std::uint64_t whole = spot->fresh + WholeFreePages(*spot, spot->start + size);
      const std::tuple cost = prefer == Prefer::kFewestNew ? std::tuple(spot->fresh, whole, spot->start)
                                                           : std::tuple(whole, spot->fresh, spot->start);
      if (!best || cost < best_cost) {
        best = spot;
        best_cost = cost;
      }
    }
    return true;
  });
  if (!best) {
    return std::nullopt;
  }
  return Placement{{FromGranules(best->start), rounded}, FromGranules(best->fresh)};
}

std::optional<Suballocator::Claim> Suballocator::ClaimGrowth(Bytes requested, Bytes alignment, Bytes fresh) {
  const std::uint64_t size = RoundUp(requested, kGranule) / kGranule;
  const std::uint64_t aligned = AlignmentInGranules(alignment);
  const std::uint64_t new_size = fresh / kGranule;
  std::optional<Spot> best;
  unmapped_index_.ForEach(nodes_, 0, [&](std::uint32_t index) {
    const std::optional<Spot> spot = SpotAt(index, size, aligned);
    if (spot && spot->fresh <= new_size && nodes_[index].size >= new_size &&
        (!best || spot->start < best->start)) {
      best = spot;
    }
    return true;
  });
  if (!best) {
    return std::nullopt;
  }
  const std::uint32_t unmapped = best->unmapped_node;
  const std::uint32_t map_start = nodes_[unmapped].offset;
  const std::uint32_t before = nodes_[unmapped].previous;
  const std::uint32_t after = nodes_[unmapped].next;
  const std::uint64_t map_end = map_start + new_size;
  const std::uint64_t end = best->start + size;
  Claim claim{.block = {FromGranules(best->start), FromGranules(size)},
              .requested = requested,
              .map_offset = FromGranules(map_start)};
  if (best->start < map_start) {
    const auto start = static_cast<std::uint32_t>(best->start);
    claim.before = HandleOf(Carve(before, start, map_start - start, State::kClaimed));
  }
  claim.fresh = HandleOf(Carve(unmapped, map_start, static_cast<std::uint32_t>(new_size), State::kClaimed));
  if (end > map_end) {
    const auto taken = static_cast<std::uint32_t>(end - map_end);
    claim.after = HandleOf(Carve(after, static_cast<std::uint32_t>(map_end), taken, State::kClaimed));
  }
  return claim;
}

Suballocator::Handle Suballocator::Commit(const Claim& claim) {
  const std::uint32_t fresh = NodeOf(claim.fresh);
  SetMapped(nodes_[fresh], true);
  if (claim.before != 0) {
    MakeFree(NodeOf(claim.before), State::kFree);
  }
  if (claim.after != 0) {
    MakeFree(NodeOf(claim.after), State::kFree);
  }
  const std::uint32_t whole = MakeFree(fresh, State::kFree);
  const std::uint32_t block =
      Carve(whole, ToGranules(claim.block.offset), ToGranules(claim.block.bytes), State::kLive);
  return MakeLive(block, claim.requested);
}

void Suballocator::Abandon(const Claim& claim) {
  if (claim.before != 0) {
    MakeFree(NodeOf(claim.before), State::kFree);
  }
  if (claim.after != 0) {
    MakeFree(NodeOf(claim.after), State::kFree);
  }
  MakeFree(NodeOf(claim.fresh), State::kUnmapped);
}

// ---- giving back

std::vector<Suballocator::Range> Suballocator::FreeRanges(Bytes at_least) const {
  std::vector<Range> ranges;
  mapped_index_.ForEach(nodes_, FitIndex<Node>::ClassOf(ToGranules(at_least)), [&](std::uint32_t index) {
    if (FromGranules(nodes_[index].size) >= at_least) {
      ranges.push_back(RangeOf(nodes_[index]));
    }
    return true;
  });
  return ranges;
}

Suballocator::Handle Suballocator::Detach(Range pages) {
  std::uint32_t found = 0;
  mapped_index_.ForEach(nodes_, FitIndex<Node>::ClassOf(ToGranules(pages.bytes)), [&](std::uint32_t index) {
    const Range range = RangeOf(nodes_[index]);
    if (range.offset <= pages.offset && pages.end() <= range.end()) {
      found = index;
    }
    return found == 0;
  });
  LGPU_CHECK(found != 0);
  return HandleOf(Carve(found, ToGranules(pages.offset), ToGranules(pages.bytes), State::kDetached));
}

void Suballocator::CommitUnmapped(Handle detached) {
  const std::uint32_t index = NodeOf(detached);
  LGPU_CHECK(nodes_[index].state == State::kDetached);
  SetMapped(nodes_[index], false);
  MakeFree(index, State::kUnmapped);
}

void Suballocator::Reattach(Handle detached) {
  const std::uint32_t index = NodeOf(detached);
  LGPU_CHECK(nodes_[index].state == State::kDetached);
  MakeFree(index, State::kFree);
}

void Suballocator::SetMapped(const Node& node, bool mapped) {
  const auto first = mapped_pages_.begin() + node.offset / page_;
  std::fill(first, first + node.size / page_, mapped);
}

}  // namespace lgpu
