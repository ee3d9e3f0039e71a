#ifndef LGPU_TESTS_ALLOCATOR_BROKER_RECORDING_LOG_H_
#define LGPU_TESTS_ALLOCATOR_BROKER_RECORDING_LOG_H_

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <utility>

#include "allocator/broker/grant_log.h"

namespace lgpu {

/// A RecordingLog says which chunks are granted, and which of them were committed. It fails a test in which a
/// chunk is granted twice or freed without a grant. Not thread-safe.
class RecordingLog final : public GrantLog {
 public:
  void NoteGranted(const Granted& granted) override {
    EXPECT_TRUE(granted_.emplace(granted.chunk, granted).second) << "granted twice";
    uncommitted_.insert(granted.chunk);
  }
  void NoteFreed(ChunkId chunk) override {
    EXPECT_EQ(granted_.erase(chunk), 1u) << "freed without a grant";
    uncommitted_.erase(chunk);
  }
  void NoteCharged(const Charged& charged) override {
    charged_[{charged.session, charged.device}] = charged.bytes;
  }
  absl::Status Commit() override {
    if (failing_) return absl::UnavailableError("the log was to fail");
    uncommitted_.clear();
    return absl::OkStatus();
  }

  void SetFailing(bool failing) { failing_ = failing; }
  const std::map<ChunkId, Granted>& granted() const { return granted_; }
  /// The most that a session has charged of a device.
  Bytes charged(SessionId session, LogicalId device) const {
    const auto found = charged_.find({session, device});
    return found == charged_.end() ? Bytes() : found->second;
  }
  bool IsCommitted(ChunkId chunk) const { return granted_.contains(chunk) && !uncommitted_.contains(chunk); }

 private:
  std::map<ChunkId, Granted> granted_;
  std::map<std::pair<SessionId, LogicalId>, Bytes> charged_;
  std::set<ChunkId> uncommitted_;
  bool failing_ = false;
};

}  // namespace lgpu

#endif  // LGPU_TESTS_ALLOCATOR_BROKER_RECORDING_LOG_H_
