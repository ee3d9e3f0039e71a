#include <cstdio>

#include "bench/kernels_bench.h"

namespace lgpu::bench {

bool MeasureGpu(const Options&) {
  std::printf("\nno GPU: built without CUDA\n");
  return true;
}

}  // namespace lgpu::bench
