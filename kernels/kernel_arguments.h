#ifndef LGPU_KERNELS_KERNEL_ARGUMENTS_H_
#define LGPU_KERNELS_KERNEL_ARGUMENTS_H_

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "allocator/device/device_work.h"
#include "lgpu/dtype.h"

namespace lgpu {

/// The parameter block of a kernel that runs on the host: what KernelLaunch::arguments points to. Each
/// kernel reads its own fields. `inputs` is last, so that only its used part travels with a launch.
struct KernelArguments {
  static constexpr int kMaxInputs = 480;
  std::byte* output;
  std::int64_t elements;  // of the output
  std::int64_t m, n, k;   // MatMul: [m,k] x [k,n], after transposition
  bool transpose_a, transpose_b;
  bool accumulate;  // AddN: the output holds the sum of earlier inputs
  DType from, to;   // Cast
  std::int32_t input_count;
  const std::byte* inputs[kMaxInputs];

  /// How much of the block a launch must carry.
  std::size_t used_bytes() const {
    return offsetof(KernelArguments, inputs) + sizeof(inputs[0]) * static_cast<std::size_t>(input_count);
  }
};
static_assert(std::is_trivially_copyable_v<KernelArguments>);
static_assert(sizeof(KernelArguments) <= KernelLaunch::kMaxArgumentBytes);

/// The launch of `function` with `arguments`, which must stay as long as the result is used.
inline KernelLaunch HostLaunch(void (*function)(const void*), const KernelArguments& arguments) {
  KernelLaunch launch;
  launch.host_function = function;
  launch.arguments = &arguments;
  launch.argument_bytes = arguments.used_bytes();
  return launch;
}

}  // namespace lgpu

#endif  // LGPU_KERNELS_KERNEL_ARGUMENTS_H_
