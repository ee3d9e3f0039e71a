#ifndef LGPU_KERNELS_OP_H_
#define LGPU_KERNELS_OP_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "allocator/device/device_work.h"
#include "kernels/matmul_library.h"
#include "lgpu/bytes.h"
#include "lgpu/dtype.h"
#include "lgpu/shape.h"

namespace lgpu {

/// Ordered by preference of default placement: higher first.
enum class DeviceType : std::uint8_t { kCpu = 0, kGpu = 1 };
std::string_view DeviceTypeName(DeviceType type);  // "CPU", "GPU"

/// A tensor without its data.
struct TensorSpec {
  DType dtype = DType::kInvalid;
  Shape shape;
};

/// Dimensions of a tensor, by number.
struct AxisList {
  std::array<std::int32_t, Shape::kMaxRank> values = {};
  int count = 0;
  bool all = false;  // every dimension, and `values` is ignored; of Transpose: in reversed order
};

/// The attributes of all ops; each op reads its own.
struct OpAttributes {
  bool transpose_a = false;         // MatMul
  bool transpose_b = false;         // MatMul
  DType cast_to = DType::kInvalid;  // Cast
  AxisList axes = {};               // Sum, Mean: the dimensions to reduce; Transpose: the new order
  bool keep_dims = false;           // Sum, Mean: reduced dimensions stay, with size 1
  Shape shape = {};                 // Fill
};

/// A tensor's data where the kernel runs. The memory belongs to the caller.
struct TensorView {
  std::byte* data = nullptr;
  TensorSpec spec;
};

/// The means of a kernel that calls a library of the GPU's vendor.
struct LibraryCall {
  void* stream = nullptr;  // the driver's, whose context is current
  MatMulLibrary* matmul = nullptr;
  /// How much scratch memory there may be.
  std::uint64_t workspace_bytes = 0;
  /// Calls `queue` once with at least `at_least` bytes of it, and gives its status. The memory is for the
  /// work that `queue` puts on the stream; no other work that uses it is queued meanwhile. Nothing, and no
  /// call, where there is not so much now.
  absl::FunctionRef<std::optional<absl::Status>(
      std::uint64_t at_least, absl::FunctionRef<absl::Status(std::span<std::byte> workspace)> queue)>
      with_workspace;
  /// Called once, right before the first work is queued: all before it is the host's time.
  absl::FunctionRef<void()> before_work = NothingBefore;

  static void NothingBefore() {}
};

/// A Launcher puts kernels on one device: at once on the CPU, on a stream of a backend elsewhere.
class Launcher {
 public:
  virtual ~Launcher() = default;
  virtual absl::Status Launch(const KernelLaunch& launch) = 0;
  /// Calls `call` once, for work that a library queues itself; its status. UNIMPLEMENTED where the device is
  /// not real.
  virtual absl::Status CallLibrary(absl::FunctionRef<absl::Status(const LibraryCall&)> /*call*/) {
    return absl::UnimplementedError("only a real GPU has libraries");
  }
  /// Calls `launch` once, and gives its status, with memory of the device for its launches; with none where
  /// the device has no room now, or where one launch does as well.
  virtual absl::Status WithScratch(Bytes /*bytes*/,
                                   absl::FunctionRef<absl::Status(std::span<std::byte> scratch)> launch) {
    return launch({});
  }
};

/// Of an op's kernels, by the dtype of input 0.
enum class DTypes : std::uint8_t { kNone, kFloating, kAll };

/// An Op is a name with a rule for its output. Ops live as long as the program (the list is
/// kernels/op_list.h).
struct Op {
  std::string_view name;  // "MatMul"
  int min_inputs;
  int max_inputs;  // -1: any number
  absl::StatusOr<TensorSpec> (*infer)(const Op& op, std::span<const TensorSpec> inputs,
                                      const OpAttributes& attributes);
  std::uint16_t index;  // position in AllOps(), and in the client page's table of names
  DTypes on_gpus;
  DTypes on_cpu;
  /// The op reads the shape of its input and not the values: no input is ever copied for it, and without
  /// another request it runs where its input is. Its kernels write their output on the host.
  bool metadata = false;
  /// The second output, of inputs that Infer accepted; null: there is one output only.
  TensorSpec (*infer_second)(std::span<const TensorSpec> inputs, const OpAttributes& attributes) = nullptr;

  /// dtype and shape of the first output, or INVALID_ARGUMENT with TensorFlow's text.
  absl::StatusOr<TensorSpec> Infer(std::span<const TensorSpec> inputs, const OpAttributes& attributes) const {
    return infer(*this, inputs, attributes);
  }
};

/// A Kernel is an op's code for one device type and one dtype (of input 0).
struct Kernel {
  const Op* op;
  DeviceType device;
  DType dtype;
  int priority = 0;  // higher is preferred, before the device type
  /// Launches the op; may be several launches. The outputs are as Op::Infer said and overlap no input.
  absl::Status (*run)(std::span<const TensorView> inputs, std::span<const TensorView> outputs,
                      const OpAttributes& attributes, Launcher& launcher);
  /// The kernel calls the MatMulLibrary, which a machine may not have.
  bool needs_library = false;
};

}  // namespace lgpu

#endif  // LGPU_KERNELS_OP_H_
