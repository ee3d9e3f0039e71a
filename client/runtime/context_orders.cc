// A Context that gives way: lgpud tells it to move its contents to host memory, and later to take its memory
// back. Its ops wait meanwhile.
//
// A thread of its own follows the orders. It waits for the threads behind the gate; those among them that
// wait for memory step aside, since what they wait for may be what another program gets by this order. So
// the wait ends as soon as no op runs. Whoever then finds the gate held tells lgpud that the program wants
// its GPUs, and lgpud has the memory ready before it tells the Context to take it back.

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
    if (!gives_way_.load() && gate_.is_held()) return false;  // the program has suspended it
    if (!AwaitMemoryBack(Clock::time_point::max()).ok()) return false;
  }
  return false;
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
    const bool is_of_program = gate_.is_held() && !gives_way_.load();
    if (is_of_program) return ClosedError();
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
  if (follows_orders_.exchange(true)) {
    orders_->Wake();
    return;
  }
  orders_->Start([this](Maintenance::TimePoint /*now*/) {
    FollowOrders();
    return std::optional<Maintenance::TimePoint>();
  });
}

bool ContextState::LockForOrder() ABSL_NO_THREAD_SAFETY_ANALYSIS {
  while (!close_mutex_.TryLock()) {
    if (shuts_down_.load()) return false;
    std::this_thread::sleep_for(kLookForLock);
  }
  return true;
}

void ContextState::FollowOrders() {
  for (const Lease::SuspensionOrder& order : memory_.lease().TakeSuspensionOrders()) {
    absl::Status status;
    std::map<LogicalId, Bytes> needs;
    do {
      if (!LockForOrder()) {
        status = absl::AbortedError("the program closes the Context");
        break;
      }
      status = order.resume ? TakeBack() : GiveWay(order.limit);
      needs = needs_;
      close_mutex_.Unlock();
    } while (order.resume && absl::IsResourceExhausted(status));
    // A daemon that has gone meanwhile is followed by one that tells the Context to take its memory back.
    memory_.lease().AnswerSuspension(order, status, needs).IgnoreError();
  }
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
    return absl::DeadlineExceededError("an op of the program did not end in time");
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
  memory_.StopUpkeep();
  const absl::Status status = MoveIn();
  StartUpkeep();
  // After these it is tried again: at once, or as the next lgpud tells.
  if (absl::IsResourceExhausted(status) || absl::IsUnavailable(status)) return status;
  memory_.lease().NoteSuspended(false);
  if (status.ok()) gate_.EndHold();  // else as in GiveWay
  SetGivesWay(false);
  return status;
}

}  // namespace lgpu::internal
