#ifndef LGPU_DAEMON_SERVER_CARD_LOADS_H_
#define LGPU_DAEMON_SERVER_CARD_LOADS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "allocator/broker/broker.h"
#include "base/mutex.h"
#include "lgpu/v1/stats.pb.h"

namespace lgpu::daemon {

/// A CardLoads remembers how busy the served cards and their processes were when it last asked the driver.
/// Thread-safe.
class CardLoads {
 public:
  /// Asks the driver, which may take its time; no lock is held meanwhile.
  void Sample(DeviceMemory& backend, const std::vector<BrokerCard>& cards);

  /// Fills in the figures that the driver told.
  void AddTo(v1::CardStats& card) const;
  /// The share of the time in which kernels of the process ran, on the card where it was the largest. Nothing
  /// where the driver does not tell.
  std::optional<std::uint32_t> SmPercentOf(std::int64_t pid) const;

 private:
  mutable Mutex mutex_;
  std::map<std::string, DeviceMemory::Load> loads_ ABSL_GUARDED_BY(mutex_);  // by UUID
};

}  // namespace lgpu::daemon

#endif  // LGPU_DAEMON_SERVER_CARD_LOADS_H_
