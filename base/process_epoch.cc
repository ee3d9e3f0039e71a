#include "base/process_epoch.h"

#include <pthread.h>

#include "base/check.h"

namespace lgpu {

std::atomic<std::uint64_t> ProcessEpoch::forks_survived_{0};

void ProcessEpoch::CountFork() { forks_survived_.fetch_add(1, std::memory_order_relaxed); }

ProcessEpoch::ProcessEpoch() {
  [[maybe_unused]] static const int registered = [] {
    const int result = pthread_atfork(nullptr, nullptr, &CountFork);
    LGPU_CHECK_OP(result, ==, 0);
    return result;
  }();
  made_in_ = Now();
}

}  // namespace lgpu
