#include "allocator/pool/growth_plan.h"

#include <algorithm>
#include <utility>

namespace lgpu {
namespace {

// Growth comes in steps of a sixteenth of the used memory: a program that grows needs few of them, and one
// that stopped growing holds little unused memory.
constexpr std::uint64_t kGrowthShare = 16;
constexpr Bytes kLargestStep = 256_MiB;
constexpr Bytes kLargeClass = 32_MiB;

Bytes SumOf(std::span<const Chunk> chunks) {
  Bytes sum;
  for (const Chunk& chunk : chunks) sum += chunk.bytes;
  return sum;
}

bool IsAmong(const Chunk& chunk, std::span<const Chunk> chunks) {
  return std::any_of(chunks.begin(), chunks.end(), [&](const Chunk& other) { return other.id == chunk.id; });
}

}  // namespace

Bytes GrowthSteps::StepFor(Bytes missing, Bytes used, bool small) const {
  if (!ahead) return RoundUp(std::max(least, missing), page);
  const Bytes share = std::min(used / kGrowthShare, kLargestStep);
  const Bytes step = RoundUp(std::max({least, share, missing}), page);
  if (small) return std::max(missing, std::min(step, kLargeClass - page));
  const Bytes unit = step >= kLargestStep ? kLargestStep : kLargeClass;
  return step >= kLargeClass && unit >= page ? RoundUp(step, unit) : step;
}

Suballocator::Request GrowthPlan::BlockRequest() const {
  return {.bytes = request_.bytes,
          .alignment = request_.alignment,
          .any_chunk = any_chunk_,
          .home = request_.home};
}

bool GrowthPlan::IsSmall() const {
  return RoundUp(request_.bytes, Suballocator::kGranule) <=
         std::min(Suballocator::kLargestSmall, steps_.page);
}

// ---- Steps.

GrowthPlan::Step GrowthPlan::Next(const View& view) {
  // More steps than any request needs: only a source that does not keep its word gets here.
  constexpr int kMostSteps = 10000;
  if (++steps_taken_ > kMostSteps) return {.kind = Kind::kRefuse, .endless = !larger_came_};
  Suballocator& blocks = view.blocks;
  if (const auto block = blocks.Allocate(BlockRequest(), Suballocator::Effort::kExhaustive)) {
    return Done(view, *block);
  }
  if (view.chunks.only_large && IsSmall() && AllowAnyChunk()) {
    if (const auto block = blocks.Allocate(BlockRequest(), Suballocator::Effort::kExhaustive)) {
      return Done(view, *block);
    }
  }
  if (const auto place = blocks.PlanGrowth(BlockRequest(), {.room_behind = room_behind_})) {
    Fill fill = TryFill(view, *place, LastChunk::kMayStickOut);
    if (fill.missing.is_zero()) return ToMap(view, *place, std::move(fill));
    if (fill.missing <= Room(view)) return ToGrow(view, fill);
  }
  if (!view.caches_empty) return {.kind = Kind::kFlush};
  if (const auto block = blocks.Allocate(BlockRequest(), Suballocator::Effort::kAnywhere)) {
    return Done(view, *block);
  }
  return request_.spare_only ? Step{.kind = Kind::kRefuse} : UnderPressure(view);
}

GrowthPlan::Step GrowthPlan::Done(const View& view, Suballocator::Handle block) {
  DropHand(view.chunks);
  return {.kind = Kind::kDone, .block = block};
}

// Mapped memory and the source's further chunks do not suffice as they lie.
GrowthPlan::Step GrowthPlan::UnderPressure(const View& view) {
  const auto place = PlaceUnderPressure(view);
  if (!place) return Refuse(view, RefusalReason::kAddressRange);
  if (!FitsUnpinned(view, place, view.settled)) {
    if (view.settled != Suballocator::kYoungest) {
      const Suballocator::GrowthOptions options = {.prefer = Suballocator::Prefer::kFewestWhole,
                                                   .search = policy_.searches_every_place
                                                                 ? Suballocator::Search::kExhaustive
                                                                 : Suballocator::Search::kQuick,
                                                   .room_behind = room_behind_};
      if (FitsUnpinned(view, view.blocks.PlanGrowth(BlockRequest(), options), Suballocator::kYoungest)) {
        return {.kind = Kind::kAwaitFences};
      }
    }
    return Refuse(view, RefusalReason::kLimit);
  }
  Fill fill = TryFill(view, *place, LastChunk::kMayStickOut);
  if (fill.missing.is_zero()) return ToMap(view, *place, std::move(fill));
  // A chunk that sticks out of this place would be missing elsewhere.
  fill = TryFill(view, *place, LastChunk::kFits);
  TakeInHand(view, fill.chunks);
  return fill.missing <= Room(view) ? ToGrow(view, fill) : ToMakeRoom(view, *place, fill);
}

// The place with the fewest unmapped pages; where that pins too much, the place with the fewest unpinned
// pages. The first may change at every step; the second stays, so a long request comes to an end.
std::optional<Suballocator::Placement> GrowthPlan::PlaceUnderPressure(const View& view) {
  constexpr int kFickleSteps = 4;
  const bool fickle = pressure_steps_++ < kFickleSteps && !coarse_ && room_behind_.is_zero();
  const Suballocator::Request request = BlockRequest();
  Suballocator::GrowthOptions options = {
      .prefer = fickle ? Suballocator::Prefer::kFewestNew : Suballocator::Prefer::kFewestWhole,
      .search =
          policy_.searches_every_place ? Suballocator::Search::kExhaustive : Suballocator::Search::kQuick,
      .settled = view.settled,
      .room_behind = room_behind_};
  auto place = view.blocks.PlanGrowth(request, options);
  options.prefer = Suballocator::Prefer::kFewestWhole;
  if (fickle && !FitsUnpinned(view, place, view.settled)) place = view.blocks.PlanGrowth(request, options);
  if (!place && !room_behind_.is_zero()) {
    room_behind_ = options.room_behind = Bytes();
    place = view.blocks.PlanGrowth(request, options);
  }
  return place;
}

GrowthPlan::Step GrowthPlan::ToGrow(const View& view, const Fill& fill) {
  Step step{.kind = Kind::kGrow};
  step.grow.at_least = fill.missing;
  step.grow.wanted = fill.missing;
  if (!exact_ && !request_.scratch && !(fill.small && view.chunks.exact_small)) {
    step.grow.wanted =
        std::clamp(steps_.StepFor(fill.missing, view.blocks.used(), fill.small), fill.missing, Room(view));
  }
  if (exact_) {
    // One hole after the other, so that no chunk is larger than its hole.
    step.grow.at_least = fill.largest_hole;
    step.grow.wanted = fill.largest_hole;
  }
  asked_ = step.grow.wanted;
  // A request does not wait for other devices' memory while its own device has enough idle memory.
  hasty_ = !request_.spare_only && !patient_ && view.blocks.idle(view.settled) >= step.grow.at_least;
  step.grow.ahead = hasty_ || request_.spare_only;
  return step;
}

GrowthPlan::Step GrowthPlan::ToMap(const View& view, const Suballocator::Placement& place, Fill fill) {
  TakeInHand(view, fill.chunks);
  Step step{.kind = Kind::kMap};
  Suballocator::Range pages;
  for (std::size_t i = 0; i < fill.chunks.size(); ++i) {
    step.placements.push_back({fill.chunks[i].id, fill.places[i].offset});
  }
  if (!fill.places.empty()) {
    pages.offset = fill.places.front().offset;
    pages.bytes = fill.places.back().end() - pages.offset;
  }
  step.placed = std::move(fill.chunks);
  step.claim = view.blocks.ClaimGrowth(BlockRequest(), place, pages);
  std::erase_if(hand_, [&](const Chunk& chunk) { return IsAmong(chunk, step.placed); });
  DropHand(view.chunks);
  hand_ = step.placed;
  return step;
}

GrowthPlan::Step GrowthPlan::ToMakeRoom(const View& view, const Suballocator::Placement& place,
                                        const Fill& fill) {
  if (!policy_.moves_idle_chunks) return Refuse(view, RefusalReason::kLimit);
  const Bytes shortage = SaturatingSub(fill.missing, Room(view));
  const Bytes first = RoundDown(place.block.offset, steps_.page);
  // Idle chunks that fit into what is missing, as they are.
  ChunkStore::Wanted wanted = {.amount = shortage,
                               .largest_chunk = fill.small ? steps_.page : fill.largest_hole,
                               .avoid = {first, RoundUp(place.block.end(), steps_.page) - first},
                               .settled = view.settled};
  for (const ChunkStore::Bound bound : {ChunkStore::Bound::kAtLeast, ChunkStore::Bound::kAtMost}) {
    wanted.bound = bound;
    if (auto runs = view.chunks.DetachIdle(view.blocks, wanted); !runs.empty()) {
      return {.kind = Kind::kMove, .runs = std::move(runs)};
    }
  }
  if (!policy_.exchanges_large_chunks) return Refuse(view, RefusalReason::kLimit);
  // Larger chunks go back to the source, which gives smaller ones for them.
  exact_ = true;
  if (auto surplus = TakeSurplus(view, fill, shortage); !surplus.empty()) {
    return {.kind = Kind::kReturn, .surplus = std::move(surplus)};
  }
  wanted.bound = ChunkStore::Bound::kAtLeast;
  wanted.largest_chunk = Bytes(~std::uint64_t{0});
  wanted.straddling = true;
  wanted.amount = steps_.page;  // one chunk at a time: the next step may find that it fits
  if (auto runs = view.chunks.DetachIdle(view.blocks, wanted); !runs.empty()) {
    return {.kind = Kind::kMove, .runs = std::move(runs)};
  }
  return Refuse(view, coarse_ ? RefusalReason::kAddressRange : RefusalReason::kLimit);
}

// Chunks that fit nowhere, in hand or spare: the smallest ones that make up for the shortage.
std::vector<Chunk> GrowthPlan::TakeSurplus(const View& view, const Fill& fill, Bytes shortage) {
  std::vector<Chunk> unfit;
  std::erase_if(hand_, [&](const Chunk& chunk) {
    const bool used = IsAmong(chunk, fill.chunks);
    if (!used) unfit.push_back(chunk);
    return !used;
  });
  const std::vector<Chunk> spare = view.chunks.TakeAllSpare();
  unfit.insert(unfit.end(), spare.begin(), spare.end());
  std::sort(unfit.begin(), unfit.end(), [](const Chunk& a, const Chunk& b) { return a.bytes > b.bytes; });
  std::vector<Chunk> surplus;
  Bytes sum;
  while (sum < shortage && !unfit.empty()) {
    sum += unfit.back().bytes;
    surplus.push_back(unfit.back());
    unfit.pop_back();
  }
  view.chunks.AddSpare(unfit);
  return surplus;
}

GrowthPlan::Step GrowthPlan::Refuse(const View& view, RefusalReason reason) {
  if (view.fenced && !fences_passed_) return {.kind = Kind::kAwaitFences};
  if (grow_refused_ && hasty_) {
    hasty_ = false;
    patient_ = true;
    grow_refused_.reset();
    return Next(view);
  }
  return {.kind = Kind::kRefuse, .grow_refused = grow_refused_, .reason = reason};
}

// ---- Results of steps.

void GrowthPlan::NoteGranted(std::span<const Chunk> chunks, ChunkStore& store) {
  for (const Chunk& chunk : chunks) {
    store.NoteGranted(chunk);
    hand_.push_back(chunk);
    grown_.push_back(chunk.id);
    // A source may have no chunks as small as those it is asked for: preallocated ones exist as they are.
    if (IsSmall() && !any_chunk_ && chunk.bytes > steps_.page) {
      store.exact_small = true;
      if (asked_ == steps_.page) {
        store.only_large = true;
        any_chunk_ = true;
      }
    }
    if (chunk.bytes > asked_) {
      larger_came_ = true;
      coarse_ = coarse_ || exact_;
      room_behind_ = std::max(room_behind_, chunk.bytes);
    }
  }
}

void GrowthPlan::NoteMoved(std::span<const ChunkStore::Run> runs) {
  for (const ChunkStore::Run& run : runs) hand_.insert(hand_.end(), run.chunks.begin(), run.chunks.end());
  if (grow_refused_ && absl::IsResourceExhausted(*grow_refused_) && !combined_) {
    // Neither was enough alone: take the idle chunks, and ask for a smaller step of growth for the rest.
    combined_ = true;
    grow_refused_.reset();
  }
}

bool GrowthPlan::DropHand(ChunkStore& store) {
  store.AddSpare(hand_);
  return !std::exchange(hand_, {}).empty();
}

void GrowthPlan::StartAgain() {
  grow_refused_.reset();
  combined_ = false;
  exact_ = false;
  coarse_ = false;
  room_behind_ = Bytes();
}

bool GrowthPlan::AllowAnyChunk() { return IsSmall() && !std::exchange(any_chunk_, true); }

std::vector<Chunk> GrowthPlan::GiveUp(ChunkStore& store) {
  DropHand(store);
  std::vector<Chunk> own;
  for (const ChunkId id : grown_) own.push_back({id, Bytes()});
  std::vector<Chunk> spare = store.TakeAllSpare();
  const auto kept = std::stable_partition(spare.begin(), spare.end(),
                                          [&](const Chunk& chunk) { return !IsAmong(chunk, own); });
  const std::vector<Chunk> to_return(kept, spare.end());
  spare.erase(kept, spare.end());
  store.AddSpare(spare);
  return to_return;
}

// ---- Chunks for a place.

// The bytes that the source may still give, if there is a place for its chunks.
Bytes GrowthPlan::Room(const View& view) const {
  const bool none_fits = coarse_ && room_behind_.is_zero();
  return grow_refused_ || none_fits ? Bytes()
                                    : SaturatingSub(RoundUp(view.limit, steps_.page), view.chunks.held());
}

// The bytes of chunks that hold a live block, or one that may be in use. Chunks in the hands of other
// requests count as well; a request that is refused waits for those to finish first.
Bytes GrowthPlan::Pinned(const View& view, Suballocator::Stamp settled) const {
  return view.chunks.held() - view.blocks.idle(settled) - view.chunks.spare_bytes() - SumOf(hand_);
}

bool GrowthPlan::FitsUnpinned(const View& view, const std::optional<Suballocator::Placement>& place,
                              Suballocator::Stamp settled) const {
  return place && SaturatingAdd(Pinned(view, settled), place->whole) <= RoundUp(view.limit, steps_.page);
}

void GrowthPlan::TakeInHand(const View& view, std::span<const Chunk> chunks) {
  const std::vector<Chunk> taken = view.chunks.TakeSpare(chunks);
  hand_.insert(hand_.end(), taken.begin(), taken.end());
}

// Large chunks first, as long as all of one is needed; the last one may stick out where addresses are free.
GrowthPlan::Fill GrowthPlan::TryFill(const View& view, const Suballocator::Placement& place,
                                     LastChunk last) const {
  Fill fill;
  fill.small = !any_chunk_ && IsSmall();
  std::vector<Chunk> chunks = hand_;
  chunks.insert(chunks.end(), view.chunks.spare().begin(), view.chunks.spare().end());
  const auto is_larger = [](const Chunk& a, const Chunk& b) { return a.bytes > b.bytes; };
  if (!std::is_sorted(chunks.begin(), chunks.end(), is_larger)) {  // mostly all are of one size
    std::stable_sort(chunks.begin(), chunks.end(), is_larger);
  }
  const Bytes small_zone = view.blocks.small_zone();
  for (const Suballocator::Run& run : view.blocks.UnmappedRuns(place)) {
    const bool one_page = fill.small || run.pages.end() > small_zone;
    Bytes at = run.pages.offset;
    auto kept = chunks.begin();
    auto next = chunks.begin();
    for (; next != chunks.end() && at < run.pages.end(); ++next) {
      const Chunk chunk = *next;
      if (chunk.bytes <= run.pages.end() - at && (chunk.bytes == steps_.page || !one_page)) {
        fill.chunks.push_back(chunk);
        fill.places.push_back({at, chunk.bytes});
        at += chunk.bytes;
      } else {
        *kept++ = chunk;
      }
    }
    chunks.erase(kept, next);
    const Bytes open_end = std::min(run.around.end(), std::max(small_zone, run.pages.end()));
    if (last == LastChunk::kMayStickOut && at < run.pages.end() && !one_page && !chunks.empty() &&
        chunks.back().bytes <= open_end - at) {
      fill.chunks.push_back(chunks.back());
      fill.places.push_back({at, chunks.back().bytes});
      at += chunks.back().bytes;
      chunks.pop_back();
    }
    if (at < run.pages.end()) {
      fill.missing += run.pages.end() - at;
      // Where only chunks of one page go, a larger one would come and go for ever.
      fill.largest_hole = std::max(fill.largest_hole, one_page ? steps_.page : run.pages.end() - at);
    }
  }
  return fill;
}

}  // namespace lgpu
