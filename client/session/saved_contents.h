#ifndef LGPU_CLIENT_SESSION_SAVED_CONTENTS_H_
#define LGPU_CLIENT_SESSION_SAVED_CONTENTS_H_

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "allocator/device/device_work.h"
#include "client/session/device_pool.h"

namespace lgpu {

/// SavedContents are a copy of all live blocks of a DevicePool in ordinary memory of the process. One thread
/// at a time.
class SavedContents {
 public:
  /// `stream` is of the pool's device; all work with the blocks is done, and none is allocated meanwhile.
  /// RESOURCE_EXHAUSTED: the process, its cgroup or the machine has too little host memory.
  static absl::StatusOr<SavedContents> Copy(const DevicePool& pool, DeviceWork& backend, StreamHandle stream);
  /// Writes the blocks that are live still, at the same addresses.
  absl::Status Restore(const DevicePool& pool, DeviceWork& backend, StreamHandle stream) const;
  Bytes bytes() const { return bytes_; }

 private:
  /// Neighbouring blocks, which lie side by side in the copy too.
  struct Run {
    std::byte* address = nullptr;
    Bytes bytes;
  };
  struct Unmap {
    Bytes bytes;
    void operator()(std::byte* memory) const;
  };
  SavedContents() = default;
  static absl::StatusOr<std::vector<Run>> LiveRuns(const DevicePool& pool);
  absl::Status Reserve(Bytes bytes);

  std::vector<Run> runs_;  // by address
  Bytes bytes_;
  std::unique_ptr<std::byte, Unmap> memory_;  // the runs, one behind the other
};

}  // namespace lgpu

#endif  // LGPU_CLIENT_SESSION_SAVED_CONTENTS_H_
