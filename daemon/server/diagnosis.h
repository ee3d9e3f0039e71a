#ifndef LGPU_DAEMON_SERVER_DIAGNOSIS_H_
#define LGPU_DAEMON_SERVER_DIAGNOSIS_H_

#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "allocator/broker/broker.h"
#include "base/mutex.h"
#include "daemon/leases/lease_table.h"
#include "daemon/server/config.h"
#include "daemon/server/stats.h"
#include "lgpu/v1/control.pb.h"

namespace lgpu::daemon {

/// A Diagnostician looks at the daemon itself: are its books in order, is something left over, are its cards
/// usable? Thread-safe.
class Diagnostician {
 public:
  /// All outlive it.
  Diagnostician(const Broker& broker, const StatsReporter& stats, std::vector<Setting> settings)
      : broker_(broker), stats_(stats), settings_(std::move(settings)) {}

  void SetSettings(std::vector<Setting> settings);

  /// With the leases that the caller may see.
  v1::Diagnosis Examine(const Caller& caller) const;

 private:
  void ExamineCards(v1::Diagnosis& diagnosis) const;
  void ExamineContexts(const Caller& caller, v1::Diagnosis& diagnosis) const;
  void ExamineIdle(const Caller& caller, v1::Diagnosis& diagnosis) const;
  void ExamineLeftovers(const Caller& caller, v1::Diagnosis& diagnosis) const;

  const Broker& broker_;
  const StatsReporter& stats_;
  mutable Mutex mutex_;
  std::vector<Setting> settings_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace lgpu::daemon

#endif  // LGPU_DAEMON_SERVER_DIAGNOSIS_H_
