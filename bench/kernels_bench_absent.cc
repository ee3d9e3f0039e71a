#include <cstdio>

#include "bench/kernels_bench.h"

namespace lgpu::bench {

bool MeasureGpu(const Options& options) {
  std::printf("no GPU: built without CUDA\n");
  return !options.needs_gpu;
}

}  // namespace lgpu::bench
