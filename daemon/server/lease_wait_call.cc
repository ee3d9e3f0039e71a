#include "daemon/server/lease_wait_call.h"

#include <utility>

#include "daemon/server/grpc_status.h"

namespace lgpu::daemon {

LeaseWaitCall::LeaseWaitCall(Options options, std::unique_ptr<WaitingLease> lease)
    : options_(std::move(options)), lease_(std::move(lease)) {
  MutexLock lock(mutex_);
  StartTry();
  options_.pump.Add(*this);
}

void LeaseWaitCall::StartTry() {
  trying_ = true;
  options_.pool.Run(options_.uid, [this] { Try(); });
}

void LeaseWaitCall::Try() {
  bool is_cancelled = false;
  {
    MutexLock lock(mutex_);
    is_cancelled = cancelled_;
  }
  std::optional<absl::StatusOr<v1::Lease>> result;
  if (!is_cancelled) result = lease_->Try();
  if (result && !result->ok()) options_.tell_refusal(lease_->caller(), result->status());
  MutexLock lock(mutex_);
  trying_ = false;
  result_ = std::move(result);
  Continue();
}

void LeaseWaitCall::TakeBack(const v1::Lease& made) {
  lease_->TakeBack(made);
  MutexLock lock(mutex_);
  trying_ = false;
  Continue();
}

void LeaseWaitCall::Look() {
  MutexLock lock(mutex_);
  if (trying_ || finished_ || result_ || cancelled_) return;
  WaitingLease::News news = lease_->Look();
  if (news.told && !writing_) {
    message_ = *std::move(news.told);
    writing_ = true;
    StartWrite(&message_);
  }
  if (news.try_now) StartTry();
}

void LeaseWaitCall::Continue() {
  if (trying_ || writing_ || finished_) return;
  if (cancelled_ && result_ && result_->ok()) {
    trying_ = true;
    options_.pool.Run(options_.uid,
                      [this, made = *std::exchange(result_, std::nullopt)] { TakeBack(*made); });
  } else if (cancelled_) {
    finished_ = true;
    lease_.reset();
    Finish(grpc::Status::CANCELLED);
  } else if (result_ && result_->ok()) {
    finished_ = true;
    message_.Clear();
    *message_.mutable_lease() = **result_;
    StartWriteAndFinish(&message_, grpc::WriteOptions(), grpc::Status::OK);
  } else if (result_) {
    finished_ = true;
    Finish(ToGrpc(result_->status()));
  }
}

void LeaseWaitCall::OnWriteDone(bool ok) {
  MutexLock lock(mutex_);
  writing_ = false;
  cancelled_ = cancelled_ || !ok;
  Continue();
}

void LeaseWaitCall::OnCancel() {
  MutexLock lock(mutex_);
  cancelled_ = true;
  Continue();
}

void LeaseWaitCall::OnDone() {
  options_.pump.Remove(*this);
  options_.done();
  delete this;
}

}  // namespace lgpu::daemon
