#include "daemon/server/watch_pump.h"

#include <chrono>

#include "base/check.h"
#include "lgpu/status.h"

namespace lgpu::daemon {
namespace {

// How long news may wait for a stream that is open.
constexpr std::chrono::milliseconds kTick{50};

}  // namespace

absl::StatusOr<std::unique_ptr<WatchPump>> WatchPump::Start() {
  std::unique_ptr<WatchPump> pump(new WatchPump());
  LGPU_ASSIGN_OR_RETURN(pump->thread_, Thread::Start("lgpud-watch", [raw = pump.get()] { raw->Run(); }));
  return pump;
}

WatchPump::~WatchPump() {
  {
    MutexLock lock(mutex_);
    LGPU_CHECK(streams_.empty());
    stopping_ = true;
  }
  changed_.NotifyAll();
  thread_.Join();
}

void WatchPump::Add(Stream& stream) {
  {
    MutexLock lock(mutex_);
    streams_.insert(&stream);
    wanted_ = true;
  }
  changed_.NotifyAll();
}

void WatchPump::Remove(Stream& stream) {
  MutexLock lock(mutex_);
  streams_.erase(&stream);
}

void WatchPump::Wake() {
  {
    MutexLock lock(mutex_);
    wanted_ = true;
  }
  changed_.NotifyAll();
}

void WatchPump::Run() {
  MutexLock lock(mutex_);
  while (!stopping_) {
    wanted_ = false;
    for (Stream* const stream : streams_) stream->Look();
    const auto tick = std::chrono::steady_clock::now() + kTick;
    while (!stopping_ && !wanted_) {
      if (streams_.empty()) {
        changed_.Wait(mutex_);
      } else if (!changed_.WaitUntil(mutex_, tick)) {
        break;
      }
    }
  }
}

}  // namespace lgpu::daemon
