#ifndef LGPU_TESTS_SUPPORT_FAKE_STREAM_FENCES_H_
#define LGPU_TESTS_SUPPORT_FAKE_STREAM_FENCES_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"
#include "lgpu/stream_fences.h"

namespace lgpu {

/// Streams whose work a test queues and finishes by hand. Wait finishes it at once, and counts. Thread-safe.
class FakeStreamFences final : public StreamFences {
 public:
  struct Ordered {
    StreamId waiter = 0;
    StreamId stream = 0;
    std::uint64_t value = 0;
  };

  void Queue(StreamId stream) {
    MutexLock lock(mutex_);
    ++queued_[stream];
  }
  void Finish(StreamId stream) {
    MutexLock lock(mutex_);
    done_[stream] = queued_[stream];
  }
  void FailRecords(bool fail) {
    MutexLock lock(mutex_);
    fail_ = fail;
  }
  std::uint64_t records() const {
    MutexLock lock(mutex_);
    return records_;
  }
  std::uint64_t waits() const {
    MutexLock lock(mutex_);
    return waits_;
  }
  std::vector<Ordered> ordered() const {
    MutexLock lock(mutex_);
    return ordered_;
  }

  absl::StatusOr<std::uint64_t> Record(StreamId stream) override {
    MutexLock lock(mutex_);
    if (fail_) return absl::InternalError("injected: Record");
    ++records_;
    return queued_[stream];
  }
  absl::StatusOr<bool> HasPassed(StreamId stream, std::uint64_t value) override {
    MutexLock lock(mutex_);
    return done_[stream] >= value;
  }
  absl::Status Wait(StreamId stream, std::uint64_t value) override {
    MutexLock lock(mutex_);
    waits_ += done_[stream] < value ? 1 : 0;
    done_[stream] = std::max(done_[stream], value);
    return absl::OkStatus();
  }
  absl::Status Order(StreamId waiter, StreamId stream, std::uint64_t value) override {
    MutexLock lock(mutex_);
    ordered_.push_back({waiter, stream, value});
    return absl::OkStatus();
  }

 private:
  mutable Mutex mutex_;
  std::array<std::uint64_t, kMaxStreams> queued_ ABSL_GUARDED_BY(mutex_){};
  std::array<std::uint64_t, kMaxStreams> done_ ABSL_GUARDED_BY(mutex_){};
  std::uint64_t records_ ABSL_GUARDED_BY(mutex_) = 0;
  std::uint64_t waits_ ABSL_GUARDED_BY(mutex_) = 0;
  bool fail_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<Ordered> ordered_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace lgpu

#endif  // LGPU_TESTS_SUPPORT_FAKE_STREAM_FENCES_H_
