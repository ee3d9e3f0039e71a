#include "allocator/process_epoch.h"

#include <pthread.h>

#include <atomic>

#include "allocator/check.h"

namespace lgpu {
namespace {

std::atomic<std::uint64_t> forks_survived{0};

void CountFork() { forks_survived.fetch_add(1, std::memory_order_relaxed); }

void RegisterOnce() {
  [[maybe_unused]] static const int registered = [] {
    const int result = pthread_atfork(nullptr, nullptr, &CountFork);
    LGPU_CHECK_OP(result, ==, 0);
    return result;
  }();
}

}  // namespace

ProcessEpoch::ProcessEpoch() {
  RegisterOnce();
  made_in_ = forks_survived.load(std::memory_order_relaxed);
}

std::uint64_t ProcessEpoch::Now() { return forks_survived.load(std::memory_order_relaxed); }

}  // namespace lgpu
