#ifndef LGPU_CLIENT_SESSION_SNAPSHOT_ANSWERS_H_
#define LGPU_CLIENT_SESSION_SNAPSHOT_ANSWERS_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "allocator/pool/pool_blocks.h"
#include "client/session/device_pool.h"
#include "client/session/snapshot_pages.h"
#include "proto/wire/session_messages.h"

namespace lgpu {

/// A SnapshotAnswers tells the daemon the blocks of this program, or a map of them, a page for each question.
/// It takes one snapshot of a pool, with page 0, and makes each page when it is asked for, so that its thread
/// does other work between two pages. It keeps 24 bytes for each block (for a map: for each cell) until the
/// last page is told, the daemon wants no more, or another snapshot is asked for; then the system has this
/// memory back. Not thread-safe.
class SnapshotAnswers {
 public:
  using Clock = std::chrono::steady_clock;
  /// A snapshot is forgotten when the daemon has not asked for its next page for this long.
  static constexpr std::chrono::seconds kPatience{10};
  /// A device with more blocks is refused with RESOURCE_EXHAUSTED: the daemon has no room for more either.
  static constexpr std::uint64_t kMostBlocks = std::uint64_t{4} << 20;
  /// A map for which more are asked has so many.
  static constexpr std::uint32_t kMostCells = 10'000;

  /// The page that `question` asks for; nothing for one that wants no answer. `memories`: its device's, which
  /// are several where this program splits it; none: there is no such device here.
  std::optional<wire::SnapshotPage> Answer(const wire::Snapshot& question,
                                           std::span<const DevicePool* const> memories);
  /// The answer to a question whose page cannot be made, and why.
  static wire::SnapshotPage Refused(const wire::Snapshot& question, const absl::Status& why);
  /// Forgets a snapshot that is no longer asked for. Returns when to call it again; nothing: none is kept.
  std::optional<Clock::time_point> ForgetIfUnused(Clock::time_point now);

 private:
  static absl::StatusOr<PoolBlocks> BlocksOf(std::span<const DevicePool* const> memories);
  struct Kept {
    // Without it clang 14 finds no default constructor before the outer class ends.
    Kept() {}
    std::uint64_t id = 0;
    std::uint32_t next_page = 0;
    Clock::time_point asked_at;
    std::unique_ptr<SnapshotPages> pages;
  };

  std::optional<Kept> kept_;
};

}  // namespace lgpu

#endif  // LGPU_CLIENT_SESSION_SNAPSHOT_ANSWERS_H_
