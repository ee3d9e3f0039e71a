#ifndef LGPU_TESTS_FAKE_CUDA_FAKE_CALLS_H_
#define LGPU_TESTS_FAKE_CUDA_FAKE_CALLS_H_

#include <atomic>
#include <mutex>

#include "tests/fake_cuda/fake_process.h"

#define FAKE_EXPORT extern "C" __attribute__((visibility("default")))

namespace lgpu::fake_cuda {

inline constexpr std::uint64_t kGranularity = std::uint64_t{2} << 20;

/// One call of the driver, where it stands in the code.
struct Call {
  const char* name;
  std::atomic<int> index{-1};  // in State::calls
};
/// Every call begins with one, and is inside the driver while it lives: a process is not locked before its
/// calls have ended.
class Inside {
 public:
  /// Of a call that is part of another one.
  Inside();
  /// Waits while the process is locked.
  explicit Inside(Call& call);
  ~Inside();
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;
  /// An error where there is no driver, the program has not started it, this is a forked child, or a test
  /// wants the call to fail.
  CUresult result() const { return result_; }

 private:
  CUresult Enter();

  bool is_counted_ = false;
  CUresult result_;
};
void CountCall(StateFile& file, Call& call);
/// The host's address of memory when work on it runs; null, after which the contexts are dead.
char* ReachLater(const Touch& touch, int card, const char* call);
/// The card of CUDA's ordinal, or -1.
int CardOf(int ordinal);

}  // namespace lgpu::fake_cuda

// Enters a call and names the process `process`, locked by `lock`.
#define FAKE_ENTER(call)                                       \
  static ::lgpu::fake_cuda::Call this_call{call};              \
  const ::lgpu::fake_cuda::Inside inside(this_call);           \
  if (inside.result() != CUDA_SUCCESS) return inside.result(); \
  auto& process = ::lgpu::fake_cuda::Process::This();          \
  std::unique_lock lock(process.mutex)

// The same for a call that takes a current context, which it names `context`.
#define FAKE_ENTER_CONTEXT(call)                 \
  FAKE_ENTER(call);                              \
  ::lgpu::fake_cuda::Context* context = nullptr; \
  if (const CUresult current = process.CurrentContext(&context, call); current != CUDA_SUCCESS) return current

#endif  // LGPU_TESTS_FAKE_CUDA_FAKE_CALLS_H_
