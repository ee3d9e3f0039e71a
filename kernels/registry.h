#ifndef LGPU_KERNELS_REGISTRY_H_
#define LGPU_KERNELS_REGISTRY_H_

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/op.h"
#include "kernels/op_list.h"

namespace lgpu {

/// The ops that lgpu knows, in the order of their index. Constant.
std::span<const Op> AllOps();
/// MatMulOp() and so on, one for each. The input of EagerConstOp(), a constant, lies on the host.
#define LGPU_OP_ACCESSOR(op, ...) const Op& op##Op();
LGPU_OPS(LGPU_OP_ACCESSOR)
#undef LGPU_OP_ACCESSOR
const Op* FindOp(std::string_view name);  // null: unknown
/// Small inputs that the op takes, of `dtype` where it has a choice.
std::vector<TensorSpec> ExampleInputs(const Op& op, DType dtype);

/// TensorFlow's name of a dtype as an attribute: "DT_FLOAT".
std::string_view DTypeAttributeName(DType dtype);

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

  /// The kernels of the CPU, and those of real GPUs for the same types.
  static KernelRegistry ForCudaDevices(const Options& options);

  /// The same ops, device types and dtypes, and no code: for programs that ask where an op would run.
  static KernelRegistry WithoutCode(const Options& options);

  /// Replaces a kernel of the same op, device type and dtype.
  void Add(const Kernel& kernel);
  /// O(1); null if there is none.
  const Kernel* Find(const Op& op, DeviceType device, DType dtype) const {
    const std::size_t slot = Slot(op, device, dtype);
    return slot < index_.size() && index_[slot] >= 0 ? &kernels_[static_cast<std::size_t>(index_[slot])]
                                                     : nullptr;
  }
  /// The device types with a kernel, best first: by priority, then GPU before CPU.
  std::vector<DeviceType> SupportedDevices(const Op& op, DType dtype) const;
  /// TensorFlow's list: "  device='GPU'; T in [DT_FLOAT]" lines, or "  <no registered kernels>".
  std::string DescribeKernels(const Op& op) const;
  /// Why real GPUs have no kernels in this build; "" where they have.
  const std::string& lacking() const { return lacking_; }

 private:
  static constexpr std::size_t kDTypes = 32;
  static std::size_t Slot(const Op& op, DeviceType device, DType dtype) {
    return (op.index * std::size_t{2} + static_cast<std::size_t>(device)) * kDTypes +
           static_cast<std::size_t>(dtype) % kDTypes;
  }

  std::vector<Kernel> kernels_;
  std::string lacking_;
  std::vector<int> index_;  // by (op, device type, dtype): position in kernels_, or -1
};

}  // namespace lgpu

#endif  // LGPU_KERNELS_REGISTRY_H_
