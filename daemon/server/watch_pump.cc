#include "daemon/server/watch_pump.h"

#include <chrono>

#include "base/check.h"
#include "lgpu/status.h"

namespace lgpu::daemon {
namespace {

// How long news may wait for a stream that is open.
constexpr std::chrono::milliseconds kTick{50};

}  // namespace

class WatchPump::PumpWaker final : public Waker {
 public:
  explicit PumpWaker(WatchPump* pump) : pump_(pump) {}
  void Wake() const override {
    MutexLock lock(mutex_);
    if (pump_ != nullptr) pump_->Wake();
  }
  void Forget() {
    MutexLock lock(mutex_);
    pump_ = nullptr;
  }

 private:
  mutable Mutex mutex_;
  WatchPump* pump_ ABSL_GUARDED_BY(mutex_);
};

WatchPump::WatchPump() : waker_(std::make_shared<PumpWaker>(this)) {}

absl::StatusOr<std::unique_ptr<WatchPump>> WatchPump::Start() {
  std::unique_ptr<WatchPump> pump(new WatchPump());
  LGPU_ASSIGN_OR_RETURN(pump->thread_, Thread::Start("lgpud-watch", [raw = pump.get()] { raw->Run(); }));
  return pump;
}

WatchPump::~WatchPump() {
  waker_->Forget();
  {
    MutexLock lock(streams_mutex_);
    LGPU_CHECK(streams_.empty());
  }
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.NotifyAll();
  thread_.Join();
}

std::shared_ptr<Waker> WatchPump::waker() const { return waker_; }

void WatchPump::Add(Stream& stream) {
  {
    MutexLock lock(streams_mutex_);
    streams_.insert(&stream);
  }
  Wake();
}

void WatchPump::Remove(Stream& stream) {
  MutexLock lock(streams_mutex_);
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
  while (true) {
    bool is_idle = false;
    {
      MutexLock lock(streams_mutex_);
      for (Stream* const stream : streams_) stream->Look();
      is_idle = streams_.empty();
    }
    MutexLock lock(mutex_);
    const auto tick = std::chrono::steady_clock::now() + kTick;
    while (!stopping_ && !wanted_) {
      if (is_idle) {
        changed_.Wait(mutex_);
      } else if (!changed_.WaitUntil(mutex_, tick)) {
        break;
      }
    }
    if (stopping_) return;
    wanted_ = false;
  }
}

}  // namespace lgpu::daemon
