#include "client/distribute/meeting.h"

#include "base/interrupt.h"

namespace lgpu::internal {

namespace {

absl::Status SomebodyLeft() {
  return absl::FailedPreconditionError(
      "a replica ended its step while another waits in AllReduce; every replica calls AllReduce equally "
      "often");
}

}  // namespace

void Meeting::Restart() {
  const MutexLock lock(mutex_);
  waiting_ = ended_ = 0;
  error_ = absl::OkStatus();
}

absl::Status Meeting::Come() {
  const MutexLock lock(mutex_);
  if (error_.ok() && ended_ > 0) error_ = SomebodyLeft();
  if (!error_.ok()) {
    changed_.NotifyAll();
    return error_;
  }
  if (++waiting_ == members_) {
    waiting_ = 0;
    ++round_;
    changed_.NotifyAll();
    return absl::OkStatus();
  }
  const std::uint64_t round = round_;
  while (round_ == round && error_.ok()) {
    if (Interrupt::Wait(changed_, mutex_) || round_ != round || !error_.ok()) continue;
    error_ = Interrupt::Error();
    changed_.NotifyAll();
  }
  return round_ == round ? error_ : absl::OkStatus();
}

void Meeting::Break(const absl::Status& error) {
  const MutexLock lock(mutex_);
  if (error_.ok()) error_ = error;
  changed_.NotifyAll();
}

void Meeting::End() {
  const MutexLock lock(mutex_);
  ++ended_;
  if (error_.ok() && waiting_ > 0) error_ = SomebodyLeft();
  changed_.NotifyAll();
}

absl::Status Meeting::error() const {
  const MutexLock lock(mutex_);
  return error_;
}

}  // namespace lgpu::internal
