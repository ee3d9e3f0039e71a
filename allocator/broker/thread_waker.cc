#include "allocator/broker/thread_waker.h"

#include <chrono>
#include <memory>
#include <optional>
#include <utility>

#include "lgpu/status.h"

namespace lgpu {
namespace {

Broker::Answer Await(Broker& broker, Broker::Answer answer, const ThreadWaker& waker,
                     Broker::TimePoint deadline) {
  while (answer.wait) {
    waker.WaitUntil(deadline);
    // Where no other thread ticks, or that thread is late.
    if (std::chrono::steady_clock::now() >= deadline) broker.Tick();
    if (std::optional<Broker::Answer> taken = broker.TakeAnswer(*answer.wait)) answer = *std::move(taken);
  }
  return answer;
}

}  // namespace

void ThreadWaker::Wake() const {
  MutexLock lock(mutex_);
  woken_ = true;
  changed_.NotifyAll();
}

void ThreadWaker::WaitUntil(TimePoint deadline) const {
  MutexLock lock(mutex_);
  while (!woken_) {
    if (deadline == TimePoint::max()) {
      changed_.Wait(mutex_);
    } else if (!changed_.WaitUntil(mutex_, deadline)) {
      break;
    }
  }
  woken_ = false;
}

absl::StatusOr<LogicalId> AddDeviceInTime(Broker& broker, const Broker::DeviceSpec& spec,
                                          Broker::TimePoint deadline) {
  const auto waker = std::make_shared<ThreadWaker>();
  const Broker::Answer answer =
      Await(broker, broker.AddDevice(spec, {.deadline = deadline, .waker = waker}), *waker, deadline);
  LGPU_RETURN_IF_ERROR(answer.status);
  return answer.device;
}

absl::Status ResizeDeviceInTime(Broker& broker, LogicalId device, Bytes limit, Bytes guarantee,
                                Broker::TimePoint deadline) {
  const auto waker = std::make_shared<ThreadWaker>();
  return Await(broker, broker.ResizeDevice(device, limit, guarantee, {.deadline = deadline, .waker = waker}),
               *waker, deadline)
      .status;
}

}  // namespace lgpu
