#ifndef LGPU_BASE_THREAD_H_
#define LGPU_BASE_THREAD_H_

#include <pthread.h>

#include <cstddef>
#include <functional>

#include "absl/status/statusor.h"

namespace lgpu {

/// A Thread is a thread with a small stack, all signals blocked; its destructor joins it.
class Thread {
 public:
  Thread() = default;
  // Only touched pages become memory; this is room for a refusal's text and a log line on top of a frame.
  static constexpr std::size_t kStackBytes = 512 * 1024;
  /// RESOURCE_EXHAUSTED when the system allows no more threads. `name`: at most 15 characters.
  static absl::StatusOr<Thread> Start(const char* name, std::function<void()> body,
                                      std::size_t stack_bytes = kStackBytes);

  Thread(Thread&& other) noexcept;
  Thread& operator=(Thread&& other) noexcept;
  Thread(const Thread&) = delete;
  Thread& operator=(const Thread&) = delete;
  ~Thread() { Join(); }

  void Join();

 private:
  pthread_t thread_{};
  bool joinable_ = false;
};

}  // namespace lgpu

#endif  // LGPU_BASE_THREAD_H_
