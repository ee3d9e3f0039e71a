#ifndef LGPU_KERNELS_OP_H_
#define LGPU_KERNELS_OP_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "allocator/device/device_backend.h"
#include "lgpu/dtype.h"
#include "lgpu/shape.h"

namespace lgpu {

/// Ordered by preference of default placement: higher first.
enum class DeviceType : std::uint8_t { kCpu = 0, kGpu = 1 };
std::string_view DeviceTypeName(DeviceType type);  // "CPU", "GPU"

/// What an op knows of a tensor without its data.
struct TensorSpec {
  DType dtype = DType::kInvalid;
  Shape shape;
};

/// The attributes of all ops; each op reads its own.
struct OpAttributes {
  bool transpose_a = false;         // MatMul
  bool transpose_b = false;         // MatMul
  DType cast_to = DType::kInvalid;  // Cast
};

/// A tensor's data where the kernel runs. The memory belongs to the caller.
struct TensorView {
  std::byte* data = nullptr;
  TensorSpec spec;
};

/// A Launcher puts kernels on one device: at once on the CPU, on a stream of a backend elsewhere.
class Launcher {
 public:
  virtual ~Launcher() = default;
  virtual absl::Status Launch(const KernelLaunch& launch) = 0;
};

/// An Op is a name with a rule for its output. Ops live as long as the program (constant tables of
/// functions, kernels/ops.cc).
struct Op {
  std::string_view name;  // "MatMul"
  int min_inputs;
  int max_inputs;  // -1: any number
  /// dtype and shape of the output, or INVALID_ARGUMENT with TensorFlow's text.
  absl::StatusOr<TensorSpec> (*infer)(std::span<const TensorSpec> inputs, const OpAttributes& attributes);
  std::uint16_t index;  // position in AllOps(), and in the client page's table of names
  /// It reads the shape of its input and not the values: no input is ever copied for it, and where nothing
  /// else is asked for it runs where its input is. Its kernels write their output on the host.
  bool metadata = false;
};

/// A Kernel is an op's code for one device type and one dtype (of input 0).
struct Kernel {
  const Op* op;
  DeviceType device;
  DType dtype;
  int priority = 0;  // higher is preferred, before the device type
  /// Launches the op; may be several launches. `output` is as `infer` said and overlaps no input.
  absl::Status (*run)(std::span<const TensorView> inputs, const TensorView& output,
                      const OpAttributes& attributes, Launcher& launcher);
};

}  // namespace lgpu

#endif  // LGPU_KERNELS_OP_H_
