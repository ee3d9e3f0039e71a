#ifndef LGPU_CLI_SNAPSHOT_RECORD_H_
#define LGPU_CLI_SNAPSHOT_RECORD_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/connection.h"
#include "lgpu/v1/control.pb.h"

namespace lgpu::cli {

/// A memory snapshot as the command has it: the parts of GetMemorySnapshot put together. Offsets are bytes
/// from the start of the region. A plain value.
struct SnapshotRecord {
  struct Block {
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
    std::uint32_t padding = 0;
    std::uint32_t age_ms = 0;
    std::uint32_t op = 0;  // in Device::ops
    std::uint16_t stream = 0;
    std::uint8_t state = v1::BlockList::STATE_LIVE;
  };
  struct Mapping {
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
  };
  struct Device {
    v1::MemorySnapshotPart::Device about;
    std::vector<std::string> ops = {""};  // [0]: of blocks without an op
    std::vector<Mapping> mappings = {};
    std::vector<Block> blocks = {};
  };
  struct Session {
    v1::MemorySnapshotPart::Session about;
    std::vector<Device> devices = {};
  };
  v1::MemorySnapshotPart::Head head;
  std::vector<Session> sessions;

  /// Adds the next part. INTERNAL: it does not fit the parts before it.
  absl::Status Add(const v1::MemorySnapshotPart& part);
};

/// Asks the daemon. Errors as GetMemorySnapshot.
absl::StatusOr<SnapshotRecord> FetchSnapshot(Connection& connection,
                                             const v1::GetMemorySnapshotRequest& request);

/// "live", "cached", "fenced".
std::string_view BlockStateText(std::uint8_t state);
/// MemoryStats::Fragmentation of these numbers.
double FragmentationOf(const v1::RegionStats& region);

}  // namespace lgpu::cli

#endif  // LGPU_CLI_SNAPSHOT_RECORD_H_
