#include "client/session/maintenance.h"

#include <system_error>
#include <utility>

#include "base/blocked_signals.h"

namespace lgpu {

void Maintenance::Start(Task task) {
  MutexLock lock(mutex_);
  task_ = std::make_shared<const Task>(std::move(task));
  next_ = TimePoint::min();
}

void Maintenance::Stop() {
  MutexLock lock(mutex_);
  task_.reset();
  next_.reset();
  while (running_) changed_.Wait(mutex_);
}

bool Maintenance::HasTask() const {
  MutexLock lock(mutex_);
  return task_ != nullptr;
}

std::optional<Maintenance::TimePoint> Maintenance::next() const {
  MutexLock lock(mutex_);
  return next_;
}

void Maintenance::RunIfDue() {
  const bool woken = woken_.exchange(false, std::memory_order_acq_rel);
  MutexLock lock(mutex_);
  const TimePoint now = std::chrono::steady_clock::now();
  if (task_ == nullptr || (!woken && (!next_ || now < *next_))) return;
  const std::shared_ptr<const Task> task = task_;
  running_ = true;
  mutex_.Unlock();
  const std::optional<TimePoint> next = (*task)(now);
  mutex_.Lock();
  running_ = false;
  if (task_ == task) next_ = next;
  changed_.NotifyAll();
}

MaintenanceThread::~MaintenanceThread() {
  maintenance_.Stop();
  std::thread thread;
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.NotifyAll();
    thread.swap(thread_);
  }
  if (thread.joinable()) thread.join();
}

void MaintenanceThread::Start(Maintenance::Task task) {
  maintenance_.Start(std::move(task));
  MutexLock lock(mutex_);
  due_ = true;
  changed_.NotifyAll();
  if (thread_.joinable()) return;
  const BlockedSignals blocked;
  try {
    thread_ = std::thread([this] { Run(); });
  } catch (const std::system_error&) {
    maintenance_.Stop();
  }
}

void MaintenanceThread::Wake() {
  if (maintenance_.Wake()) {
    MutexLock lock(mutex_);
    due_ = true;
    changed_.NotifyAll();
  }
}

void MaintenanceThread::Run() {
  while (true) {
    {
      MutexLock lock(mutex_);
      while (!stopping_ && !due_) {
        const std::optional<Maintenance::TimePoint> next = maintenance_.next();
        if (!next) {
          changed_.Wait(mutex_);
        } else if (!changed_.WaitUntil(mutex_, *next)) {
          break;
        }
      }
      if (stopping_) return;
      due_ = false;
    }
    maintenance_.RunIfDue();
  }
}

}  // namespace lgpu
