#ifndef LGPU_CLIENT_SESSION_SNAPSHOT_PAGES_H_
#define LGPU_CLIENT_SESSION_SNAPSHOT_PAGES_H_

#include <cstddef>
#include <memory>

#include "allocator/pool/block_map.h"
#include "allocator/pool/pool_blocks.h"
#include "proto/wire/session_messages.h"

namespace lgpu {

/// A SnapshotPages makes the pages of one snapshot, one after another. Not thread-safe.
class SnapshotPages {
 public:
  /// The lists of a page are at most this long, which leaves a frame's other fields room.
  static constexpr std::size_t kMostListBytes = std::size_t{60} * 1024;
  static constexpr std::size_t kMostNameBytes = 200;  // longer ones are cut

  /// Pages with all mappings and blocks. Keeps `taken` until its end.
  static std::unique_ptr<SnapshotPages> OfBlocks(PoolBlocks taken);
  /// Pages with a map of at most `cells` cells. Keeps the cells alone.
  static std::unique_ptr<SnapshotPages> OfMap(const PoolBlocks& taken, std::size_t cells);

  virtual ~SnapshotPages() = default;
  SnapshotPages(const SnapshotPages&) = delete;
  SnapshotPages& operator=(const SnapshotPages&) = delete;

  /// Fills in the next page, but for its ids.
  virtual void Fill(wire::SnapshotPage& page) = 0;

 protected:
  SnapshotPages() = default;
};

}  // namespace lgpu

#endif  // LGPU_CLIENT_SESSION_SNAPSHOT_PAGES_H_
