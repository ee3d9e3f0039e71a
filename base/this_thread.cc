#include "base/this_thread.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>

namespace lgpu {

constinit thread_local ThisThread::Numbers ThisThread::numbers_{~std::uint64_t{0}, 0, 0, 0};

const ThisThread::Numbers& ThisThread::Ask() {
  static std::atomic<std::uint64_t> last{0};
  numbers_.epoch = ProcessEpoch::Now();
  numbers_.unique_number = last.fetch_add(1, std::memory_order_relaxed) + 1;
  numbers_.kernel_number = static_cast<std::int32_t>(syscall(SYS_gettid));
  return numbers_;
}

}  // namespace lgpu
