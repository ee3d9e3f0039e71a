#ifndef LGPU_TESTS_FAKE_CUDA_FAKE_POOLS_H_
#define LGPU_TESTS_FAKE_CUDA_FAKE_POOLS_H_

#include <cstdint>
#include <map>
#include <memory>

#include "tests/fake_cuda/fake_blocks.h"

namespace lgpu::fake_cuda {

/// A pool of stream-ordered memory. It belongs to no context.
struct Pool {
  std::shared_ptr<Blocks> blocks;
  std::uint64_t threshold = 0;  // the most that it keeps when a program waits
  std::uint64_t most = 0;       // 0: no limit
  std::map<int, int> switches;  // the attributes that are on or off
};

}  // namespace lgpu::fake_cuda

#endif  // LGPU_TESTS_FAKE_CUDA_FAKE_POOLS_H_
