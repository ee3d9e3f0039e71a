#include "base/this_thread.h"

#include <atomic>

namespace lgpu {

constinit thread_local ThisThread::Numbers ThisThread::numbers_{~std::uint64_t{0}, 0, 0};

const ThisThread::Numbers& ThisThread::Ask() {
  static std::atomic<std::uint64_t> last{0};
  numbers_.epoch = ProcessEpoch::Now();
  numbers_.number = last.fetch_add(1, std::memory_order_relaxed) + 1;
  return numbers_;
}

}  // namespace lgpu
