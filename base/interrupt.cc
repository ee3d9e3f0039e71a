#include "base/interrupt.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "base/this_thread.h"

namespace lgpu {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kSlice{50};

[[gnu::tls_model("initial-exec")]] constinit thread_local InterruptScope* innermost = nullptr;

}  // namespace

InterruptScope::InterruptScope(std::function<bool()> is_interrupted)
    : is_interrupted_(std::move(is_interrupted)), outer_(std::exchange(innermost, this)) {}

InterruptScope::InterruptScope(InterruptHandler& handler)
    : handler_(&handler), outer_(std::exchange(innermost, this)) {}

InterruptScope::~InterruptScope() { innermost = outer_; }

void Interrupt::BeforeWait() {
  for (InterruptScope* scope = innermost; scope != nullptr; scope = scope->outer_) {
    if (std::exchange(scope->has_told_before_wait_, true) || scope->handler_ == nullptr) continue;
    scope->handler_->BeforeWait();
  }
}

Interrupt::TimePoint Interrupt::NextQuestion(TimePoint deadline) {
  BeforeWait();
  InterruptScope* const scope = innermost;
  if (scope == nullptr) return deadline;
  if (HasHappened()) return std::min(deadline, Clock::now());
  if (scope->next_question_ == TimePoint()) scope->next_question_ = Clock::now() + kSlice;
  return std::min(deadline, scope->next_question_);
}

bool Interrupt::IsTimeToAsk() {
  const InterruptScope* const scope = innermost;
  return scope != nullptr && !HasHappened() && scope->next_question_ != TimePoint() &&
         Clock::now() >= scope->next_question_;
}

bool Interrupt::Happened() {
  if (IsTimeToAsk()) {
    InterruptScope* const scope = innermost;
    // The function may call lgpu. A wait in there asks nothing, and the end of a Context does not wait there
    // for the call that this thread is in.
    scope->next_question_ = TimePoint::max();
    const ThisThread::SinkCall inside;
    for (InterruptScope* asked = scope; asked != nullptr && !HasHappened(); asked = asked->outer_) {
      asked->interrupted_ = asked->Ask();
    }
    scope->next_question_ = Clock::now() + kSlice;
  }
  return HasHappened();
}

bool Interrupt::Happened(Mutex& mutex) {
  if (!IsTimeToAsk()) return HasHappened();
  mutex.Unlock();
  const bool happened = Happened();
  mutex.Lock();
  return happened;
}

bool Interrupt::HasHappened() {
  for (const InterruptScope* scope = innermost; scope != nullptr; scope = scope->outer_) {
    if (scope->interrupted_) return true;
  }
  return false;
}

absl::Status Interrupt::Error() { return absl::CancelledError("the program interrupted the call"); }

bool Interrupt::Wait(CondVar& condition, Mutex& mutex) {
  if (innermost == nullptr) {
    condition.Wait(mutex);
    return true;
  }
  if (HasHappened()) return false;
  condition.WaitUntil(mutex, NextQuestion(TimePoint::max()));
  return !Happened(mutex);
}

bool Interrupt::WaitUntil(CondVar& condition, Mutex& mutex, TimePoint deadline) {
  if (HasHappened()) return false;
  const TimePoint question = NextQuestion(deadline);
  const bool is_woken = condition.WaitUntil(mutex, question);
  return !Happened(mutex) && (is_woken || question < deadline);
}

bool Interrupt::SleepUntil(TimePoint deadline) {
  while (!Happened()) {
    if (Clock::now() >= deadline) return true;
    std::this_thread::sleep_until(NextQuestion(deadline));
  }
  return false;
}

}  // namespace lgpu
