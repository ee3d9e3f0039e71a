#ifndef LGPU_TESTS_KERNELS_KERNEL_RUNNER_H_
#define LGPU_TESTS_KERNELS_KERNEL_RUNNER_H_

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "kernels/registry.h"

namespace lgpu::testing {

/// A KernelRunner is the device on which a program of kernel tests runs them. The same tests are linked with
/// the CPU's, a simulated GPU's and a real GPU's.
class KernelRunner {
 public:
  virtual ~KernelRunner() = default;
  virtual DeviceType type() const = 0;
  virtual const KernelRegistry& registry() const = 0;
  virtual Launcher& launcher() = 0;
  /// Whether the device has the library that the kernel needs.
  virtual bool CanRun(const Kernel& /*kernel*/) { return true; }
  /// Memory of the device for the tensors of one run, 256-byte aligned.
  virtual std::span<std::byte> arena() = 0;
  virtual absl::Status CopyIn(std::byte* to, std::span<const std::byte> from) = 0;
  /// After all that was launched.
  virtual absl::Status CopyOut(std::span<std::byte> to, const std::byte* from) = 0;
};

/// Each program links one.
std::unique_ptr<KernelRunner> MakeRunner();
/// Made at the first call, and gone before the program ends: a driver is no place for destructors at exit.
KernelRunner& ThisRunner();

/// Runs a kernel on tensors `shifts` bytes behind aligned addresses, with guards around them that are
/// checked. Inputs lie on the host; returns the bytes of the outputs.
std::vector<std::vector<std::byte>> RunInArena(KernelRunner& runner, const Kernel& kernel,
                                               std::span<const TensorView> inputs,
                                               std::span<const TensorSpec> outputs,
                                               const OpAttributes& attributes,
                                               std::span<const std::size_t> shifts);

}  // namespace lgpu::testing

#endif  // LGPU_TESTS_KERNELS_KERNEL_RUNNER_H_
