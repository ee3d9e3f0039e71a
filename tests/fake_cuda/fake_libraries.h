#ifndef LGPU_TESTS_FAKE_CUDA_FAKE_LIBRARIES_H_
#define LGPU_TESTS_FAKE_CUDA_FAKE_LIBRARIES_H_

// The calls of the fake driver that only fake libraries use.

#include <cuda.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/fake_cuda/fake_process.h"

namespace lgpu::fake_cuda {

/// Work of a library on device memory. `run` gets the host's address of each touch, in their order.
struct LibraryWork {
  std::vector<Touch> touches;
  std::function<void(const std::vector<char*>&)> run;
};

#define FAKE_SHARED __attribute__((visibility("default")))
/// Queues it on a stream of the current context.
FAKE_SHARED CUresult QueueLibraryWork(CUstream stream, LibraryWork work, const char* call);
/// Every call of a library begins with it: counts the call; the result that a test wants it to fail with, or
/// 0.
FAKE_SHARED int EnterLibrary(const char* call);
/// Whether this process uses the driver still.
FAKE_SHARED bool HasContext();
FAKE_SHARED void BreakRule(const char* rule, const std::string& text);

}  // namespace lgpu::fake_cuda

#endif  // LGPU_TESTS_FAKE_CUDA_FAKE_LIBRARIES_H_
