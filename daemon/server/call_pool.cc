#include "daemon/server/call_pool.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "base/check.h"
#include "lgpu/status.h"

namespace lgpu::daemon {

absl::StatusOr<std::unique_ptr<CallPool>> CallPool::Start(const char* name, std::size_t most_threads,
                                                          std::size_t stack_bytes) {
  LGPU_CHECK(most_threads >= 2);
  std::unique_ptr<CallPool> pool(new CallPool(name, most_threads, stack_bytes));
  MutexLock lock(pool->mutex_);
  LGPU_RETURN_IF_ERROR(pool->StartThread());
  return pool;
}

absl::Status CallPool::StartThread() {
  LGPU_ASSIGN_OR_RETURN(Thread thread, Thread::Start(
                                           name_, [this] { Work(); }, stack_bytes_));
  threads_.push_back(std::move(thread));
  return absl::OkStatus();
}

CallPool::~CallPool() {
  std::vector<Thread> threads;
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    threads = std::move(threads_);
  }
  changed_.NotifyAll();
}  // joins

void CallPool::Run(std::uint64_t user, std::function<void()> call) {
  absl::Status started;
  {
    MutexLock lock(mutex_);
    LGPU_CHECK(!stopping_);
    lines_[user].calls.push_back(std::move(call));
    ++queued_;
    const std::size_t idle = threads_.size() - running_;
    if (queued_ > idle && threads_.size() < most_threads_) started = StartThread();
  }
  changed_.NotifyOne();
  if (started.ok()) return;
  // Without another thread the call waits for one that there is.
  if (const std::optional<std::uint64_t> kept_back = log_limit_.Next()) {
    spdlog::warn("{} ({} more such lines kept back)", std::string(started.message()), *kept_back);
  }
}

std::map<std::uint64_t, CallPool::Line>::iterator CallPool::Next() {
  const std::size_t free = most_threads_ - running_;
  auto entry = lines_.upper_bound(last_);
  for (std::size_t i = 0; i < lines_.size(); ++i, ++entry) {
    if (entry == lines_.end()) entry = lines_.begin();
    const Line& line = entry->second;
    if (!line.calls.empty() && (stopping_ || line.running < free)) return entry;
  }
  return lines_.end();
}

bool CallPool::OthersWaitFor(std::uint64_t user) {
  MutexLock lock(mutex_);
  // While a thread is idle, a call that may start does not wait. The next thread that becomes free goes to a
  // user without a running call.
  const std::size_t free = std::max<std::size_t>(most_threads_ - running_, 1);
  if (running_ == threads_.size() && std::any_of(lines_.begin(), lines_.end(), [free](const auto& entry) {
        return !entry.second.calls.empty() && entry.second.running < free;
      })) {
    return true;
  }
  const auto line = lines_.find(user);
  return line != lines_.end() && !line->second.calls.empty() &&
         line->second.running >= most_threads_ - running_;
}

void CallPool::Work() {
  MutexLock lock(mutex_);
  while (true) {
    const auto entry = Next();
    if (entry == lines_.end()) {
      if (stopping_) return;
      changed_.Wait(mutex_);
      continue;
    }
    last_ = entry->first;
    Line& line = entry->second;
    const std::function<void()> call = std::move(line.calls.front());
    line.calls.pop_front();
    --queued_;
    ++line.running;
    ++running_;
    mutex_.Unlock();
    call();
    mutex_.Lock();
    --line.running;
    --running_;
    if (line.running == 0 && line.calls.empty()) lines_.erase(entry);
    // A thread that is free again may let calls of several users start.
    if (queued_ > 0) changed_.NotifyAll();
  }
}

std::size_t CallPool::threads() const {
  MutexLock lock(mutex_);
  return threads_.size();
}

}  // namespace lgpu::daemon
