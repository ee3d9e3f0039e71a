#ifndef LGPU_DAEMON_STATIC_DEVICES_H_
#define LGPU_DAEMON_STATIC_DEVICES_H_

#include <chrono>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "allocator/mutex.h"
#include "daemon/config.h"
#include "daemon/device_registry.h"
#include "daemon/lease_table.h"
#include "daemon/stats.h"

namespace lgpu::daemon {

/// What is wrong with the logical devices of a configuration, whatever the cards: names and owners.
/// INVALID_ARGUMENT with the place. Asks the system for users; may block.
absl::Status CheckStaticNames(const Config& config);

/// The same for these cards, of which the ones with a reason against them are not served: whether there is
/// such a GPU, whether limits and guarantees fit (all of them together, on empty cards), and the caps of
/// their owners. Of the reserve too. A machine that cannot have what the configuration says is
/// INVALID_ARGUMENT.
absl::Status CheckStaticDevices(const Config& config, const std::vector<DeviceRegistry::Card>& cards);

/// StaticLeases are the leases that the configuration wants. Thread-safe.
class StaticLeases {
 public:
  /// It outlives them.
  explicit StaticLeases(LeaseTable& leases) : leases_(leases) {}

  /// Makes those that are not there. A lease that its owner has under this name is left as it is. All or, on
  /// an error (with the place in the file), none.
  absl::Status Make(const std::vector<StaticDeviceConfig>& devices, const std::vector<v1::CardStats>& cards);
  /// As Make, at a start. What fails while leases still end that were removed before the start is no error:
  /// Tend makes it when they are out of the way.
  absl::Status MakeAtStart(const std::vector<StaticDeviceConfig>& devices,
                           const std::vector<v1::CardStats>& cards);
  /// To be called now and then.
  void Tend();

 private:
  using Clock = std::chrono::steady_clock;
  struct Due {
    std::vector<StaticDeviceConfig> devices;
    std::vector<v1::CardStats> cards;
    Clock::time_point at;
    Clock::duration pause;  // before the next try
  };
  bool IsAnyEnding() const;

  LeaseTable& leases_;
  Mutex mutex_;
  std::optional<Due> due_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace lgpu::daemon

#endif  // LGPU_DAEMON_STATIC_DEVICES_H_
