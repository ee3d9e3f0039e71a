#include "allocator/suballocator.h"

#include <algorithm>

#include "allocator/suballocator_inl.h"
#include "base/check.h"

namespace lgpu {
namespace {

// How many ranges of a class a quick search looks at. The first that holds the request will do, ...
constexpr int kQuickTries = 4;
// ... but the smallest of this many where memory is scarce.
constexpr int kScarceTries = 64;
// A quick search compares this many ranges that are huge, a part of the region, and takes the lowest.
constexpr std::uint64_t kHugeShare = 2048;
constexpr int kHugeTries = 3;

using suballocator_internal::AlignUp;

}  // namespace

Suballocator::Suballocator(const Options& options)
    : page_(ToGranules(options.page)),
      reserved_(options.reserved / kGranule),
      // Small blocks need no more addresses than there is memory: any unmapped page will do for them.
      zones_{0, options.reserved / options.page * 6 / 8 * page_,
             options.reserved / options.page * 7 / 8 * page_},
      small_(std::min(ToGranules(kLargestSmall), page_)),
      tiny_(std::min(ToGranules(kLargestTiny), page_)),
      huge_(std::max<std::uint64_t>(reserved_ / kHugeShare, page_)),
      last_generation_(options.names_per_slot),
      spare_slots_(options.spare_slots),
      nodes_(reserved_ + spare_slots_ + 2 * kHomeRun),
      pages_(options.reserved / options.page) {
  LGPU_CHECK(options.reserved <= kMaxReserved && !options.reserved.is_zero() &&
             options.reserved == RoundDown(options.reserved, options.page));
  LGPU_CHECK(options.names_per_slot > 0 && options.names_per_slot < Node::kGenerations);
  nodes_[0].next = NewNode();
  nodes_[0].previous = first();
  nodes_[first()].size = static_cast<std::uint32_t>(reserved_);
  nodes_[first()].set_state(State::kUnmapped);
  InsertFree(first());
}

// ---- blocks

// One of the first few ranges of a class, if it holds the size.
[[gnu::always_inline]] inline Suballocator::Fit Suballocator::FindIn(const Index& index,
                                                                     std::uint32_t size_class,
                                                                     const Want& want) const {
  Fit best;
  std::uint32_t best_size = ~std::uint32_t{0};
  int tries = scarce_ ? kScarceTries : kQuickTries;
  for (std::uint32_t at = index.head(size_class); at != 0 && tries > 0; --tries) {
    const Node& node = nodes_[at];
    const std::uint64_t start = AlignUp(node.offset, want.alignment);
    if (start + want.size <= node.end() && node.size < best_size) {
      best = {at, static_cast<std::uint32_t>(start)};
      best_size = node.size;
      if (!scarce_ || node.size == want.size) break;
    }
    at = node.behind;
  }
  return best;
}

[[gnu::always_inline]] inline Suballocator::Fit Suballocator::FindQuick(const Want& want) const {
  const Index& index = free_ranges_[want.zone];
  if (const Fit fit = FindIn(index, Index::ClassOf(static_cast<std::uint32_t>(want.size)), want);
      fit.node != 0) {
    return fit;
  }
  // Every range of a higher class than this holds the size at any alignment.
  const std::uint64_t enough = want.size + want.alignment - 1;
  const std::uint32_t above =
      Index::ClassOf(static_cast<std::uint32_t>(std::min<std::uint64_t>(enough, ~std::uint32_t{0}))) + 1;
  const std::uint32_t found = index.NextClass(above);
  if (found == Index::kClasses) return {};
  return IsHuge(want.zone, index.head(found)) ? FindLowest(index, found, want) : FindIn(index, found, want);
}

// The lowest of the smallest ranges from a class of huge ones on. A training step begins with a few huge
// ranges, left over from the largest tensors of the step before. If it broke the smallest one first, as
// elsewhere, there would be none for those tensors; always the same end of the region keeps the other one
// whole.
Suballocator::Fit Suballocator::FindLowest(const Index& index, std::uint32_t size_class,
                                           const Want& want) const {
  Fit best;
  int tries = kHugeTries;
  index.ForEach(nodes_.data(), size_class, [&](std::uint32_t at) {
    const std::uint64_t start = AlignUp(nodes_[at].offset, want.alignment);
    if (start + want.size <= nodes_[at].end() && (best.node == 0 || start < best.start)) {
      best = {at, static_cast<std::uint32_t>(start)};
    }
    return --tries > 0;
  });
  return best;
}

// A small block lies in chunks of one page.
bool Suballocator::MayLieIn(const Want& want, std::uint64_t start) const {
  return want.zone == 0 || start >= zones_[1] ||
         !pages_.AnyLargeChunk(start / page_, (start + want.size - 1) / page_ + 1);
}

// The smallest range that holds the size.
Suballocator::Fit Suballocator::FindAny(const Index& index, const Want& want) const {
  const auto size = static_cast<std::uint32_t>(want.size);
  Fit best;
  for (std::uint32_t c = index.NextClass(Index::ClassOf(size)); c < Index::kClasses && best.node == 0;
       c = index.NextClass(c + 1)) {
    for (std::uint32_t at = index.head(c); at != 0; at = nodes_[at].behind) {
      const Node& node = nodes_[at];
      if (best.node != 0 && nodes_[best.node].size <= node.size) continue;
      std::uint64_t start = AlignUp(node.offset, want.alignment);
      // A few steps suffice: behind the first whole page of a larger chunk there is another one like it.
      while (start + size <= node.end() && !MayLieIn(want, start)) {
        start = AlignUp((start / page_ + 1) * page_, want.alignment);
      }
      if (start + size <= node.end()) best = {at, static_cast<std::uint32_t>(start)};
    }
  }
  return best;
}

// FindQuick where nothing is special.
[[gnu::always_inline]] inline std::uint32_t Suballocator::FindPlain(const Index& index,
                                                                    std::uint32_t size) const {
  const Node* const nodes = nodes_.data();
  const std::uint32_t own = Index::ClassOf(size);
  std::uint32_t at = index.head(own);
  for (int tries = kQuickTries; at != 0 && tries > 0; --tries) {
    if (nodes[at].size >= size) return at;
    at = nodes[at].behind;
  }
  const std::uint32_t above = index.NextClass(own + 1);
  return above == Index::kClasses ? 0 : index.head(above);
}

// ---- nodes

// Called when no slot of the home is vacant.
[[gnu::noinline]] std::uint32_t Suballocator::AddNode(std::uint32_t home) {
  if (run_homes_.empty()) {
    if (home == 0) return nodes_.Add();
    // Another home for the first time.
    slots_at_first_ = nodes_.end();
    while (nodes_.end() % kHomeRun != 0) PutVacant(0, nodes_.Add());
    run_homes_.assign(nodes_.end() / kHomeRun, 0);
  }
  // Prefers new slots to vacant ones of other homes, up to a number that depends on the most blocks so far.
  peak_blocks_ = std::max(peak_blocks_, live_blocks_);
  const std::uint64_t many =
      std::min(std::max(2 * peak_blocks_, slots_at_first_ * 3 / 2) + spare_slots_, nodes_.most() - kHomeRun);
  for (std::uint32_t i = 1; nodes_.end() >= many && i < kHomes; ++i) {
    if (const std::uint32_t other = TakeVacant((home + i) % kHomes); other != 0) return other;
  }
  const std::uint32_t first = nodes_.end();
  run_homes_.resize(first / kHomeRun + 1, static_cast<std::uint8_t>(home));
  for (std::uint32_t i = 0; i < kHomeRun; ++i) nodes_.Add();
  for (std::uint32_t index = first + kHomeRun; --index > first;) {
    PutVacant(home, index);  // so that they are taken in order
  }
  return first;
}

// A node in no index gives its range to a new one.
[[gnu::noinline]] std::uint32_t Suballocator::Replaced(std::uint32_t index, std::uint32_t home) {
  const std::uint32_t other = NewNode(home);
  const std::uint32_t generation = nodes_[other].generation();
  nodes_[other] = nodes_[index];
  nodes_[other].Set(generation, nodes_[index].state());
  LinkBefore(index, other);
  Unlink(index);
  DropNode(index);
  return other;
}

// ---- blocks

// Carve of a free range, from its front. Fields are read once into locals: other threads may read the nodes,
// so the compiler does not keep their fields in registers by itself.
[[gnu::always_inline]] inline std::uint32_t Suballocator::TakeFront(std::uint32_t index, std::uint32_t size,
                                                                    std::uint32_t home) {
  Node* const nodes = nodes_.data();
  Node& range = nodes[index];
  const std::uint32_t offset = range.offset;
  const std::uint32_t had = range.size;
  const std::uint32_t rest = had - size;
  Index& fits = free_ranges_[ZoneOf(offset)];
  free_ -= size;
  if (rest == 0) {
    fits.Remove(nodes, index, had);
    return AtHome(index, home);
  }
  const std::uint32_t piece = NewNode(home);
  Node& block = nodes[piece];
  const std::uint32_t before = range.previous;
  block.offset = offset;
  block.size = size;
  block.previous = before;
  block.next = index;
  nodes[before].next = piece;
  range.previous = piece;
  range.offset = offset + size;
  range.size = rest;
  Index& fits_rest = free_ranges_[ZoneOf(offset + size)];
  if (Index::ClassOf(had) != Index::ClassOf(rest) || &fits != &fits_rest) {
    fits.Remove(nodes, index, had);
    fits_rest.Insert(nodes, index, rest);
  }
  return piece;
}

std::optional<Suballocator::Handle> Suballocator::Allocate(const Request& request, Effort effort) {
  const std::uint64_t wanted = (request.bytes.count() - 1) / kGranule.count() + 1;
  if (wanted > free_) return std::nullopt;
  if (request.alignment <= kGranule && !request.any_chunk && !scarce_) [[likely]] {
    const auto size = static_cast<std::uint32_t>(wanted);
    const std::size_t zone = (wanted <= small_ ? 1u : 0u) + (wanted <= tiny_ ? 1u : 0u);
    if (const std::uint32_t range = FindPlain(free_ranges_[zone], size); range != 0 && !IsHuge(zone, range))
        [[likely]] {
      freed_at_ = nodes_[range].stamp;
      const std::uint32_t index = TakeFront(range, size, request.home);
      Node& node = nodes_[index];
      const std::uint32_t generation = node.generation();
      node.Set(generation, State::kLive);
      node.stamp = 0;
      node.before = 0;
      node.behind = 0;
      used_ += size;
      ++live_blocks_;
      return Handle{generation} << 32 | index;
    }
  }
  return AllocateSlowly(WantOf(request), request, effort);
}

std::optional<Suballocator::Handle> Suballocator::AllocateSlowly(const Want& want, const Request& request,
                                                                 Effort effort) {
  Fit fit = FindQuick(want);
  if (fit.node == 0 && effort != Effort::kQuick) {
    fit = FindAny(free_ranges_[want.zone], want);
    if (effort == Effort::kAnywhere) {
      // Into the zone of the next larger blocks first.
      for (std::size_t i = 1; i < kZones && fit.node == 0; ++i) {
        fit = FindAny(free_ranges_[(want.zone + kZones - i) % kZones], want);
      }
    }
  }
  if (fit.node == 0) return std::nullopt;
  return MakeLive(Carve(fit.node, fit.start, static_cast<std::uint32_t>(want.size), request.home), request);
}

// Makes a range that is in an index begin at `offset` and end `by` granules further away from it.
[[gnu::always_inline]] inline void Suballocator::Widen(std::uint32_t index, std::uint32_t offset,
                                                       std::uint32_t size, std::uint32_t by) {
  Node* const nodes = nodes_.data();
  Index& fits = free_ranges_[ZoneOf(nodes[index].offset)];
  Index& fits_grown = free_ranges_[ZoneOf(offset)];
  nodes[index].offset = offset;
  nodes[index].size = size + by;
  if (Index::ClassOf(size) != Index::ClassOf(size + by) || &fits != &fits_grown) {
    fits.Remove(nodes, index, size);
    fits_grown.Insert(nodes, index, size + by);
  }
}

// Settle, for a node that becomes free.
[[gnu::always_inline]] inline void Suballocator::FreeRange(std::uint32_t index, std::uint32_t generation,
                                                           std::uint32_t size, Stamp stamp) {
  Node* const nodes = nodes_.data();
  Node& node = nodes[index];
  const std::uint32_t previous = node.previous;
  const std::uint32_t next = node.next;
  const std::uint32_t offset = node.offset;
  const bool merges_next = nodes[next].state() == State::kFree;
  if (nodes[previous].state() == State::kFree) {
    Node& whole = nodes[previous];
    std::uint32_t behind = next;
    DropNode(index, generation);
    if (merges_next) {
      const std::uint32_t more = nodes[next].size;
      size += more;
      behind = nodes[next].next;
      stamp = std::max(nodes[next].stamp, stamp);
      free_ranges_[ZoneOf(nodes[next].offset)].Remove(nodes, next, more);
      DropNode(next);
    }
    whole.stamp = std::max(whole.stamp, stamp);
    whole.next = behind;
    nodes[behind].previous = previous;
    Widen(previous, whole.offset, whole.size, size);
    return;
  }
  if (merges_next) {
    Node& whole = nodes[next];
    DropNode(index, generation);
    whole.stamp = std::max(whole.stamp, stamp);
    whole.previous = previous;
    nodes[previous].next = next;
    Widen(next, offset, whole.size, size);
    return;
  }
  node.stamp = stamp;
  node.Set(generation, State::kFree);
  free_ranges_[ZoneOf(offset)].Insert(nodes, index, size);
}

void Suballocator::Free(Handle block, Stamp stamp) {
  const std::uint32_t index = BlockOf(block);
  const std::uint32_t size = nodes_[index].size;
  used_ -= size;
  free_ += size;
  --live_blocks_;
  FreeRange(index, GenerationOf(block) + 1, size, stamp);
}

Suballocator::Handle Suballocator::Rename(Handle block) {
  std::uint32_t index = BlockOf(block);
  EndName(index);
  index = WithNames(index);
  nodes_[index].set_state(State::kLive);
  return HandleOf(index);
}

bool Suballocator::IsLive(Handle block) const {
  const auto index = static_cast<std::uint32_t>(block);
  return nodes_.Has(index) && nodes_[index].is_block() && HandleOf(index) == block;
}

Suballocator::Range Suballocator::range(Handle handle) const { return RangeOf(nodes_[NodeOf(handle)]); }

void Suballocator::SetTag(Handle block, std::uint32_t tag) { nodes_[BlockOf(block)].behind = tag; }

std::uint32_t Suballocator::tag(Handle block) const { return nodes_[BlockOf(block)].behind; }

// ---- what there is

Bytes Suballocator::largest_free() const {
  std::uint32_t largest = 0;
  for (const Index& index : free_ranges_) {
    if (const std::uint32_t last = index.LastClass(); last < Index::kClasses) {
      for (std::uint32_t at = index.head(last); at != 0; at = nodes_[at].behind) {
        largest = std::max<std::uint32_t>(largest, nodes_[at].size);
      }
    }
  }
  return FromGranules(largest);
}

void Suballocator::RebaseStamps(Stamp by) {
  for (std::uint32_t index = 1; index < nodes_.end(); ++index) {
    if (Node& node = nodes_[index]; !node.is_block()) node.stamp -= std::min(node.stamp, by);
  }
}

Suballocator::NodeInfo Suballocator::InfoOf(const Node& node) {
  const bool is_block = node.is_block();
  return {.range = RangeOf(node),
          .state = node.state(),
          .stamp = is_block ? 0 : node.stamp,
          .tag = is_block ? std::uint32_t{node.behind} : 0};
}

void Suballocator::CopyTo(Snapshot& snapshot) const {
  snapshot.nodes_.assign(nodes_.data(), nodes_.data() + nodes_.end());
}

}  // namespace lgpu
