#ifndef LGPU_KERNELS_REGISTRY_H_
#define LGPU_KERNELS_REGISTRY_H_

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/op.h"

namespace lgpu {

/// The ops that lgpu knows, in the order of their index. Constant.
std::span<const Op> AllOps();
const Op& MatMulOp();
const Op& AddNOp();
const Op& CastOp();
const Op& IdentityOp();
const Op* FindOp(std::string_view name);  // null: unknown

/// A KernelRegistry maps (op, device type, dtype) to a kernel. A Context owns one; it is filled before
/// use and constant after that (then thread-safe).
class KernelRegistry {
 public:
  struct Options {
    /// Registers Cast for GPUs too. Off by default, as TensorFlow's guide describes Cast.
    bool cast_on_gpu = false;
  };
  /// The kernels of the CPU, and the same ones as kernels of simulated GPUs.
  static KernelRegistry ForSimulatedDevices(const Options& options);

  void Add(const Kernel& kernel);
  /// O(1); null if there is none.
  const Kernel* Find(const Op& op, DeviceType device, DType dtype) const;
  /// The device types with a kernel, best first: by priority, then GPU before CPU.
  std::vector<DeviceType> SupportedDevices(const Op& op, DType dtype) const;
  /// TensorFlow's list: "  device='GPU'; T in [DT_FLOAT]" lines, or "  <no registered kernels>".
  std::string DescribeKernels(const Op& op) const;

 private:
  std::vector<Kernel> kernels_;
  std::vector<const Kernel*> index_;
};

}  // namespace lgpu

#endif  // LGPU_KERNELS_REGISTRY_H_
