#ifndef LGPU_TESTS_FAKE_CUDA_FAKE_CALLS_H_
#define LGPU_TESTS_FAKE_CUDA_FAKE_CALLS_H_

#include <mutex>

#include "tests/fake_cuda/fake_process.h"

#define FAKE_EXPORT extern "C" __attribute__((visibility("default")))

namespace lgpu::fake_cuda {

inline constexpr std::uint64_t kGranularity = std::uint64_t{2} << 20;

/// What every call begins with: is the driver there, did the program start it, is this a forked child, does a
/// test want the call to fail?
CUresult Enter(const char* call);
/// The card of CUDA's ordinal, or -1.
int CardOf(int ordinal);

}  // namespace lgpu::fake_cuda

// Enters a call and names the process `process`, locked by `lock`.
#define FAKE_ENTER(call)                                                                                \
  if (const CUresult entered = ::lgpu::fake_cuda::Enter(call); entered != CUDA_SUCCESS) return entered; \
  auto& process = ::lgpu::fake_cuda::Process::This();                                                   \
  std::unique_lock lock(process.mutex)

#endif  // LGPU_TESTS_FAKE_CUDA_FAKE_CALLS_H_
