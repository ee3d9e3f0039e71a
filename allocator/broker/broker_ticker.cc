#include "allocator/broker/broker_ticker.h"

#include <utility>

#include "lgpu/status.h"

namespace lgpu {

absl::StatusOr<std::unique_ptr<BrokerTicker>> BrokerTicker::Start(Broker& broker,
                                                                  std::shared_ptr<ThreadWaker> waker) {
  std::unique_ptr<BrokerTicker> ticker(new BrokerTicker(broker, std::move(waker)));
  LGPU_ASSIGN_OR_RETURN(ticker->thread_, Thread::Start("lgpu-broker", [raw = ticker.get()] { raw->Run(); }));
  return ticker;
}

BrokerTicker::BrokerTicker(Broker& broker, std::shared_ptr<ThreadWaker> waker)
    : broker_(broker), waker_(std::move(waker)) {}

BrokerTicker::~BrokerTicker() {
  stopping_ = true;
  waker_->Wake();
  thread_.Join();
}

void BrokerTicker::Run() {
  while (!stopping_) waker_->WaitUntil(broker_.Tick().value_or(Broker::TimePoint::max()));
}

}  // namespace lgpu
