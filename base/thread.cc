#include "base/thread.h"

#include <signal.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"

namespace lgpu {
namespace {

void* Run(void* argument) {
  const std::unique_ptr<std::function<void()>> body(static_cast<std::function<void()>*>(argument));
  (*body)();
  return nullptr;
}

}  // namespace

absl::StatusOr<Thread> Thread::Start(const char* name, std::function<void()> body, std::size_t stack_bytes) {
  auto argument = std::make_unique<std::function<void()>>(std::move(body));
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, stack_bytes);
  // Signals are the main thread's; a new thread inherits the mask.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  Thread thread;
  const int error = pthread_create(&thread.thread_, &attributes, &Run, argument.get());
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_attr_destroy(&attributes);
  if (error != 0) {
    return absl::ResourceExhaustedError(absl::StrCat(
        program_invocation_short_name, " cannot start another thread (", std::strerror(error),
        "); raise the limit on its threads (TasksMax, pids.max, ulimit -u) or addresses (ulimit -v)"));
  }
  argument.release();
  thread.joinable_ = true;
  pthread_setname_np(thread.thread_, name);
  return thread;
}

Thread::Thread(Thread&& other) noexcept
    : thread_(other.thread_), joinable_(std::exchange(other.joinable_, false)) {}

Thread& Thread::operator=(Thread&& other) noexcept {
  if (this != &other) {
    Join();
    thread_ = other.thread_;
    joinable_ = std::exchange(other.joinable_, false);
  }
  return *this;
}

void Thread::Join() {
  if (std::exchange(joinable_, false)) pthread_join(thread_, nullptr);
}

}  // namespace lgpu
