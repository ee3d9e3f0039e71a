#include "base/thread_room.h"

#include <future>
#include <system_error>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/blocked_signals.h"

namespace lgpu {

absl::Status CheckThreadRoom(const char* library, int threads) {
  absl::Status status;
  std::promise<void> all;
  std::vector<std::thread> started;
  {
    const BlockedSignals blocked;
    const std::shared_future<void> wait = all.get_future().share();
    try {
      while (started.size() < static_cast<std::size_t>(threads)) {
        started.emplace_back([wait] { wait.wait(); });
      }
    } catch (const std::system_error& error) {
      status = absl::ResourceExhaustedError(absl::StrCat(
          "this process may start ", started.size(), " further threads, and ", library, " needs up to ",
          threads, " (", error.what(),
          ")\n  try: a higher ulimit -u or -v, or pids.max of the cgroup (TasksMax of a service)"));
    }
  }
  all.set_value();
  for (std::thread& thread : started) thread.join();
  return status;
}

}  // namespace lgpu
