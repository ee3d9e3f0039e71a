#ifndef LGPU_ALLOCATOR_POOL_CHUNK_STORE_H_
#define LGPU_ALLOCATOR_POOL_CHUNK_STORE_H_

#include <map>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "allocator/suballocator.h"
#include "lgpu/bytes.h"
#include "lgpu/region_source.h"

namespace lgpu {

std::vector<ChunkId> IdsOf(std::span<const Chunk> chunks);

/// A ChunkStore knows every chunk that a Pool was granted: mapped at an offset of the region, spare (granted
/// and not mapped), or in the hands of a call of the source. Bookkeeping only; the pool calls the source.
///
///   held = mapped + spare + in hands
///
/// While the pool is suspended, mapped() has the places of chunks that were given back, which count for
/// nothing.
///
/// Not thread-safe: the pool's lock guards it.
class ChunkStore {
 public:
  /// `page`: the granularity of chunks.
  explicit ChunkStore(Bytes page) : page_(page) {}

  Bytes held() const { return held_; }
  Bytes spare_bytes() const { return spare_bytes_; }
  const std::vector<Chunk>& spare() const { return spare_; }
  /// The mapped chunks, by offset.
  const std::map<Bytes, Chunk>& mapped() const { return mapped_; }

  // ---- Granted and returned. Both start and end in the hands of the caller.
  void NoteGranted(const Chunk& chunk) { held_ += chunk.bytes; }
  void NoteReturned(std::span<const Chunk> chunks);

  // ---- Spare chunks.
  void AddSpare(const Chunk& chunk);
  void AddSpare(std::span<const Chunk> chunks);
  /// Takes those of `chunks` that are spare.
  std::vector<Chunk> TakeSpare(std::span<const Chunk> chunks);
  /// Takes spare chunks, the last ones first, each of which fits into what is left of `most`.
  std::vector<Chunk> TakeSpareUpTo(Bytes most);
  std::optional<Chunk> TakeLastSpare();
  std::vector<Chunk> TakeAllSpare();

  // ---- Mapped chunks.
  void NoteMapped(Bytes offset, const Chunk& chunk) { mapped_.emplace(offset, chunk); }
  void NoteUnmapped(Suballocator::Range range);

  // ---- A suspended pool.
  /// Takes all chunks, spare ones too; of the mapped ones the places stay.
  std::vector<Chunk> TakeForSuspension();
  bool is_suspended() const { return suspended_; }
  /// These chunks lie at all of the places again.
  void EndSuspension(const std::map<Bytes, Chunk>& chunks);

  // ---- Idle chunks: mapped, and no block lies in them.
  enum class Bound { kAtLeast, kAtMost };
  struct Wanted {
    Bytes amount;
    Bound bound = Bound::kAtLeast;  // kAtLeast: all of the amount or nothing; kAtMost: up to the amount
    Bytes largest_chunk = Bytes(~std::uint64_t{0});
    Suballocator::Range avoid{};  // no chunk that lies wholly inside; none that overlaps unless `straddling`
    bool straddling = false;
    Suballocator::Stamp settled = Suballocator::kYoungest;
  };
  /// Neighbouring chunks that were taken out of use together.
  struct Run {
    Suballocator::Handle detached = 0;
    Suballocator::Range range{};
    std::vector<Chunk> chunks{};
  };
  /// Detaches idle chunks of `blocks`, those that have been idle longest first. They stay mapped until
  /// NoteUnmapped.
  std::vector<Run> DetachIdle(Suballocator& blocks, const Wanted& wanted) const;

  // ---- How the source answers requests for a small block, which lives in chunks of one page.
  /// The source has only larger chunks: preallocated ones exist as they are.
  bool only_large = false;
  /// The source grants larger chunks unless it is asked for one page.
  bool exact_small = false;

  /// `in_flight`: calls are on their way, and chunks in their hands.
  absl::Status CheckInvariants(bool in_flight) const;

 private:
  const Bytes page_;
  std::map<Bytes, Chunk> mapped_;
  std::vector<Chunk> spare_;
  Bytes spare_bytes_;
  Bytes held_;
  bool suspended_ = false;
};

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_POOL_CHUNK_STORE_H_
