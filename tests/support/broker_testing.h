#ifndef LGPU_TESTS_SUPPORT_BROKER_TESTING_H_
#define LGPU_TESTS_SUPPORT_BROKER_TESTING_H_

#include <chrono>
#include <memory>
#include <optional>
#include <utility>

#include "allocator/broker/broker.h"
#include "allocator/broker/broker_ticker.h"
#include "base/mutex.h"

namespace lgpu {

/// Options of a Broker over all cards of a backend.
inline Broker::Options AllCardsOf(const DeviceMemory& backend, Bytes reserve = {}) {
  Broker::Options options{.cards = {}, .reserve = reserve};
  for (const PhysicalDevice& device : backend.devices()) {
    const int index = static_cast<int>(options.cards.size());
    options.cards.push_back({.index = index, .backend_device = index, .device = device});
  }
  return options;
}

/// A Broker over all cards of a backend that logs nothing.
inline std::unique_ptr<Broker> MakeBroker(DeviceMemory& backend, Bytes reserve = {}) {
  static NoGrantLog log;  // has no state
  return *Broker::Create(backend, log, AllCardsOf(backend, reserve));
}

/// A TickedBroker is a Broker over all cards of a backend, and the thread that ticks it.
class TickedBroker {
 public:
  TickedBroker(DeviceMemory& backend, GrantLog& log) {
    Broker::Options options = AllCardsOf(backend);
    const auto waker = std::make_shared<ThreadWaker>();
    options.tick_waker = waker;
    broker_ = *Broker::Create(backend, log, options);
    ticker_ = *BrokerTicker::Start(*broker_, waker);
  }
  Broker& operator*() const { return *broker_; }
  Broker* operator->() const { return broker_.get(); }

 private:
  std::unique_ptr<Broker> broker_;
  std::unique_ptr<BrokerTicker> ticker_;
};

/// The answer of a request that waited, or that it waits still, after all that is due by the broker's clock.
inline Broker::Answer AskAgain(Broker& broker, WaiterId request) {
  broker.Tick();
  std::optional<Broker::Answer> answer = broker.TakeAnswer(request);
  if (!answer) return {.wait = request};
  return *std::move(answer);
}

/// A FlagWaker remembers that it was woken. Thread-safe.
class FlagWaker final : public Waker {
 public:
  void Wake() const override {
    MutexLock lock(mutex_);
    woken_ = true;
    changed_.NotifyAll();
  }
  bool woken() const {
    MutexLock lock(mutex_);
    return woken_;
  }
  void Clear() {
    MutexLock lock(mutex_);
    woken_ = false;
  }
  /// Waits until it is woken, at the latest until `deadline`, and clears it.
  void WaitUntil(std::chrono::steady_clock::time_point deadline) {
    MutexLock lock(mutex_);
    while (!woken_ && changed_.WaitUntil(mutex_, deadline)) {
    }
    woken_ = false;
  }

 private:
  mutable Mutex mutex_;
  mutable CondVar changed_;
  mutable bool woken_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace lgpu

#endif  // LGPU_TESTS_SUPPORT_BROKER_TESTING_H_
