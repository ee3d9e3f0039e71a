#ifndef LGPU_DAEMON_SNAPSHOTS_BLOCK_PAGES_H_
#define LGPU_DAEMON_SNAPSHOTS_BLOCK_PAGES_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "daemon/snapshots/lease_blocks.h"
#include "proto/wire/session_messages.h"

namespace lgpu::daemon {

/// A BlockPages puts the pages of one program's snapshot together and believes nothing of them: no number is
/// used before it was compared with its bound. Not thread-safe.
class BlockPages {
 public:
  static constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 47;  // addresses of user space
  static constexpr std::size_t kMostNames = 8192;
  static constexpr std::size_t kMostNameBytes = 256;
  static constexpr std::size_t kMostMappings = std::size_t{1} << 20;

  /// `take_room`: asks for room for so many more blocks; false: there is none. `cells`: a map of at most so
  /// many is expected; 0: mappings and blocks.
  explicit BlockPages(std::function<bool(std::size_t)> take_room, std::uint32_t cells = 0)
      : take_room_(std::move(take_room)), most_cells_(cells) {
    blocks_.ops.emplace_back();
  }

  std::uint32_t most_cells() const { return most_cells_; }
  /// The next page. DATA_LOSS: it cannot be, and the text says why; RESOURCE_EXHAUSTED: there is no room for
  /// its blocks; FAILED_PRECONDITION: the program knows no maps; else the program's own error. After an error
  /// the object is of no use.
  absl::Status Add(const wire::SnapshotPage& page);
  /// What was added, as far as it goes: taken_at, region, ops, and mappings and blocks or the map.
  DeviceBlocks Take() { return std::move(blocks_); }

 private:
  absl::Status Begin(const wire::SnapshotPage& page);
  absl::Status AddNames(const wire::SnapshotPage& page);
  absl::Status AddMappings(const wire::MappingList& list);
  absl::Status AddBlocks(const wire::BlockList& list);
  absl::Status AddMap(const wire::SnapshotPage& page);
  absl::Status BeginMap(const wire::BlockMap& told);
  absl::Status AddCells(const wire::BlockMap& told);
  /// Looks from the mapping of the block before on.
  bool LiesInMapping(const ToldBlock& block);

  const std::function<bool(std::size_t)> take_room_;
  const std::uint32_t most_cells_;
  bool has_begun_ = false;
  std::uint64_t mapped_end_ = 0;
  std::uint64_t block_end_ = 0;
  std::size_t mapping_ = 0;     // where the last block lies
  std::uint64_t map_used_ = 0;  // of all cells
  DeviceBlocks blocks_;
};

}  // namespace lgpu::daemon

#endif  // LGPU_DAEMON_SNAPSHOTS_BLOCK_PAGES_H_
