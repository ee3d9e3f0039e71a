#ifndef LGPU_ALLOCATOR_SUBALLOCATOR_H_
#define LGPU_ALLOCATOR_SUBALLOCATOR_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "allocator/fit_index.h"
#include "lgpu/bytes.h"

namespace lgpu {

/// A Suballocator divides a region into live blocks and free ranges. It is pure arithmetic over
/// offsets: it touches no device, clock or thread, and its nodes lie beside the memory, in a flat array
/// with 32-bit handles. It knows which pages (of the chunks' granularity) are mapped, and says which
/// unmapped bytes an allocation needs; its owner maps them, in two steps (Claim, then Commit or Abandon).
///
/// Every offset and size is a multiple of a granule (512 bytes). The invariants, which
/// CheckInvariants() walks:
///
///   the nodes, in address order, cover [0, reserved) without gap or overlap, none is empty
///   no two neighbours are both free and mapped, or both free and unmapped
///   a live block and a free mapped range lie wholly in mapped pages; a free unmapped range is whole pages
///   every free range is in the index of its kind, under its own size, and nothing else is
///   used = sum of live blocks, free = sum of free mapped ranges
///
/// Not thread-safe. Allocate and Free take O(1) steps and, in the steady state, no memory of the heap.
class Suballocator {
 public:
  static constexpr Bytes kGranule = Bytes(512);

  /// Names a live block, a claim's part or a detached range; changes when its slot is used again. Zero
  /// names nothing.
  using Handle = std::uint32_t;
  struct Range {
    Bytes offset;
    Bytes bytes;
    Bytes end() const { return offset + bytes; }
  };

  /// Nothing is mapped yet. `page` is a power of two and divides `reserved`, which is at most kMaxReserved.
  Suballocator(Bytes reserved, Bytes page);
  static constexpr Bytes kMaxReserved = Bytes((std::uint64_t{1} << 32) * 512 - (std::uint64_t{2} << 20));

  // Blocks. `requested` is not zero; `alignment` is a power of two up to `page`.
  enum class Effort { kQuick, kExhaustive };
  /// A block in mapped pages, or nothing. kQuick may miss a tight fit.
  std::optional<Handle> Allocate(Bytes requested, Bytes alignment, Effort effort);
  void Free(Handle block);
  bool IsLive(Handle block) const;
  Range range(Handle handle) const;

  // Growth.
  enum class Prefer {
    kFewestNew,    // pages that are not mapped yet
    kFewestWhole,  // pages that are not mapped yet or are wholly free: what counts when pages are moved
  };
  struct Placement {
    Range block;
    Bytes unmapped;  // whole pages that have to be mapped for it, contiguous
  };
  /// Where a block would go if pages could be mapped; nothing if the addresses do not suffice.
  std::optional<Placement> PlanGrowth(Bytes requested, Bytes alignment, Prefer prefer) const;
  struct Claim {
    Handle before = 0;  // the free mapped bytes that the block takes in front of the new pages
    Handle fresh = 0;   // the new pages
    Handle after = 0;   // the free mapped bytes that it takes behind them
    Range block;
    Bytes requested;
    Bytes map_offset;  // where the new pages start
  };
  /// Sets a place aside where `fresh` contiguous bytes (whole pages) of new pages make a block possible.
  std::optional<Claim> ClaimGrowth(Bytes requested, Bytes alignment, Bytes fresh);
  /// The pages are mapped: the block is live, what is left of the pages is free.
  Handle Commit(const Claim& claim);
  void Abandon(const Claim& claim);

  // Giving pages back.
  /// Free mapped ranges of at least `at_least`, in no particular order.
  std::vector<Range> FreeRanges(Bytes at_least) const;
  /// Takes whole pages, all inside one free mapped range, out of use.
  Handle Detach(Range pages);
  /// They are not mapped any more.
  void CommitUnmapped(Handle detached);
  /// They stay mapped and are free again.
  void Reattach(Handle detached);

  Bytes used() const { return FromGranules(used_); }
  Bytes requested() const { return FromGranules(used_) - Bytes(padding_); }
  Bytes free() const { return FromGranules(free_); }
  std::uint64_t live_blocks() const { return live_blocks_; }
  Bytes largest_free() const;

  /// OK, or INTERNAL with the first invariant that does not hold.
  absl::Status CheckInvariants() const;

 private:
  enum class State : std::uint8_t { kVacant, kLive, kFree, kUnmapped, kClaimed, kDetached };
  struct Node {
    std::uint32_t offset = 0;  // in granules, as size
    std::uint32_t size = 0;
    std::uint32_t previous = 0;  // by address; 0: none
    std::uint32_t next = 0;
    FitLink link;               // in its index; `next` also chains the vacant slots
    std::uint16_t padding = 0;  // of a live block: its bytes that nobody asked for
    std::uint8_t generation = 0;
    State state = State::kVacant;
  };
  struct Fit {
    std::uint32_t node = 0;
    std::uint32_t start = 0;
  };
  // A place for a block around one unmapped node; in granules.
  struct Spot {
    std::uint32_t unmapped_node = 0;
    std::uint64_t start = 0;
    std::uint64_t fresh = 0;
  };

  static constexpr Bytes FromGranules(std::uint64_t granules) { return kGranule * granules; }
  static std::uint32_t ToGranules(Bytes bytes) { return static_cast<std::uint32_t>(bytes / kGranule); }
  std::uint32_t NodeOf(Handle handle) const;
  Handle HandleOf(std::uint32_t node) const;
  Range RangeOf(const Node& node) const { return {FromGranules(node.offset), FromGranules(node.size)}; }

  std::uint32_t NewNode();
  void DropNode(std::uint32_t index);
  std::uint32_t SplitAfter(std::uint32_t index, std::uint32_t size);
  void AbsorbNext(std::uint32_t index);
  std::uint32_t Carve(std::uint32_t index, std::uint32_t start, std::uint32_t size, State state);
  std::uint32_t MakeFree(std::uint32_t index, State kind);
  Handle MakeLive(std::uint32_t node, Bytes requested);
  FitIndex<Node>& IndexOf(State kind) { return kind == State::kFree ? mapped_index_ : unmapped_index_; }
  Fit FindFit(std::uint32_t size, std::uint32_t alignment, Effort effort) const;
  std::optional<Spot> SpotAt(std::uint32_t unmapped_node, std::uint64_t size, std::uint64_t alignment) const;
  std::uint64_t WholeFreePages(const Spot& spot, std::uint64_t end) const;
  void SetMapped(const Node& node, bool mapped);
  bool AllPages(const Node& node, bool mapped) const;
  absl::Status CheckNode(std::uint32_t index) const;
  absl::Status CheckIndices(std::uint64_t free_nodes, std::uint64_t unmapped_nodes) const;

  const std::uint32_t page_;  // in granules
  const std::uint64_t reserved_;
  std::vector<Node> nodes_;  // slot 0 is never used
  std::uint32_t vacant_ = 0;
  std::uint32_t first_ = 0;
  std::vector<bool> mapped_pages_;
  FitIndex<Node> mapped_index_;
  FitIndex<Node> unmapped_index_;
  std::uint64_t used_ = 0;  // in granules, as free
  std::uint64_t free_ = 0;
  std::uint64_t padding_ = 0;
  std::uint64_t live_blocks_ = 0;
};

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_SUBALLOCATOR_H_
