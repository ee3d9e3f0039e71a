#include "python/module/lock.h"

#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace lgpu::python {

namespace {

std::atomic<bool> ending{false};
std::atomic<std::thread::id> ended_by{};  // the thread that ends the interpreter, and still may ask
std::atomic<int> asking{0};               // threads between their look at `ending` and having the lock

/// False: the interpreter ends, and this thread must not ask for its lock.
bool BeginToAsk() {
  asking.fetch_add(1);
  if (!ending.load() || ended_by.load() == std::this_thread::get_id()) return true;
  asking.fetch_sub(1);
  return false;
}
void HasAsked() { asking.fetch_sub(1); }

/// Whether this thread holds the interpreter's lock. PyGILState_Check always says yes once the process has
/// had a second interpreter. Every Python exports the function that is used here, under one of two names, but
/// it is no part of the limited interface.
bool IsHeld() {
  using Current = PyThreadState* (*)();
  static const auto current = [] {
    void* found = ::dlsym(RTLD_DEFAULT, "PyThreadState_GetUnchecked");
    if (found == nullptr) found = ::dlsym(RTLD_DEFAULT, "_PyThreadState_UncheckedGet");
    return reinterpret_cast<Current>(found);
  }();
  PyThreadState* const own = PyGILState_GetThisThreadState();
  return own != nullptr && current != nullptr && current() == own;
}

}  // namespace

WithoutLock::~WithoutLock() {
  while (!BeginToAsk()) pause();
  PyEval_RestoreThread(state_);
  HasAsked();
}

WithoutLockIfHeld::WithoutLockIfHeld() {
  if (IsHeld()) without_lock_.emplace();
}

WithLock::WithLock() : held_(BeginToAsk()) {
  if (!held_) return;
  state_ = PyGILState_Ensure();
  HasAsked();
}

WithLock::~WithLock() {
  if (held_) PyGILState_Release(state_);
}

void StopOtherThreads() {
  ended_by.store(std::this_thread::get_id());
  ending.store(true);
  PyThreadState* const state = PyEval_SaveThread();
  while (asking.load() != 0) std::this_thread::sleep_for(std::chrono::microseconds(100));
  PyEval_RestoreThread(state);
}

void ForgetOtherThreadsInChildren() {
  ::pthread_atfork(nullptr, nullptr, [] { asking.store(0); });
}

}  // namespace lgpu::python
