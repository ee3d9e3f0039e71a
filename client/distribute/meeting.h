#ifndef LGPU_CLIENT_DISTRIBUTE_MEETING_H_
#define LGPU_CLIENT_DISTRIBUTE_MEETING_H_

#include <cstdint>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "base/mutex.h"

namespace lgpu::internal {

/// A Meeting is a barrier for the replicas of one step that never waits for who does not come: a replica that
/// fails, or that ends its step while others wait, ends the wait of all. Thread-safe.
class Meeting {
 public:
  explicit Meeting(int members) : members_(members) {}

  /// Between steps: everybody is expected again.
  void Restart();
  /// Waits until every member has come. The error that ended the step, else; FAILED_PRECONDITION if a member
  /// has ended its step without coming.
  absl::Status Come();
  /// Ends the step for all; the first error counts.
  void Break(const absl::Status& error);
  /// A member has ended its step without an error.
  void End();
  /// The first error; OK while there is none.
  absl::Status error() const;

 private:
  const int members_;
  mutable Mutex mutex_;
  CondVar changed_;
  int waiting_ ABSL_GUARDED_BY(mutex_) = 0;
  int ended_ ABSL_GUARDED_BY(mutex_) = 0;
  std::uint64_t round_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status error_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace lgpu::internal

#endif  // LGPU_CLIENT_DISTRIBUTE_MEETING_H_
