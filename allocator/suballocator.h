#ifndef LGPU_ALLOCATOR_SUBALLOCATOR_H_
#define LGPU_ALLOCATOR_SUBALLOCATOR_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "allocator/fit_index.h"
#include "allocator/node_table.h"
#include "allocator/page_map.h"
#include "lgpu/bytes.h"

namespace lgpu {

/// A Suballocator divides a region into live blocks and free ranges. It is pure arithmetic over
/// offsets: it touches no device, clock or thread, and its nodes lie beside the memory, in a flat array.
/// It knows which pages (of the granularity) are mapped and which chunks they belong to, and says which
/// unmapped pages a block needs; its owner maps them, in two steps (ClaimGrowth, then Commit or Abandon).
///
/// The region has three zones: below small_zone() lie blocks larger than kLargestSmall, from it on the
/// small ones, and behind those, in the last one, the tiny ones up to kLargestTiny. Each zone has an index of
/// its free mapped ranges, so sizes that differ much do not mix. A zone is a preference: where a request
/// would otherwise be refused, Effort::kAnywhere looks into the others. A small or tiny block lies in chunks
/// of one page only (unless its request says any_chunk), so that it never pins more than two pages; from
/// small_zone() on every chunk is one page.
///
/// Stamps: a free range has the number that the last Free of it passed; merged ranges have the youngest of
/// theirs, fresh pages 0. Numbers rise. A range is settled up to a stamp when its own is not above it.
/// An idle chunk lies wholly in one free range; it may be taken away (Detach) once the range is settled.
///
/// Every offset and size is a multiple of a granule (512 bytes). The invariants, which
/// CheckInvariants() walks, together with PageMap's:
///
///   the nodes, in address order, cover [0, reserved) without gap or overlap, none is empty
///   no two neighbours are both free, or both unmapped
///   a live block, a free range and a detached one lie wholly in mapped pages; detached ones are whole chunks
///   an unmapped range is whole pages, none of them mapped
///   a free range is in the index of the zone that it starts in, an unmapped one in that of unmapped ranges,
///     under its own size, and nothing else is; the indices' bitmaps name exactly the classes that are not
///     empty
///   used = sum of live blocks, free = sum of free ranges, mapped pages = those under live, free, detached
///   and
///     claimed ranges
///   chunks in the small and tiny zones, and under small and tiny blocks, have one page
///   live + free + unmapped + claimed + detached + vacant + retired nodes = all nodes
///
/// After the last Free and with nothing claimed or detached, free ranges and unmapped ranges alternate: one
/// free range for each run of mapped pages.
///
/// Homes: a caller that serves several threads names the thread that a block is for. Its node is then one of
/// this home's, which lie in runs of a few cache lines: threads that work on nodes of their blocks do not
/// write to each other's lines. Only where nodes of other homes lie vacant in great number a block gets one
/// of those.
///
/// Not thread-safe. Allocate and Free take O(1) steps and, in the steady state, no memory of the heap.
class Suballocator {
 public:
  static constexpr Bytes kGranule = Bytes(512);
  static constexpr Bytes kLargestSmall = Bytes(std::uint64_t{1} << 20);
  static constexpr Bytes kLargestTiny = Bytes(std::uint64_t{1} << 14);
  static constexpr Bytes kMaxReserved = Bytes((std::uint64_t{1} << 32) * 512 - (std::uint64_t{2} << 20));

  /// Names a live block, a claim or a detached range: a slot, and how often it was given a name before. A
  /// slot whose numbers are used up is retired, so a stale handle never names anything. Zero is no handle.
  using Handle = std::uint64_t;
  using Stamp = std::uint32_t;
  static constexpr Stamp kYoungest = ~Stamp{0};
  static constexpr std::uint32_t kHomes = 64;
  static constexpr std::uint32_t kHomeRun = 128;  // slots
  struct Range {
    Bytes offset;
    Bytes bytes;
    Bytes end() const { return offset + bytes; }
    friend bool operator==(const Range&, const Range&) = default;
  };
  struct Options {
    Bytes reserved;                                         // at most kMaxReserved, whole pages
    Bytes page;                                             // a power of two
    std::uint32_t names_per_slot = Node::kGenerations - 1;  // tests make this small, and this:
    std::uint32_t spare_slots = 2 * kHomes * kHomeRun;      // that homes may have beyond their blocks' need
  };

  /// Nothing is mapped yet.
  explicit Suballocator(const Options& options);
  Suballocator(Bytes reserved, Bytes page) : Suballocator(Options{.reserved = reserved, .page = page}) {}

  // ---- Blocks.
  struct Request {
    Bytes bytes;                   // not zero
    Bytes alignment = Bytes(256);  // a power of two up to `page`
    bool any_chunk = false;        // a small block may lie in a larger chunk: it would be refused otherwise
    std::uint32_t home = 0;        // below kHomes
  };
  enum class Effort {
    kQuick,       // O(1), in the own zone; may miss a tight fit
    kExhaustive,  // in the own zone, misses nothing
    kAnywhere,    // in all zones, misses nothing
  };
  /// A block in mapped pages, or nothing.
  std::optional<Handle> Allocate(const Request& request, Effort effort);
  void Free(Handle block, Stamp stamp);
  /// When the memory of the last block was freed: the youngest stamp in the range that the block was cut out
  /// of.
  Stamp freed_at() const { return freed_at_; }
  /// The same bytes for another owner: the old handle names nothing any more.
  Handle Rename(Handle block);
  /// Scarce: quick searches look at more ranges and take the smallest, which wastes less and costs more.
  void SetScarce(bool scarce) { scarce_ = scarce; }
  bool IsLive(Handle block) const;
  Range range(Handle handle) const;
  static std::uint32_t SlotOf(Handle handle) { return static_cast<std::uint32_t>(handle); }
  static std::uint32_t GenerationOf(Handle handle) { return static_cast<std::uint32_t>(handle >> 32); }
  /// The handle of the live block in a slot.
  Handle HandleAt(std::uint32_t slot) const { return HandleOf(slot); }
  /// For an owner that keeps data of its blocks without the lock around this object: a Node's `before` and
  /// `behind` belong to the owner as long as it is a block, and are 0 at first. The owner also chooses a
  /// block's state.
  const NodeTable& nodes() const { return nodes_; }
  /// `behind`, by handle.
  void SetTag(Handle block, std::uint32_t tag);
  std::uint32_t tag(Handle block) const;

  // ---- Growth. Steps that change nothing first.
  enum class Prefer {
    kFewestNew,    // pages that are not mapped yet
    kFewestWhole,  // pages that no pinned chunk has: these count when idle chunks are moved
  };
  enum class Search { kQuick, kExhaustive };
  struct Placement {
    Range block;
    Bytes fresh;         // of pages that are not mapped
    Bytes whole;         // and of those in idle chunks that are settled: pages that no pinned chunk has
    std::uint32_t node;  // where the block starts; valid until anything changes
  };
  struct GrowthOptions {
    Prefer prefer = Prefer::kFewestNew;
    Search search = Search::kQuick;
    Stamp settled = kYoungest;
    Bytes room_behind{};  // the place ends in an unmapped range, with this much of it behind its own pages
  };
  /// Where a block would go if pages could be mapped; nothing if the addresses do not suffice. kExhaustive:
  /// no place has fewer such pages.
  std::optional<Placement> PlanGrowth(const Request& request, const GrowthOptions& options) const;
  /// Runs of pages, in order, that have to be mapped for a place.
  struct Run {
    Range pages;   // the pages that the block touches
    Range around;  // the unmapped range that they are part of: a larger chunk may reach into it
  };
  std::vector<Run> UnmappedRuns(const Placement& placement) const;
  struct Claim {
    Handle place = 0;
    Range block;
    Request request;
  };
  /// Sets the place aside, with all of `pages`: unmapped pages next to or under the block.
  Claim ClaimGrowth(const Request& request, const Placement& placement, Range pages);
  /// Chunks were mapped at these places, all inside the claim; the block is live, the rest of the claim free.
  Handle Commit(const Claim& claim, std::span<const Range> chunks);
  /// Nothing was mapped.
  void Abandon(const Claim& claim);

  // ---- Giving pages back.
  /// Idle chunks that lie side by side in one free range.
  struct IdleRun {
    Range range;
    Stamp stamp;
    std::uint32_t node;  // valid until anything changes but a Detach of higher addresses of this run
  };
  /// Idle runs of settled ranges, in no particular order.
  std::vector<IdleRun> IdleRuns(Stamp settled) const;
  Bytes idle(Stamp settled) const;
  /// Takes whole idle chunks of a run out of use.
  Handle Detach(const IdleRun& run, Range chunks);
  /// The detached chunks are not mapped any more.
  void CommitUnmapped(Handle detached);
  /// The detached chunks stay mapped and are free again.
  void Reattach(Handle detached);
  /// The mapped pages of `range`, whole chunks, are these chunks from now on: one behind the other, and all
  /// of the range. No node changes.
  void ReplaceChunks(Range range, std::span<const Range> chunks);

  /// All stamps become smaller by this much, but not below 0: for an owner whose numbers run out.
  void RebaseStamps(Stamp by);

  // ---- Sizes.
  Bytes used() const { return FromGranules(used_); }
  Bytes free() const { return FromGranules(free_); }
  Bytes mapped() const { return FromGranules(pages_.mapped_pages() * page_); }
  Bytes reserved() const { return FromGranules(reserved_); }
  Bytes small_zone() const { return FromGranules(zones_[1]); }
  std::uint64_t live_blocks() const { return live_blocks_; }
  Bytes largest_free() const;
  /// Bytes of the heap that nodes and page bits take.
  std::uint64_t footprint() const {
    return nodes_.end() * sizeof(Node) + pages_.footprint() + run_homes_.capacity();
  }

  using State = Node::State;
  struct NodeInfo {
    Range range;
    State state;
    Stamp stamp;  // free: of its last use; live: 0
    std::uint32_t tag;
  };
  class Snapshot;
  /// One copy of the node array; reading it takes no look at this object any more.
  void CopyTo(Snapshot& snapshot) const;

  /// OK, or INTERNAL with the first invariant that does not hold.
  absl::Status CheckInvariants() const;

 private:
  using Index = FitIndex;
  static constexpr int kZones = 3;  // large, small, tiny
  struct Fit {
    std::uint32_t node = 0;
    std::uint32_t start = 0;
  };
  struct Want {  // a request in granules
    std::uint64_t size;
    std::uint64_t alignment;
    std::size_t zone;
  };
  static constexpr Stamp kAnyChunk = 1;  // of a block
  /// A free range beside which a block of the zone of large ones is small.
  bool IsHuge(std::size_t zone, std::uint32_t range) const {
    return zone == 0 && nodes_[range].size >= huge_;
  }

  static constexpr Bytes FromGranules(std::uint64_t granules) { return kGranule * granules; }
  static std::uint32_t ToGranules(Bytes bytes) { return static_cast<std::uint32_t>(bytes / kGranule); }
  static Range RangeOf(const Node& node) { return {FromGranules(node.offset), FromGranules(node.size)}; }
  std::uint32_t NodeOf(Handle handle) const;
  std::uint32_t NodeOf(Handle handle, State state) const;
  std::uint32_t BlockOf(Handle handle) const;
  Handle HandleOf(std::uint32_t node) const { return Handle{nodes_[node].generation()} << 32 | node; }
  static NodeInfo InfoOf(const Node& node);

  std::uint32_t NewNode(std::uint32_t home = 0);
  std::uint32_t AddNode(std::uint32_t home);
  std::uint32_t TakeVacant(std::uint32_t home);
  void PutVacant(std::uint32_t home, std::uint32_t index);
  std::uint32_t HomeOf(std::uint32_t index) const {
    return run_homes_.empty() ? 0 : run_homes_[index / kHomeRun];
  }
  void DropNode(std::uint32_t index) { DropNode(index, nodes_[index].generation()); }
  void DropNode(std::uint32_t index, std::uint32_t generation);
  Handle Name(std::uint32_t index);
  std::uint32_t WithNames(std::uint32_t index);
  std::uint32_t AtHome(std::uint32_t index, std::uint32_t home);
  std::uint32_t Replaced(std::uint32_t index, std::uint32_t home);
  void EndName(std::uint32_t index) {
    nodes_[index].Set(nodes_[index].generation() + 1, nodes_[index].state());
  }
  void LinkBefore(std::uint32_t index, std::uint32_t fresh);
  void Unlink(std::uint32_t index);
  std::uint32_t SplitAfter(std::uint32_t index, std::uint32_t size, std::uint32_t home = 0);

  Index& IndexOf(const Node& node) {
    return node.state() == State::kUnmapped ? unmapped_ : free_ranges_[ZoneOf(node.offset)];
  }
  void InsertFree(std::uint32_t index) {
    IndexOf(nodes_[index]).Insert(nodes_.data(), index, nodes_[index].size);
  }
  void RemoveFree(std::uint32_t index) {
    IndexOf(nodes_[index]).Remove(nodes_.data(), index, nodes_[index].size);
  }
  void Resize(std::uint32_t index, std::uint32_t offset, std::uint32_t size);
  std::uint32_t Carve(std::uint32_t index, std::uint32_t start, std::uint32_t size, std::uint32_t home = 0);
  void Settle(std::uint32_t index, State kind, Stamp stamp);
  void FreeRange(std::uint32_t index, std::uint32_t generation, std::uint32_t size, Stamp stamp);
  void Widen(std::uint32_t index, std::uint32_t offset, std::uint32_t size, std::uint32_t by);
  std::uint32_t TakeFront(std::uint32_t index, std::uint32_t size, std::uint32_t home);
  std::uint32_t first() const { return nodes_[0].next; }
  void SettlePieces(std::uint32_t index, Stamp stamp);
  Handle MakeLive(std::uint32_t index, const Request& request);
  std::uint32_t FindPlain(const Index& index, std::uint32_t size) const;

  std::optional<Handle> AllocateSlowly(const Want& want, const Request& request, Effort effort);
  Want WantOf(const Request& request) const;
  Fit FindIn(const Index& index, std::uint32_t size_class, const Want& want) const;
  Fit FindQuick(const Want& want) const;
  Fit FindLowest(const Index& index, std::uint32_t size_class, const Want& want) const;
  Fit FindAny(const Index& index, const Want& want) const;
  bool MayLieIn(const Want& want, std::uint64_t start) const;

  struct Planner;
  std::size_t ZoneOf(std::uint64_t granule) const {
    return (granule >= zones_[1] ? 1u : 0u) + (granule >= zones_[2] ? 1u : 0u);
  }
  std::uint64_t PageOf(std::uint64_t granule) const { return granule / page_; }
  struct Pages {
    std::uint64_t first;
    std::uint64_t end;
  };
  Pages IdlePages(const Node& node) const;
  template <typename Visit>
  void ForEachIdle(Stamp settled, Visit visit) const;

  absl::Status CheckNode(std::uint32_t index) const;
  absl::Status CheckIndex(const Index& fits, int zone, std::uint64_t expected) const;
  absl::Status CheckSlots(std::uint64_t in_order) const;

  const std::uint32_t page_;  // in granules
  const std::uint64_t reserved_;
  const std::array<std::uint64_t, kZones> zones_;  // where each starts, in granules
  const std::uint64_t small_;                      // the largest of small and of tiny blocks, in granules
  const std::uint64_t tiny_;
  const std::uint64_t huge_;
  const std::uint32_t last_generation_;
  const std::uint64_t spare_slots_;
  NodeTable nodes_;                             // the `next` of slot 0 is the first range
  std::array<std::uint32_t, kHomes> vacant_{};  // heads of lists
  // The home of each run of slots; empty as long as all slots are the first home's.
  std::vector<std::uint8_t> run_homes_;
  std::uint64_t slots_at_first_ = 0;  // when another home was first used
  PageMap pages_;
  std::array<Index, kZones> free_ranges_;
  Index unmapped_;
  std::uint64_t used_ = 0;  // in granules, as free
  std::uint64_t free_ = 0;
  std::uint64_t live_blocks_ = 0;
  std::uint64_t peak_blocks_ = 0;  // the most blocks when nodes were added, with several homes
  std::uint64_t retired_nodes_ = 0;
  Stamp freed_at_ = 0;
  bool scarce_ = false;
};

/// A Snapshot is a copy of a Suballocator's nodes at one moment.
class Suballocator::Snapshot {
 public:
  /// Calls visit(const NodeInfo&) for every range, in address order.
  template <typename Visit>
  void ForEach(Visit visit) const;

 private:
  friend class Suballocator;
  std::vector<Node> nodes_;
};

template <typename Visit>
void Suballocator::Snapshot::ForEach(Visit visit) const {
  for (std::uint32_t index = nodes_[0].next; index != 0; index = nodes_[index].next) {
    visit(InfoOf(nodes_[index]));
  }
}

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_SUBALLOCATOR_H_
