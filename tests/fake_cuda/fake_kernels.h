#ifndef LGPU_TESTS_FAKE_CUDA_FAKE_KERNELS_H_
#define LGPU_TESTS_FAKE_CUDA_FAKE_KERNELS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "tests/fake_cuda/emulated_grid.h"
#include "tests/fake_cuda/fake_process.h"

namespace lgpu::fake_cuda {

/// Where the host sees device memory that a kernel touches: the address that one of its touches has.
using HostAddress = std::function<char*(const void*)>;

/// A kernel of lgpu's as the fake driver runs it, on the host: the .cu files, thread by thread.
struct Emulation {
  std::string_view name;
  std::size_t parameter_bytes;
  std::vector<Touch> (*touches)(const void* parameters);
  /// False: some threads of a block came to a barrier and the rest did not.
  bool (*run)(const void* parameters, const Grid& grid, const HostAddress& at);
};

/// Null for a name that is none of lgpu's kernels.
const Emulation* FindEmulation(std::string_view name);

}  // namespace lgpu::fake_cuda

#endif  // LGPU_TESTS_FAKE_CUDA_FAKE_KERNELS_H_
