#ifndef LGPU_CLIENT_RUNTIME_PLACER_H_
#define LGPU_CLIENT_RUNTIME_PLACER_H_

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/registry.h"
#include "lgpu/device_name.h"

namespace lgpu::internal {

/// A device that was asked for, resolved once against the devices of a context.
struct DeviceRequest {
  static constexpr int kNone = -1;
  /// The name is of no use; the op that needs the device fails.
  bool malformed = false;
  std::string malformed_because;  // empty: TensorFlow's runtime cannot read it
  /// False: anything will do.
  bool constrained = false;
  /// The first device that fits, by DeviceType; kNone.
  std::array<int, 2> match = {kNone, kNone};
  /// Soft placement may choose another device: the name is of this program's task.
  bool may_fall_back = true;
  /// The name is of another task, or of any ("/job:*"). Constants are made in this task only.
  bool elsewhere = false;
  std::uint16_t record_id = 0xffff;  // PlacementEntry::requested
  std::string given;                 // as it was written
  std::string full_name;             // "/job:localhost/replica:0/task:0/device:GPU:2"
  std::string local_name;            // "/device:GPU:2"
  DeviceName name;
  DeviceName spec;     // the name with its stars, which a strict scope inside this one builds on
  DeviceName written;  // the name of the scopes alone, as a graph's errors show it
};

/// Where an op runs: a position among the context's devices, and the kernel there.
struct Placement {
  int device = 0;
  const Kernel* kernel = nullptr;
  bool soft_placed = false;  // elsewhere than asked for
};

/// A Placer chooses devices as TensorFlow does: kernels by priority, GPU before CPU, then the first by name.
/// Devices are positions: the GPUs by index, then the CPUs. Constant, so thread-safe; pure.
class Placer {
 public:
  /// `registry` outlives the placer and does not change any more.
  Placer(const KernelRegistry& registry, int gpu_count, int cpu_count = 1);

  /// A device as people write it: the grammar of TensorFlow's runtime, or else the lenient one ("gpu:0",
  /// "GPU").
  DeviceRequest Resolve(std::string_view name) const;
  /// As TensorFlow's tf.device does: Python's grammar, merged over the scope around it (null: over CPU:0).
  DeviceRequest ResolveSpec(std::string_view name, const DeviceRequest* outer) const;

  /// `request` may be null. `near`: the device that the op's inputs prefer, taken where it has a kernel and
  /// fits the request. INVALID_ARGUMENT: a malformed request, or one that cannot be met;
  /// NOT_FOUND: no kernel at all; with TensorFlow's texts.
  absl::StatusOr<Placement> Place(const Op& op, DType dtype, const DeviceRequest* request, bool soft,
                                  int near = DeviceRequest::kNone) const;
  /// That device for an op on these inputs: a metadata op goes where its input is, and with `pin_small_ops`
  /// an op on a few whole numbers that lie on the CPU stays there. kNone: the inputs prefer none.
  int NearInputs(const Op& op, std::span<const TensorSpec> inputs, std::span<const int> devices,
                 bool pin_small_ops) const;
  /// The error of TensorFlow 1's graph for a failed placement: "Cannot assign a device for operation
  /// NODE: ...".
  absl::Status GraphError(const Op& op, DType dtype, const DeviceRequest* request,
                          std::string_view node) const;

  /// The device to copy to: "<full name> unknown device." where there is none.
  absl::StatusOr<int> Lookup(std::string_view name) const;
  /// The one device that TensorFlow's get_memory_info would find, or its error.
  absl::StatusOr<int> FindOne(std::string_view name) const;

  int gpu_count() const { return gpu_count_; }
  int device_count() const { return gpu_count_ + cpu_count_; }
  int cpu() const { return gpu_count_; }  // the first one
  DeviceType TypeOf(int device) const { return device < gpu_count_ ? DeviceType::kGpu : DeviceType::kCpu; }
  DeviceName NameOf(int device) const;
  /// All positions, better types first, then by name as text: GPU:10 comes before GPU:2.
  std::vector<int> ByPreference() const;
  const KernelRegistry& registry() const { return registry_; }

 private:
  struct Supported {
    std::uint8_t count = 0;
    std::array<DeviceType, 2> types = {};
  };
  static constexpr std::size_t kDTypes = 32;
  const Supported& SupportedFor(const Op& op, DType dtype) const {
    return supported_[op.index * kDTypes + static_cast<std::size_t>(dtype) % kDTypes];
  }
  int First(DeviceType type) const;
  DeviceRequest RequestFor(const DeviceName& name, std::string_view given) const;
  std::string DeviceList() const;
  absl::Status UnknownDevice(const DeviceRequest& request) const;
  absl::StatusOr<Placement> Fail(const Op& op, DType dtype, const DeviceRequest* request, bool soft) const;

  const KernelRegistry& registry_;
  const int gpu_count_;
  const int cpu_count_;
  std::vector<Supported> supported_;
};

}  // namespace lgpu::internal

#endif  // LGPU_CLIENT_RUNTIME_PLACER_H_
