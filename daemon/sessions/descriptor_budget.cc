#include "daemon/sessions/descriptor_budget.h"

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "proto/wire/channel.h"

namespace lgpu::daemon {

DescriptorBudget::DescriptorBudget(std::size_t limit)
    : limit_(std::max<std::size_t>(limit, 4)),
      per_message_(std::clamp<std::size_t>(limit_ / 32, 1, wire::Protocol::kMaxFdsPerFrame)) {}

bool DescriptorBudget::TryTake(SessionId session, const std::shared_ptr<Waker>& waker, std::size_t count) {
  MutexLock lock(mutex_);
  if (taken_ + count > limit_) {
    waiting_.emplace(session, waker);
    return false;
  }
  waiting_.erase(session);
  taken_ += count;
  return true;
}

void DescriptorBudget::GiveBack(std::size_t count) {
  std::vector<std::shared_ptr<Waker>> wakers;
  {
    MutexLock lock(mutex_);
    LGPU_CHECK_OP(count, <=, taken_);
    taken_ -= count;
    for (const auto& [session, waker] : waiting_) wakers.push_back(waker);
  }
  for (const std::shared_ptr<Waker>& waker : wakers) waker->Wake();
}

void DescriptorBudget::Forget(SessionId session) {
  MutexLock lock(mutex_);
  waiting_.erase(session);
}

bool DescriptorBudget::contended() const {
  MutexLock lock(mutex_);
  return !waiting_.empty();
}

}  // namespace lgpu::daemon
