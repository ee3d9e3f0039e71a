#ifndef LGPU_ALLOCATOR_POOL_GROWTH_PLAN_H_
#define LGPU_ALLOCATOR_POOL_GROWTH_PLAN_H_

#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "allocator/pool/chunk_store.h"
#include "allocator/suballocator.h"
#include "lgpu/bytes.h"
#include "lgpu/refusal.h"
#include "lgpu/region_source.h"

namespace lgpu {

/// How much a pool asks its source for at a time.
struct GrowthSteps {
  Bytes page;
  Bytes least;        // PoolOptions::growth_step
  bool ahead = true;  // PoolOptions::grow_ahead
  /// The bytes to ask for where `missing` bytes are needed and `used` are in blocks. `small`: for small
  /// blocks, which live in chunks of one page; their step stays below the size from which sources make larger
  /// chunks.
  Bytes StepFor(Bytes missing, Bytes used, bool small) const;
};

/// The steps that a GrowthPlan may take. A test of the promise forbids each in turn, and must see it broken.
struct GrowthPolicy {
  bool moves_idle_chunks = true;
  bool searches_every_place = true;
  bool exchanges_large_chunks = true;
};

/// A GrowthPlan leads one request that does not fit into mapped memory to a block or to a refusal. It decides
/// one step after the other; the pool takes the step (Growth) and tells the plan what came of it. Chunks that
/// the plan has in hand are no other request's meanwhile. It touches no device, clock or thread.
///
/// The promise: a refusal by the limit means, with all caches flushed and all fences passed,
///
///   bytes in live blocks + bytes asked for > limit, or pinned + needed > limit in whole pages
///   pinned = bytes of all chunks that hold a byte of a live or fenced block
///   needed = the fewest bytes of pages, in no pinned chunk, that the block touches, over all places that
///            hold no live block
///
/// for every mix of chunk sizes, of a source that grants `at_least` as long as it fits and no chunk larger
/// than `wanted`: idle chunks move, and larger ones than fit go back in exchange for smaller ones, hole by
/// hole. Where a source has only larger chunks, `needed` counts in those.
///
/// Not thread-safe: the pool's lock guards every call.
class GrowthPlan {
 public:
  struct Request {
    Bytes bytes;
    Bytes alignment;
    std::uint32_t home = 0;   // see Suballocator
    bool spare_only = false;  // only memory that lies ready; see AllocateOptions
    bool scratch = false;     // asks for no more than it needs
  };
  /// The pool, as it is when Next is called.
  struct View {
    Suballocator& blocks;
    ChunkStore& chunks;
    Bytes limit;
    Suballocator::Stamp settled;  // no stream uses memory that was freed up to this stamp
    bool fenced = false;          // there are freed blocks that streams may still use
    bool caches_empty = false;    // the front caches were flushed since the last step and held nothing
  };
  enum class Kind {
    kDone,    // `block` is made; the chunks in hand are spare
    kFlush,   // flush the front caches, then ask again, with caches_empty where there was nothing in them
    kGrow,    // ask the source for `grow`: NoteGranted or NoteGrowRefused
    kMove,    // unmap `runs`: NoteMoved
    kReturn,  // return `surplus` to the source: NoteReturned
    kAwaitFences,  // ask or wait for fences: NoteFences
    kMap,          // map `placements`; then the block is Commit(claim)
    kRefuse,       // by `grow_refused`, or where that is empty for `reason`
  };
  struct Step {
    Kind kind;
    Suballocator::Handle block = 0;
    GrowRequest grow{};  // without a timeout; `ahead`: the source must not wait
    std::vector<ChunkStore::Run> runs{};
    std::vector<Chunk> surplus{};
    Suballocator::Claim claim{};
    std::vector<ChunkPlacement> placements{};
    std::vector<Chunk> placed{};  // in the order of placements
    std::optional<absl::Status> grow_refused{};
    RefusalReason reason = RefusalReason::kLimit;
    bool endless = false;  // the source does not keep its word: this request would go on for ever
  };

  GrowthPlan(const Request& request, const GrowthSteps& steps, const GrowthPolicy& policy = {})
      : request_(request), steps_(steps), policy_(policy) {}

  Step Next(const View& view);

  /// The chunks are in hand.
  void NoteGranted(std::span<const Chunk> chunks, ChunkStore& store);
  void NoteGrowRefused(const absl::Status& status) { grow_refused_ = status; }
  void NoteMoved(std::span<const ChunkStore::Run> runs);
  void NoteReturned() { grow_refused_.reset(); }
  /// All fences were queried (`waited`: waited for), and passed blocks were released.
  void NoteFences(bool waited) { fences_passed_ = fences_passed_ || waited; }
  bool fences_passed() const { return fences_passed_; }
  /// Makes the chunks in hand spare; true if there were any.
  bool DropHand(ChunkStore& store);
  /// Another request ended: refused memory may be available now.
  void StartAgain();
  /// From here on a small block may lie in a large chunk, which it then pins. False: that was so already.
  bool AllowAnyChunk();
  /// Ends the plan without a block. The result is the chunks that the source gave to this request, taken out
  /// of the store; they go back to the source. The pool's earlier chunks are spare.
  std::vector<Chunk> GiveUp(ChunkStore& store);

 private:
  /// Chunks for the pages that a place needs, out of those at hand.
  struct Fill {
    std::vector<Chunk> chunks{};
    std::vector<Suballocator::Range> places{};
    Bytes missing{};       // no chunk was there for this much
    Bytes largest_hole{};  // of the missing bytes, in one piece
    bool small = false;    // only chunks of one page will do
  };
  enum class LastChunk { kFits, kMayStickOut };

  Suballocator::Request BlockRequest() const;
  bool IsSmall() const;
  bool FitsUnpinned(const View& view, const std::optional<Suballocator::Placement>& place,
                    Suballocator::Stamp settled) const;
  Bytes Room(const View& view) const;
  Bytes Pinned(const View& view, Suballocator::Stamp settled) const;
  Fill TryFill(const View& view, const Suballocator::Placement& place, LastChunk last) const;
  void TakeInHand(const View& view, std::span<const Chunk> chunks);
  Step Done(const View& view, Suballocator::Handle block);
  Step UnderPressure(const View& view);
  std::optional<Suballocator::Placement> PlaceUnderPressure(const View& view);
  Step ToGrow(const View& view, const Fill& fill);
  Step ToMap(const View& view, const Suballocator::Placement& place, Fill fill);
  Step ToMakeRoom(const View& view, const Suballocator::Placement& place, const Fill& fill);
  std::vector<Chunk> TakeSurplus(const View& view, const Fill& fill, Bytes shortage);
  Step Refuse(const View& view, RefusalReason reason);

  const Request request_;
  const GrowthSteps steps_;
  const GrowthPolicy policy_;
  std::vector<Chunk> hand_{};     // granted and not mapped, for this request
  std::vector<ChunkId> grown_{};  // chunks that the source gave to this request
  std::optional<absl::Status> grow_refused_{};
  Bytes asked_{};        // `wanted` of the last step of growth
  Bytes room_behind_{};  // the source has no chunks that are small enough: this much may stick out
  int steps_taken_ = 0;
  int pressure_steps_ = 0;
  bool hasty_ = false;        // the refusal came without waiting: there was idle memory to try first
  bool patient_ = false;      // the idle memory was tried
  bool larger_came_ = false;  // the source gave a larger chunk than it was asked for
  bool any_chunk_ = false;    // the source has none of one page for a small block
  bool exact_ = false;        // ask for no more than is missing
  bool coarse_ = false;       // the source had only larger chunks even so
  bool combined_ = false;     // idle chunks were taken to make a refused step of growth smaller
  bool fences_passed_ = false;
};

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_POOL_GROWTH_PLAN_H_
