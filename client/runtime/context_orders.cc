// A Context that gives way: lgpud tells it to move its contents to host memory, and later to take its memory
// back. Its ops wait meanwhile.
//
// A thread of its own follows the orders. It waits for the threads behind the gate; those among them that
// wait for memory step aside, since what they wait for may be what another program gets by this order. So
// the wait ends as soon as no op runs. A call that then finds the gate held tells lgpud that the program
// wants its GPUs, and lgpud has the memory ready before it tells the Context to take it back.

#include <algorithm>
#include <chrono>
#include <map>
#include <optional>
#include <thread>
#include <utility>

#include "base/interrupt.h"
#include "client/runtime/context_state.h"
#include "client/runtime/memory_report.h"
#include "client/session/fork_guard.h"
#include "kernels/text.h"
#include "lgpu/status.h"

namespace lgpu::internal {
namespace {

using Clock = std::chrono::steady_clock;

// How often a thread that waits tells lgpud so: another lgpud may have come.
constexpr std::chrono::milliseconds kTellAgain{50};
constexpr std::chrono::milliseconds kLookForLock{1};
constexpr std::chrono::milliseconds kBeforeNextTry{100};
// How long the threads behind the gate may take; new ones wait meanwhile.
constexpr std::chrono::milliseconds kLongestHold{5000};

}  // namespace

/// Ends the wait of an op for memory when the Context is to give way.
class ContextState::HoldWatch final : public InterruptHandler {
 public:
  explicit HoldWatch(const ContextState& state) : state_(state) {}
  bool IsInterrupted() override {
    has_ended_ = state_.gives_way_.load(std::memory_order_relaxed);
    return has_ended_;
  }
  /// Whether this ended the call that returned `status`, and nothing of the program's did.
  bool HasEnded(const absl::Status& status) {
    return absl::IsCancelled(status) && std::exchange(has_ended_, false) && !Interrupt::HasHappened();
  }

 private:
  const ContextState& state_;
  bool has_ended_ = false;
};

absl::StatusOr<Block> ContextState::AllocateInTurn(Device& device, Bytes bytes, std::string_view op,
                                                   Device::FilledBy filled_by) {
  HoldWatch watch(*this);
  absl::StatusOr<Block> allocated = device.Allocate(bytes, op, allocation_timeout_, filled_by, &watch);
  while (watch.HasEnded(allocated.status())) {
    LGPU_RETURN_IF_ERROR(StepAside());
    allocated = device.Allocate(bytes, op, allocation_timeout_, filled_by, &watch);
  }
  return allocated;
}

bool ContextState::EnterWhenBack() {
  while (!gate_.is_closed()) {
    if (gate_.Enter()) return true;
    if (IsHeldByProgram()) return false;
    if (!AwaitMemoryBack(Clock::time_point::max()).ok()) return false;
  }
  return false;
}

// A hold by order begins after gives_way_ is set, and ends before.
bool ContextState::IsHeldByProgram() const {
  return gate_.is_held() && !gives_way_.load() && gate_.is_held();
}

absl::Status ContextState::AwaitMemoryBack(Clock::time_point deadline) {
  Interrupt::BeforeWait();
  const MutexLock lock(back_mutex_);
  while (gives_way_.load() && !gate_.is_closed() && Clock::now() < deadline) {
    memory_.lease().NoteUse();
    Interrupt::WaitUntil(is_back_, back_mutex_, std::min(deadline, Clock::now() + kTellAgain));
    if (Interrupt::HasHappened()) return Interrupt::Error();
  }
  return absl::OkStatus();
}

absl::Status ContextState::StepAside() {
  gate_.Leave();
  absl::Status status = AwaitMemoryBack(Clock::time_point::max());
  while (!gate_.EnterAgain()) {
    if (gate_.is_closed()) return ClosedError();
    if (!status.ok()) return status;
    if (IsHeldByProgram()) return ClosedError();
    gate_.Leave();
    status = AwaitMemoryBack(Clock::time_point::max());
  }
  return status;
}

void ContextState::SetGivesWay(bool gives_way) {
  const MutexLock lock(back_mutex_);
  gives_way_.store(gives_way);
  if (!gives_way) is_back_.NotifyAll();
}

void ContextState::LookForOrders() {
  if (shuts_down_.load() || !memory_.lease().HasSuspensionOrders()) return;
  if (orders_->IsRunning()) {
    orders_->Wake();
    return;
  }
  orders_->Start([this](Maintenance::TimePoint /*now*/) {
    FollowOrders();
    return std::optional<Maintenance::TimePoint>();
  });
}

bool ContextState::LockForOrder() ABSL_NO_THREAD_SAFETY_ANALYSIS {
  // A call that closes the Context comes first.
  while (closers_.load() != 0 || !close_mutex_.TryLock()) {
    if (shuts_down_.load()) return false;
    std::this_thread::sleep_for(kLookForLock);
  }
  return true;
}

void ContextState::FollowOrders() {
  for (const Lease::SuspensionOrder& order : memory_.lease().TakeSuspensionOrders()) {
    if (order.resume) {
      const absl::Status status = TakeBackWithPatience();
      memory_.lease().AnswerSuspension(order, status, {}).IgnoreError();
      continue;
    }
    absl::Status status = absl::AbortedError("the program closes the Context");
    std::map<LogicalId, Bytes> needs;
    if (LockForOrder()) {
      status = GiveWay(order.limit);
      needs = needs_;
      close_mutex_.Unlock();
    }
    const absl::Status told = memory_.lease().AnswerSuspension(order, status, needs);
    // The next lgpud may not know of it.
    if (status.ok() && !told.ok()) TakeBackWithPatience().IgnoreError();
  }
}

absl::Status ContextState::TakeBackWithPatience() {
  while (LockForOrder()) {
    const absl::Status status = TakeBack();
    close_mutex_.Unlock();
    const bool passes =
        absl::IsResourceExhausted(status) || absl::IsUnavailable(status) || absl::IsCancelled(status);
    if (!passes) return status;
    std::this_thread::sleep_for(kBeforeNextTry);
  }
  return absl::AbortedError("the program closes the Context");
}

absl::Status ContextState::GiveWay(std::chrono::milliseconds limit) {
  if (closed_ || gate_.is_closed()) return ClosedError();
  if (gate_.is_held()) {
    if (gives_way_.load()) return absl::OkStatus();
    return absl::FailedPreconditionError("the program has suspended its Context");
  }
  LGPU_RETURN_IF_ERROR(CheckMaySuspend());
  was_suspended_.store(true);
  SetGivesWay(true);
  if (!gate_.HoldUntil(Clock::now() + std::min(limit, kLongestHold))) {
    SetGivesWay(false);
    return absl::DeadlineExceededError(
        "the program's running ops did not end within 5 s, so it was not suspended\ntry: the same command "
        "when they "
        "have ended");
  }
  memory_.lease().NoteSuspended(true);
  absl::Status status = CheckMaySuspend();
  if (status.ok()) {
    memory_.StopUpkeep();
    status = MoveOut();
    StartUpkeep();
  }
  if (status.ok()) return status;
  memory_.lease().NoteSuspended(false);
  if (saved_.empty()) gate_.EndHold();  // else ops say that the Context is suspended, and Resume may help
  SetGivesWay(false);
  return status;
}

absl::Status ContextState::TakeBack() {
  if (closed_ || gate_.is_closed()) return ClosedError();
  if (!gives_way_.load()) return absl::OkStatus();
  absl::Status status;
  {
    const InterruptScope ends_for_close([this] { return closers_.load() != 0; });
    memory_.StopUpkeep();
    status = MoveIn();
    StartUpkeep();
  }
  // After these it is tried again.
  if (absl::IsResourceExhausted(status) || absl::IsUnavailable(status) || absl::IsCancelled(status)) {
    return status;
  }
  memory_.lease().NoteSuspended(false);
  if (status.ok()) gate_.EndHold();  // else as in GiveWay
  SetGivesWay(false);
  return status;
}

}  // namespace lgpu::internal
