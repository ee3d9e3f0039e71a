#ifndef LGPU_ALLOCATOR_BROKER_BROKER_TICKER_H_
#define LGPU_ALLOCATOR_BROKER_BROKER_TICKER_H_

#include <atomic>
#include <memory>

#include "absl/status/statusor.h"
#include "allocator/broker/broker.h"
#include "allocator/broker/thread_waker.h"
#include "base/thread.h"

namespace lgpu {

/// A BrokerTicker is the thread that calls Tick of one Broker. The destructor joins it.
class BrokerTicker {
 public:
  /// `waker` is the broker's tick_waker; the broker outlives the thread. RESOURCE_EXHAUSTED: the system
  /// allows no thread.
  static absl::StatusOr<std::unique_ptr<BrokerTicker>> Start(Broker& broker,
                                                             std::shared_ptr<ThreadWaker> waker);
  ~BrokerTicker();
  BrokerTicker(const BrokerTicker&) = delete;
  BrokerTicker& operator=(const BrokerTicker&) = delete;

 private:
  BrokerTicker(Broker& broker, std::shared_ptr<ThreadWaker> waker);
  void Run();

  Broker& broker_;
  const std::shared_ptr<ThreadWaker> waker_;
  std::atomic<bool> stopping_ = false;
  Thread thread_;
};

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_BROKER_BROKER_TICKER_H_
