#ifndef LGPU_CONTEXT_H_
#define LGPU_CONTEXT_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lgpu/bytes.h"
#include "lgpu/explain.h"
#include "lgpu/export.h"
#include "lgpu/logical_device.h"
#include "lgpu/memory.h"
#include "lgpu/memory_stats.h"
#include "lgpu/ops.h"
#include "lgpu/tensor.h"

namespace lgpu {

namespace internal {
class ContextState;
struct ContextMaker;
}  // namespace internal

class Config;

/// A DevicePolicy decides whether an op may use a tensor on another device by a copy. TensorFlow's words.
enum class DevicePolicy { kExplicit = 0, kWarn = 1, kSilent = 2, kSilentForInt32 = 3 };

/// How placement lines look.
enum class PlacementLogFormat {
  kEager,  // TensorFlow 2: "Executing op MatMul in device /job:..."
  /// TensorFlow 1: "Device mapping:" at the start, then "MatMul: (MatMul): /job:..."; and the errors of
  /// placement are those of its graph: "Cannot assign a device for operation MatMul: ..."
  kGraph,
};

struct ContextOptions {
  /// Empty: one device on the first visible card with default options, or the devices of `lease`.
  std::vector<LogicalDeviceOptions> logical_devices = {};
  /// The handle or name of an existing lease to attach to; excludes `logical_devices`. Default: the
  /// variable LGPU_LEASE. A set variable is the decision of the program's user: its lease is used in
  /// place of `logical_devices`, and a note says so.
  std::string lease = {};
  /// A name for the lease that is created.
  std::string lease_name = {};
  /// A runtime directory of lgpud, or `local`, or `local:2x1GiB` (this process alone, with simulated
  /// GPUs). Default: LGPU_ENDPOINT; else the system's daemon; else the user's.
  std::string endpoint = {};
  /// Default: LGPU_LOG_DEVICE_PLACEMENT, else off.
  std::optional<bool> log_device_placement = {};
  PlacementLogFormat placement_log_format = PlacementLogFormat::kEager;
  /// Default: LGPU_SOFT_PLACEMENT, else on.
  std::optional<bool> soft_device_placement = {};
  DevicePolicy device_policy = DevicePolicy::kSilent;
  /// An op whose inputs are int32 or int64, of at most 64 elements each, and on the CPU, stays there unless a
  /// device is asked for. Default: TF_EAGER_ENABLE_SMALL_TENSOR_CPU_PINNING, else off.
  std::optional<bool> pin_small_ops = {};
  /// How long an allocation may wait for memory that other programs use or that is leaving; at the limit also
  /// for other threads of the program to free memory, if they used the device within that time. For idle
  /// memory of another program it waits up to 100 ms in any case.
  std::chrono::milliseconds allocation_timeout = std::chrono::seconds(10);
  /// One in this many ops that run a kernel on a logical GPU has its device time measured and in its
  /// placement record. 1: every op, 0: none. Constants and copies are not measured, nor are ops while 1,024
  /// measured ones wait.
  std::uint32_t device_time_every = 64;
  /// Registers Cast on GPUs; TensorFlow's guide has it on the CPU only.
  bool cast_on_gpu = false;
  /// MatMul of float on real GPUs rounds its factors to 10 bits, which tensor cores multiply faster.
  /// TensorFlow does so by default (enable_tensor_float_32_execution).
  bool tensor_float_32 = false;
  /// Gets every placement line and note instead of stderr; called on the thread that runs the op, within it.
  /// It may let the Context go, which then ends after the ops under way. Close is FAILED_PRECONDITION in it.
  std::function<void(std::string_view line)> log_sink = {};
};

/// TensorFlow's DeviceAttributes. Numbers that are not known are absent.
struct DeviceAttributes {
  /// Another device of the program that this one reaches fast.
  struct Link {
    int device_id = 0;  // GPU:device_id
    std::string type;   // "SAME_DEVICE": it is on the same card
    int strength = 0;   // 1000 for SAME_DEVICE
  };
  std::string name;         // "/job:localhost/replica:0/task:0/device:GPU:0"
  std::string device_type;  // "GPU", "CPU"
  Bytes memory_limit;       // of a CPU: TensorFlow's nominal 256 MiB, which nothing enforces
  std::optional<int> bus_id = {};
  std::optional<int> numa_node = {};
  std::vector<Link> links = {};
  std::uint64_t incarnation = 0;          // random, never 0; another one in another Context
  std::string physical_device_desc = {};  // "device: 0, name: ..., pci bus id: ..., compute capability: 9.0"
};

/// TensorFlow's LogicalDevice.
struct LogicalDeviceName {
  std::string name;         // "/device:GPU:0"
  std::string device_type;  // "GPU", "CPU"
  friend bool operator==(const LogicalDeviceName&, const LogicalDeviceName&) = default;
};

/// TensorFlow's get_memory_info: bytes in live blocks, now and at their peak.
struct MemoryInfo {
  Bytes current;
  Bytes peak;
};

/// TensorFlow's AllocatorStats of a GPU.
struct AllocatorStats {
  std::uint64_t num_allocs = 0;  // this one, the largest and the peak: since the start or the last reset
  Bytes bytes_in_use;
  Bytes peak_bytes_in_use;
  Bytes largest_alloc_size;
  Bytes bytes_limit;
  Bytes pool_bytes;  // in granted chunks
  Bytes largest_free_block_bytes;
  double fragmentation = 0;

  /// TensorFlow's eight lines; "Reserved" is pool_bytes, and an unknown value is "-".
  LGPU_API std::string DebugString() const;
};

namespace internal {
/// One value of a row. Its user-defined conversion makes overload resolution read `{{5}}` as rows.
template <typename T>
struct RowValue {
  RowValue(T v) : value(v) {}  // NOLINT(google-explicit-constructor)
  T value;
};

/// A number that becomes an element of type T. A fraction does not become a whole number.
template <typename V, typename T>
concept ElementValue = std::is_convertible_v<V, T> && !(std::is_floating_point_v<V> && std::is_integral_v<T>);
}  // namespace internal

/// A Context is a program's connection to its logical devices: it holds a lease (or shares one), and
/// allocates, copies and runs ops on its devices inside their limits. When it goes, every chunk goes
/// back first. Several contexts may live in one process.
///
/// Thread-safety: all members, from any thread. Move-only; a moved-from Context is closed.
/// Fork: the child's copy is dead (FAILED_PRECONDITION); fork and exec attaches anew through LGPU_LEASE.
class LGPU_API Context {
 public:
  /// UNAVAILABLE: no daemon there; NOT_FOUND: no such lease or card; RESOURCE_EXHAUSTED with a
  /// Refusal: not enough memory for a guarantee; INVALID_ARGUMENT, also for a memory_limit below 2 MiB and
  /// for more than 64 devices; PERMISSION_DENIED. Never falls back to the whole GPU.
  static absl::StatusOr<Context> Create(const ContextOptions& options);
  /// With the devices that a Config asks for (config.h): one GPU at least for each visible card, or none, if
  /// none is visible. A Config makes one Context at a time; a strict one makes one in all
  /// (FAILED_PRECONDITION).
  static absl::StatusOr<Context> Create(Config& config);
  /// The same with `options` in place of Config::GetContextOptions, for what a Config has no setter for: a
  /// lease's name, a time-out. INVALID_ARGUMENT: `options` have logical devices, a lease or another endpoint.
  static absl::StatusOr<Context> Create(Config& config, const ContextOptions& options);
  ~Context();
  Context(Context&& other) noexcept;
  Context& operator=(Context&& other) noexcept;

  /// Gives everything back now and waits until the quota is free. Tensors and ops fail afterwards.
  /// Repeating it is fine. UNAVAILABLE: no daemon is there; the next one is told.
  /// FAILED_PRECONDITION, and nothing changes: blocks of Memory are live, or exports of tensors on its GPUs
  /// (tensor_export.h) are in use; IsMemoryInUse tells this error from other errors.
  absl::Status Close();

  /// Closes as the destructor does. Where memory is in use outside, ops end at once and idle chunks go back;
  /// exports and blocks stay usable, and the lease ends with the last of them. Blocks that no LogicalMemory
  /// can free any more go at once.
  void Retire();

  /// Moves the contents of all its tensors to ordinary host memory and gives all memory of its GPUs back, the
  /// guarantee of a lease without other programs too: to lgpud, or for `local` to the driver. Waits for calls
  /// under way and for their work. Until Resume, calls that need a device, a CPU too, and ResizeDevice fail
  /// (FAILED_PRECONDITION, naming Resume). Tensors may go at any time, without waiting. Close ends the
  /// Context. A repeated Suspend does nothing.
  ///
  /// lgpud may order the same, for other programs that need the memory or for `lgpu suspend`. Calls of the
  /// Context then wait for its memory, and tell lgpud that they need it; after `lgpu suspend` they wait for
  /// `lgpu resume`. Meanwhile Suspend changes nothing, and Resume waits at most allocation_timeout
  /// (RESOURCE_EXHAUSTED, without a Refusal).
  ///
  /// On an error the Context goes on as before. FAILED_PRECONDITION: blocks of Memory are live or exports of
  /// tensors in use (IsMemoryInUse), a LogicalMemory of it knows streams of the program's own
  /// (LogicalMemory::ForgetStream), a GPU is preallocated, the Context is closed, or the call comes from a
  /// log_sink. RESOURCE_EXHAUSTED: there is too little host memory.
  absl::Status Suspend() const;
  /// Moves the contents back, to the same addresses, once there is memory for all of them; on each GPU it
  /// waits for that as long as an allocation does (allocation_timeout). Nothing happens if the Context is not
  /// suspended. On an error it stays suspended, and Resume may be repeated. RESOURCE_EXHAUSTED with a
  /// Refusal: other programs have the memory, or the limit is below the contents; UNAVAILABLE: no daemon is
  /// there.
  absl::Status Resume() const;

  /// Tensors that are made from here on keep `owner`, as long as it is there. A binding passes the object
  /// that owns this Context: its tensors then keep the Context open, and the last of them ends it. Callers
  /// have not shared the Context yet.
  void LetTensorsKeep(std::weak_ptr<void> owner);

  /// Exports of tensors on its GPUs that are in use.
  struct ExportCount {
    std::uint64_t exports = 0;
    Bytes bytes;
  };
  ExportCount Exports() const;

  /// The GPUs, in the order of their index, as they were when the Context was made; GetMemoryStats has the
  /// limit of now.
  const std::vector<LogicalDeviceInfo>& logical_devices() const;
  /// TensorFlow's list_logical_devices: the CPUs, then the GPUs; `device_type` "GPU" or "CPU" lists only
  /// these.
  std::vector<LogicalDeviceName> ListLogicalDevices(std::string_view device_type = {}) const;
  /// The same, with the attributes of each and the current limits.
  std::vector<DeviceAttributes> ListDeviceAttributes() const;
  /// A new limit for a GPU while it runs. The limit may be below the bytes held: the GPU then gets no chunk
  /// until it holds less. Tensors stay. RESOURCE_EXHAUSTED with a Refusal: the card cannot guarantee that
  /// much.
  absl::Status ResizeDevice(std::string_view device, const ResizeOptions& options) const;
  /// The handle of the lease ("" for `local`); a child attaches to the lease with it in LGPU_LEASE.
  const std::string& lease() const;
  /// Its name, for people.
  const std::string& lease_name() const;

  /// A tensor with these values, `{1, 2, 3}` or `{{1, 2}, {3, 4}}`, on the device of the innermost
  /// DeviceScope of this thread, else where default placement puts it (the first GPU; int32 too).
  /// INVALID_ARGUMENT if rows differ in length.
  template <typename T>
  absl::StatusOr<Tensor> Constant(std::initializer_list<internal::RowValue<T>> row) const;
  template <typename T>
  absl::StatusOr<Tensor> Constant(std::initializer_list<std::initializer_list<T>> rows) const;
  /// `values.size()` must be the shape's number of elements.
  template <typename T>
  absl::StatusOr<Tensor> Constant(const Shape& shape, std::span<const T> values) const {
    static_assert(kDTypeOf<T> != DType::kInvalid, "not an element type of lgpu");
    return ConstantBytes(kDTypeOf<T>, shape, std::as_bytes(values));
  }
  /// A tensor of one dimension: `Constant<float>(std::span<const float>(...))`, or a vector.
  template <typename T>
  absl::StatusOr<Tensor> Constant(std::span<const T> values) const {
    return Constant<T>(Shape{static_cast<std::int64_t>(values.size())}, values);
  }
  /// A tensor without dimensions: `Constant<float>(3)`.
  template <typename T, internal::ElementValue<T> V>
  absl::StatusOr<Tensor> Constant(V value) const {
    const T element = static_cast<T>(value);
    return Constant<T>(Shape{}, std::span<const T>(&element, 1));
  }
  absl::StatusOr<Tensor> ConstantBytes(DType dtype, const Shape& shape,
                                       std::span<const std::byte> values) const;
  /// A constant in the Context of `tensor`, of its element type and without dimensions: the number beside a
  /// tensor in `2 * tensor`.
  static absl::StatusOr<Tensor> ScalarBeside(const Tensor& tensor, std::span<const std::byte> value);
  /// A tensor of that shape with `value` everywhere: `Fill<float>({2, 3}, 0.5)`. The ops are a constant and
  /// Fill.
  template <typename T, internal::ElementValue<T> V>
  absl::StatusOr<Tensor> Fill(const Shape& shape, V value) const {
    const absl::StatusOr<Tensor> element = Constant<T>(value);
    return element.ok() ? lgpu::Fill(shape, *element) : element.status();
  }

  /// `device` as TensorFlow's get_memory_info takes it ("GPU:0"); errors with its texts. Zeros for a CPU.
  absl::StatusOr<MemoryInfo> GetMemoryInfo(std::string_view device) const;
  /// Peak, number and largest of allocations start again. Nothing happens for a CPU.
  absl::Status ResetMemoryStats(std::string_view device) const;
  absl::StatusOr<AllocatorStats> GetAllocatorStats(std::string_view device) const;
  /// A table for people: every GPU with its numbers and the ops that own most of its memory, and the copies
  /// between devices. Empty once the context is closed.
  std::string MemorySummary() const;
  /// The memory of a GPU ("GPU:0") for kernels of your own: blocks inside its limit, beside those of tensors.
  /// INVALID_ARGUMENT for a CPU, and where there is no such device.
  absl::StatusOr<LogicalMemory> Memory(std::string_view device) const;
  /// The statistics of a GPU's pool.
  absl::StatusOr<MemoryStats> GetMemoryStats(std::string_view device) const;
  /// Gives chunks that no tensor needs back to the daemon; says how much it was.
  absl::StatusOr<Bytes> Trim() const;

  /// Where an op of that name ("MatMul") would run on these inputs if this thread ran it now, and why:
  /// nothing runs. INVALID_ARGUMENT for an unknown op, or a tensor of another Context; an error that the op
  /// itself would return is in the explanation.
  struct ExplainOptions {
    bool transpose_a = false;         // MatMul
    bool transpose_b = false;         // MatMul
    DType cast_to = DType::kInvalid;  // Cast
  };
  absl::StatusOr<PlacementExplanation> Explain(std::string_view op, std::span<const Tensor> inputs,
                                               const ExplainOptions& options) const;
  absl::StatusOr<PlacementExplanation> Explain(std::string_view op, std::span<const Tensor> inputs) const {
    return Explain(op, inputs, {});
  }

  /// TensorFlow 1's "Device mapping:" block, a line for each GPU.
  std::string DeviceMapping() const;
  /// Of threads without a DevicePolicyScope (device_scope.h).
  void SetDevicePolicy(DevicePolicy policy) const;
  void SetLogDevicePlacement(bool on) const;
  void SetSoftDevicePlacement(bool on) const;

  /// How many ops ran on each device (by full name), and how many of them elsewhere than asked for.
  struct OpCount {
    std::string device;
    std::uint64_t ops = 0;
    std::uint64_t soft_placed = 0;
  };
  std::vector<OpCount> OpCounts() const;

  /// Tensors that were copied between devices, automatically or by Identity.
  struct CopyCount {
    std::uint64_t copies = 0;
    Bytes bytes;
  };
  CopyCount CopyCounts() const;
  /// The same by source and target, as full names, in their order.
  struct CopyRoute {
    std::string from;
    std::string to;
    CopyCount count;
  };
  std::vector<CopyRoute> CopyRoutes() const;

 private:
  friend class DevicePolicyScope;
  friend class DeviceScope;
  friend class MirroredStrategy;
  friend struct internal::ContextMaker;
  explicit Context(std::shared_ptr<internal::ContextState> state);

  std::shared_ptr<internal::ContextState> state_;
};

template <typename T>
absl::StatusOr<Tensor> Context::Constant(std::initializer_list<internal::RowValue<T>> row) const {
  std::vector<T> values;
  values.reserve(row.size());
  for (const internal::RowValue<T>& value : row) values.push_back(value.value);
  return Constant<T>(Shape{static_cast<std::int64_t>(values.size())}, std::span<const T>(values));
}

template <typename T>
absl::StatusOr<Tensor> Context::Constant(std::initializer_list<std::initializer_list<T>> rows) const {
  const std::size_t columns = rows.size() == 0 ? 0 : rows.begin()->size();
  std::vector<T> values;
  values.reserve(rows.size() * columns);
  for (const std::initializer_list<T>& row : rows) {
    if (row.size() != columns) return absl::InvalidArgumentError("the rows of a constant differ in length");
    values.insert(values.end(), row.begin(), row.end());
  }
  const Shape shape{static_cast<std::int64_t>(rows.size()), static_cast<std::int64_t>(columns)};
  return Constant<T>(shape, std::span<const T>(values));
}

}  // namespace lgpu

#endif  // LGPU_CONTEXT_H_
