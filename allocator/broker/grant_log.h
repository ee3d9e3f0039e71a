#ifndef LGPU_ALLOCATOR_BROKER_GRANT_LOG_H_
#define LGPU_ALLOCATOR_BROKER_GRANT_LOG_H_

#include <cstdint>

#include "absl/status/status.h"
#include "allocator/broker/ids.h"
#include "allocator/ledger.h"
#include "lgpu/bytes.h"
#include "lgpu/id.h"

namespace lgpu {

/// A GrantLog is told by a Broker which session holds which chunk and has charged how much, so that the next
/// process can account for memory that outlives this one. Thread-safe.
class GrantLog {
 public:
  virtual ~GrantLog() = default;

  struct Granted {
    ChunkId chunk;
    SessionId session;
    LogicalId device;
    Bytes bytes;
    std::uint64_t identity = 0;  // of the memory, as the backend knows it
  };
  /// They are called under the broker's lock, in the order of what they tell: they are cheap and never block.
  virtual void NoteGranted(const Granted& granted) = 0;
  virtual void NoteFreed(ChunkId chunk) = 0;
  /// The session has charged at most `bytes` of the device from here on, whatever was noted before.
  struct Charged {
    SessionId session;
    LogicalId device;
    Bytes bytes;
  };
  virtual void NoteCharged(const Charged& charged) = 0;
  /// Everything noted before is kept when this is OK. The broker gives no chunk away before that, and takes
  /// the chunks back on an error. Called without a lock.
  virtual absl::Status Commit() = 0;
};

/// A NoGrantLog keeps nothing: it is for a broker whose chunks end with its process.
class NoGrantLog final : public GrantLog {
 public:
  void NoteGranted(const Granted&) override {}
  void NoteFreed(ChunkId) override {}
  void NoteCharged(const Charged&) override {}
  absl::Status Commit() override { return absl::OkStatus(); }
};

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_BROKER_GRANT_LOG_H_
