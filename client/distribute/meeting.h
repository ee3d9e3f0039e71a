#ifndef LGPU_CLIENT_DISTRIBUTE_MEETING_H_
#define LGPU_CLIENT_DISTRIBUTE_MEETING_H_

#include <cstdint>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "base/mutex.h"

namespace lgpu::internal {

/// A Meeting is a barrier for the replicas of one step. A replica that fails, or that ends its step while
/// others wait, ends the wait of all with an error. Thread-safe.
class Meeting {
 public:
  explicit Meeting(int members) : members_(members) {}

  /// Forgets the last step. Called between steps.
  void Restart();
  /// Waits until every member has called it. Returns the error that ended the step, if one did;
  /// FAILED_PRECONDITION if a member has ended its step without calling it.
  absl::Status Come();
  /// Ends the step of all members with `error`; the first error stays.
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
