#ifndef LGPU_TESTS_FAKE_CUDA_FAKE_KERNELS_H_
#define LGPU_TESTS_FAKE_CUDA_FAKE_KERNELS_H_

#include <cstddef>
#include <functional>
#include <string_view>
#include <vector>

#include "tests/fake_cuda/fake_process.h"

namespace lgpu::fake_cuda {

/// A kernel of lgpu's as the fake driver runs it, on the host.
struct Emulation {
  std::string_view name;
  std::size_t parameter_bytes;
  std::vector<Touch> (*touches)(const void* parameters);
  /// `at` gives where the host sees device memory.
  void (*run)(const void* parameters, const std::function<char*(const void*)>& at);
};

/// Null for a name that is none of lgpu's kernels.
const Emulation* FindEmulation(std::string_view name);

}  // namespace lgpu::fake_cuda

#endif  // LGPU_TESTS_FAKE_CUDA_FAKE_KERNELS_H_
