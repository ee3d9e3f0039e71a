#ifndef LGPU_TESTS_FAKE_CUDA_EMULATED_GRID_H_
#define LGPU_TESTS_FAKE_CUDA_EMULATED_GRID_H_

// CUDA's words for kernels, so that a .cu file compiles as C++ for the host. The threads of a block are
// fibers of one thread of the host: each runs until a barrier, in an order that changes from barrier to
// barrier and from block to block.

#include <cstdint>

#include "absl/functional/function_ref.h"

namespace lgpu::fake_cuda {

/// Of one launch. Kernels of lgpu have one dimension.
struct Grid {
  std::uint64_t blocks = 1;
  std::uint64_t threads = 1;  // of a block
};

enum class Barriers { kNone, kSome };

/// Runs `thread` once for every thread of the grid. Barriers::kNone: in turn, without fibers. False: not all
/// threads of a block came to a barrier.
bool RunGrid(const Grid& grid, Barriers barriers, absl::FunctionRef<void()> thread);

/// Stands in for __syncthreads. LGPU_FAKE_SKIP_BARRIER=FILE:LINE leaves that one out, for tests of the tests.
void Barrier(const char* file, int line);

struct Dimension {
  unsigned x = 0;
};

}  // namespace lgpu::fake_cuda

inline thread_local lgpu::fake_cuda::Dimension threadIdx, blockIdx, blockDim, gridDim;

#define __global__
#define __device__
#define __grid_constant__
#define __launch_bounds__(...)
// Blocks run one after the other, so one place is enough for the shared memory of all.
#define __shared__ static thread_local
#define __syncthreads() ::lgpu::fake_cuda::Barrier(__FILE__, __LINE__)

#endif  // LGPU_TESTS_FAKE_CUDA_EMULATED_GRID_H_
