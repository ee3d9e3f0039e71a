#ifndef LGPU_TESTS_FAKE_CUDA_FAKE_ARRAYS_H_
#define LGPU_TESTS_FAKE_CUDA_FAKE_ARRAYS_H_

#include <cuda.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace lgpu::fake_cuda {

/// An array is plain memory with padded rows here. Sparse arrays and arrays whose memory is mapped later have
/// none.
struct Array {
  CUDA_ARRAY3D_DESCRIPTOR about{};
  CUdeviceptr address = 0;
  std::uint64_t row_bytes = 0, rows = 1, planes = 1;
  std::vector<std::unique_ptr<Array>> levels;  // of a mipmapped one, which are views
};

}  // namespace lgpu::fake_cuda

#endif  // LGPU_TESTS_FAKE_CUDA_FAKE_ARRAYS_H_
