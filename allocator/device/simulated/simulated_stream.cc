#include "allocator/device/simulated/simulated_stream.h"

#include <pthread.h>
#include <signal.h>

#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"

namespace lgpu {

absl::StatusOr<std::shared_ptr<SimulatedStream>> SimulatedStream::Start() {
  std::shared_ptr<SimulatedStream> stream(new SimulatedStream);
  // The program's own threads handle its signals; faults of a kernel are delivered to this thread.
  sigset_t blocked;
  sigset_t previous;
  sigfillset(&blocked);
  for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP}) sigdelset(&blocked, fault);
  pthread_sigmask(SIG_SETMASK, &blocked, &previous);
  absl::Status status;
  try {
    stream->thread_ = std::thread([raw = stream.get()] { raw->Run(); });
  } catch (const std::system_error& error) {
    status = absl::ResourceExhaustedError(
        absl::StrCat("no thread for a stream: ", error.what(), "; see ulimit -u and the cgroup's pids.max"));
  }
  pthread_sigmask(SIG_SETMASK, &previous, nullptr);
  if (!status.ok()) return status;
  return stream;
}

SimulatedStream::~SimulatedStream() {
  if (!thread_.joinable()) return;
  {
    MutexLock lock(mutex_);
    ending_ = true;
  }
  changed_.NotifyAll();
  thread_.join();
}

std::uint64_t SimulatedStream::Queue(std::function<void()> work) {
  std::uint64_t sequence;
  {
    MutexLock lock(mutex_);
    work_.push_back(std::move(work));
    sequence = ++queued_;
  }
  changed_.NotifyAll();
  return sequence;
}

std::uint64_t SimulatedStream::queued() const {
  MutexLock lock(mutex_);
  return queued_;
}

bool SimulatedStream::HasPassed(std::uint64_t sequence) const {
  MutexLock lock(mutex_);
  return done_ >= sequence;
}

void SimulatedStream::Wait(std::uint64_t sequence) {
  MutexLock lock(mutex_);
  while (done_ < sequence) changed_.Wait(mutex_);
}

bool SimulatedStream::IsIdle() const {
  MutexLock lock(mutex_);
  return done_ == queued_;
}

void SimulatedStream::Run() {
  for (;;) {
    std::function<void()> work;
    {
      MutexLock lock(mutex_);
      while (work_.empty() && !ending_) changed_.Wait(mutex_);
      if (work_.empty()) return;
      work = std::move(work_.front());
      work_.pop_front();
    }
    work();
    // Destroy the objects that the work kept alive before a waiter learns that the work has ended.
    work = nullptr;
    {
      MutexLock lock(mutex_);
      ++done_;
    }
    changed_.NotifyAll();
  }
}

}  // namespace lgpu
