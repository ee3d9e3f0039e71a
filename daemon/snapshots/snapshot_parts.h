#ifndef LGPU_DAEMON_SNAPSHOTS_SNAPSHOT_PARTS_H_
#define LGPU_DAEMON_SNAPSHOTS_SNAPSHOT_PARTS_H_

#include <cstddef>
#include <memory>
#include <vector>

#include "daemon/snapshots/lease_blocks.h"
#include "lgpu/v1/control.pb.h"

namespace lgpu::daemon {

/// A SnapshotParts cuts the record of a snapshot into the messages of GetMemorySnapshot. Not thread-safe.
class SnapshotParts {
 public:
  /// Blocks, mappings or names in one message.
  static constexpr std::size_t kMostEntries = 4096;

  explicit SnapshotParts(std::shared_ptr<const LeaseBlocks> record) : record_(std::move(record)) {}

  /// The next messages, at most `count`.
  std::vector<v1::MemorySnapshotPart> Next(std::size_t count);
  bool is_over() const { return head_is_sent_ && session_ >= record_->sessions.size(); }

 private:
  v1::MemorySnapshotPart NextPart();
  v1::MemorySnapshotPart Head() const;
  v1::MemorySnapshotPart SessionPart(const SessionBlocks& session) const;
  v1::MemorySnapshotPart DevicePart(const DeviceBlocks& device);
  void AddMappings(const DeviceBlocks& device, v1::MemorySnapshotPart& part);
  void AddBlocks(const DeviceBlocks& device, v1::MemorySnapshotPart& part);

  const std::shared_ptr<const LeaseBlocks> record_;
  bool head_is_sent_ = false;
  // Where it is: a session, then its devices, then the lists of one device.
  std::size_t session_ = 0;
  bool session_is_sent_ = false;
  std::size_t device_ = 0;
  bool device_is_sent_ = false;
  std::size_t name_ = 1;  // 0 is the empty one
  std::size_t mapping_ = 0;
  std::size_t block_ = 0;
};

}  // namespace lgpu::daemon

#endif  // LGPU_DAEMON_SNAPSHOTS_SNAPSHOT_PARTS_H_
