#include "client/runtime/context_state.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <limits>
#include <map>
#include <optional>
#include <random>
#include <string_view>
#include <utility>

#include "absl/strings/cord.h"
#include "base/interrupt.h"
#include "client/runtime/device_text.h"
#include "client/runtime/memory_report.h"
#include "client/session/fork_guard.h"
#include "kernels/text.h"
#include "lgpu/refusal.h"
#include "lgpu/status.h"
#include "lgpu/tensor_export.h"

namespace lgpu::internal {

namespace {

constexpr std::chrono::hours kLongestWait{24};
// How often work that is being measured is asked whether it is done.
constexpr std::chrono::milliseconds kDeviceTimeLook{10};

/// The variable's meaning, if it is set to 1 or 0; anything else is reported and changes nothing.
std::optional<bool> ReadSwitch(const char* name, const PlacementRecorder& recorder) {
  const char* text = std::getenv(name);
  if (text == nullptr) return std::nullopt;
  const std::string_view value = text;
  if (value == "1") return true;
  if (value == "0") return false;
  recorder.Log(
      Cat("lgpu: error: the variable ", name, " is \"", value, "\"; it may be 1 or 0, and is ignored"));
  return std::nullopt;
}

/// TensorFlow's own switch, read as it does.
bool PinSmallOps(const ContextOptions& options, const PlacementRecorder& recorder) {
  constexpr const char* kName = "TF_EAGER_ENABLE_SMALL_TENSOR_CPU_PINNING";
  if (options.pin_small_ops) return *options.pin_small_ops;
  const char* text = std::getenv(kName);
  if (text == nullptr) return false;
  std::string value = text;
  for (char& c : value) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  if (value == "1" || value == "true") return true;
  if (value != "0" && value != "false") {
    recorder.Log(
        Cat("E Failed to parse the env-var ${", kName, "} into bool: ", text, ". Use the default value: 0"));
  }
  return false;
}

// All devices of a lease are of one kind.
KernelRegistry KernelsFor(const std::vector<LogicalDeviceInfo>& devices, const ContextOptions& options) {
  const bool real = !devices.empty() && !devices.front().simulated;
  const KernelRegistry::Options kernels = {.cast_on_gpu = options.cast_on_gpu};
  return real ? KernelRegistry::ForCudaDevices(kernels) : KernelRegistry::ForSimulatedDevices(kernels);
}

constexpr std::size_t kMostOwnersInRefusal = 5;

constexpr char kInUse[] = "lgpu/memory-in-use";

absl::Status InUse(absl::Status status) {
  status.SetPayload(kInUse, absl::Cord());
  return status;
}

/// TensorFlow's line for an op without memory, then the refusal with the tensor and the holders.
absl::Status SayWhat(const absl::Status& status, const Device& device, const Op& op, const TensorSpec& spec) {
  std::optional<Refusal> refusal = GetRefusal(status);
  if (!refusal) return status;
  refusal->what =
      Cat("output of op ", op.name, ", shape ", spec.shape.ToString(), ", ", DTypeName(spec.dtype));
  if (device.is_gpu()) refusal->owners = device.memory().LargestOwners(kMostOwnersInRefusal);
  return PrefixedStatus(
      RefusalStatus(*refusal),
      Cat("OOM when allocating tensor with shape", spec.shape.ToString(), " and type ", DTypeName(spec.dtype),
          " on ", device.name(), " by allocator ", device.allocator_name(), "\n"));
}

}  // namespace

ContextState::ContextState(std::unique_ptr<Lease> lease, const ContextOptions& options,
                           const RuntimeOptions& runtime)
    : memory_(std::move(lease)),
      lease_id_(memory_.lease().id()),
      infos_(InfosOf(memory_.lease().devices())),
      runtime_(runtime),
      policy_(options.device_policy),
      // Milliseconds may count further than nanoseconds.
      allocation_timeout_(std::min<std::chrono::milliseconds>(options.allocation_timeout, kLongestWait)),
      registry_(KernelsFor(infos_, options)),
      placer_(registry_, static_cast<int>(infos_.size()), runtime.cpu_count),
      recorder_(memory_.lease().page(), options.log_sink, options.placement_log_format,
                [lease = &memory_.lease()] { lease->WakeMaintenance(); }) {
  std::optional<bool> logging = options.log_device_placement;
  if (!logging) logging = ReadSwitch("LGPU_LOG_DEVICE_PLACEMENT", recorder_);
  recorder_.set_logging(logging.value_or(false));
  std::optional<bool> soft = options.soft_device_placement;
  if (!soft) soft = ReadSwitch("LGPU_SOFT_PLACEMENT", recorder_);
  set_soft_placement(soft.value_or(true));
  pin_small_ops_ = PinSmallOps(options, recorder_);
  if (!registry_.lacking().empty()) recorder_.Log(Cat("lgpu: note: ", registry_.lacking()));
  std::random_device random;
  for (int i = 0; i < placer_.device_count(); ++i) {
    incarnations_.push_back(std::uint64_t{random()} << 32 | random() | 1);
  }
}

absl::StatusOr<std::shared_ptr<ContextState>> ContextState::Create(std::unique_ptr<Lease> lease,
                                                                   const ContextOptions& options,
                                                                   const RuntimeOptions& runtime) {
  const std::shared_ptr<ContextState> state(new ContextState(std::move(lease), options, runtime));
  LGPU_RETURN_IF_ERROR(state->OpenDevices(options));
  state->recorder().BeforeAll(state->infos(), runtime.strict);
  return state;
}

absl::Status ContextState::OpenDevices(const ContextOptions& options) {
  std::map<int, std::shared_ptr<MatMulLibrary>> libraries;  // by card
  const std::vector<LeasedDevice>& leased = memory_.lease().devices();
  for (std::size_t i = 0; i < leased.size(); ++i) {
    const int index = static_cast<int>(i);
    Device::GpuParts parts;
    parts.index = index;
    parts.card = leased[i].backend_device;
    parts.cuda_device = CudaDeviceOf(infos_[i]);
    parts.backend = &memory_.lease().backend();
    parts.memory = &memory_.memory(index);
    if (const int place = leased[i].lease_index; place < ClientPage::kMaxDevices) {
      parts.counters = &memory_.lease().page().devices[static_cast<std::size_t>(place)];
    }
    parts.context_lost = &memory_.lease().page().context_lost;
    parts.priority = i < options.logical_devices.size() ? options.logical_devices[i].priority : 0;
    parts.time_every = options.device_time_every;
    if (!leased[i].card.simulated) {
      std::shared_ptr<MatMulLibrary>& library = libraries[parts.card];
      if (library == nullptr) library = MatMulLibrary::Make({.tensor_float_32 = options.tensor_float_32});
      parts.matmul = library;
    }
    LGPU_ASSIGN_OR_RETURN(std::unique_ptr<Device> device, Device::Open(std::move(parts)));
    devices_.push_back(std::move(device));
  }
  for (int i = 0; i < runtime_.cpu_count; ++i) devices_.push_back(std::make_unique<Device>(i));
  StartUpkeep();
  return absl::OkStatus();
}

void ContextState::StartUpkeep() {
  memory_.StartUpkeep([this](Maintenance::TimePoint now) {
    LookForOrders();
    return RecordMeasured(now);
  });
}

std::optional<Maintenance::TimePoint> ContextState::RecordMeasured(Maintenance::TimePoint now) {
  bool look_again = false;
  for (const auto& device : devices_) {
    if (!device->is_gpu()) continue;
    recorder_.RecordMeasured(*device, OpTimers::Which::kDone);
    look_again = look_again || device->timers().NeedsAnotherLook();
  }
  return look_again ? std::optional(now + kDeviceTimeLook) : std::nullopt;
}

std::vector<DeviceAttributes> ContextState::Attributes() const {
  constexpr int kSameDevice = 1000;
  const int gpus = placer_.gpu_count();
  std::vector<DeviceAttributes> all;
  for (int i = 0; i < placer_.device_count(); ++i) {  // the CPUs, then the GPUs
    const int position = i < runtime_.cpu_count ? gpus + i : i - runtime_.cpu_count;
    DeviceAttributes& device = all.emplace_back();
    device.name = ToString(placer_.NameOf(position));
    device.device_type = std::string(DeviceTypeName(placer_.TypeOf(position)));
    device.incarnation = incarnations_[static_cast<std::size_t>(position)];
    if (position >= gpus) {
      device.memory_limit = 256_MiB;
      continue;
    }
    const LogicalDeviceInfo& info = infos_[static_cast<std::size_t>(position)];
    device.memory_limit = devices_[static_cast<std::size_t>(position)]->memory().limit();
    device.numa_node = NumaNodeOf(info);
    if (device.numa_node) device.bus_id = *device.numa_node + 1;
    device.physical_device_desc = PhysicalDeviceDesc(info);
    for (int other = 0; other < gpus; ++other) {
      if (other == position || devices_[static_cast<std::size_t>(other)]->card() !=
                                   devices_[static_cast<std::size_t>(position)]->card())
        continue;
      device.links.push_back({other, "SAME_DEVICE", kSameDevice});
    }
  }
  return all;
}

DeviceRequest ContextState::ResolveScope(std::optional<std::string_view> device,
                                         const DeviceRequest* outer) const {
  if (!device) return placer_.Resolve("");
  return runtime_.strict ? placer_.ResolveSpec(*device, outer) : placer_.Resolve(*device);
}

Bytes ContextState::limit(int index) {
  const auto position = static_cast<std::size_t>(index);
  const GatePass pass(free_gate_);
  return pass ? devices_[position]->memory().limit() : infos_[position].memory_limit;
}

absl::Status ContextState::ResizeGpu(int index, Bytes limit, std::optional<Bytes> guarantee) {
  if (IsForked()) return ForkedError();
  const GatePass pass = Pass();
  if (!pass) return ClosedError();
  const absl::Status resized = memory_.lease().Resize(index, limit, guarantee);
  DevicePool& pool = memory_.memory(index);
  if (!absl::IsFailedPrecondition(resized) || pool.stats().held <= limit) return resized;
  // Idle memory may be all that is in the way.
  LGPU_RETURN_IF_ERROR(pool.Trim().status());
  return memory_.lease().Resize(index, limit, guarantee);
}

/// close_mutex_, which orders of lgpud's give up for it.
class ABSL_SCOPED_LOCKABLE ContextState::ClosersLock {
 public:
  explicit ClosersLock(ContextState& state) ABSL_EXCLUSIVE_LOCK_FUNCTION(state.close_mutex_) : state_(state) {
    state_.closers_.fetch_add(1);
    state_.close_mutex_.Lock();
    state_.closers_.fetch_sub(1);
  }
  ~ClosersLock() ABSL_UNLOCK_FUNCTION() { state_.close_mutex_.Unlock(); }
  ClosersLock(const ClosersLock&) = delete;
  ClosersLock& operator=(const ClosersLock&) = delete;

 private:
  ContextState& state_;
};

ContextState::~ContextState() {
  if (IsForked()) {
    for (const auto& device : devices_) device->Abandon();
    (void)orders_.release();
    return;
  }
  // A Close that found no daemon has waited for one already.
  const ClosersLock lock(*this);
  if (closed_) return;
  gate_.CloseAndWait();
  CloseNow().IgnoreError();
}

absl::Status ContextState::CheckNothingLent() const {
  LGPU_RETURN_IF_ERROR(CheckNoExports());
  for (const auto& device : devices_) {
    if (!device->is_gpu()) continue;
    if (const absl::Status live = device->caller_memory().CheckNoneLive(); !live.ok()) return InUse(live);
  }
  return absl::OkStatus();
}

absl::Status ContextState::Close() {
  if (IsForked()) return ForkedError();
  if (PlacementRecorder::IsInSink()) {
    return absl::FailedPreconditionError(
        "a log_sink runs within an op, and an InterruptScope's function within a call, which the end of a "
        "Context waits for, so it cannot close one; let the "
        "Context go, which then ends after the op, or close it after the op");
  }
  const ClosersLock lock(*this);
  if (!closed_) {
    LGPU_RETURN_IF_ERROR(CheckNothingLent());
    gate_.CloseAndWait();
    absl::Status lent = CheckNothingLent();
    if (lent.ok()) lent = EndExports();
    if (!lent.ok()) {
      if (!IsRetired()) gate_.Reopen();
      return lent;
    }
  }
  return CloseNow();
}

absl::Status ContextState::CloseNow() {
  saved_.clear();
  if (!closed_) ShutDownDevices();
  // A daemon that was away may be back by now; a call that was interrupted is made again.
  if (!lease_is_closed_) {
    const absl::Status status = memory_.Close();
    lease_is_closed_ = !absl::IsUnavailable(status) && !absl::IsCancelled(status);
    if (!lease_is_closed_) return close_status_.ok() ? status : close_status_;
    close_status_.Update(status);
  }
  return close_status_;
}

void ContextState::Retire() {
  if (IsForked()) return;
  retired_.store(true);
  if (!LeaveToLastOp()) FinishRetire();
}

bool ContextState::LeaveToLastOp() {
  if (!PlacementRecorder::IsInSink()) return false;
  {
    const MutexLock lock(kept_mutex_);
    kept_ = shared_from_this();
  }
  if (gate_.CloseForLast()) EndRetired();
  return true;
}

// A gate that was left to the last thread calls it again for each thread that finds it closed.
void ContextState::EndRetired() {
  std::shared_ptr<ContextState> kept;
  {
    const MutexLock lock(kept_mutex_);
    kept = std::move(kept_);
  }
  if (kept != nullptr) FinishRetire();
}

void ContextState::FinishRetire() {
  {
    const ClosersLock lock(*this);
    if (closed_) return;
    gate_.CloseAndWait();
    for (const auto& device : devices_) {
      if (device->is_gpu() && IsLent()) device->memory().Trim().IgnoreError();
    }
  }
  CloseRetired();
}

bool ContextState::IsLent() const {
  bool has_handles = false;
  {
    const MutexLock lock(exports_mutex_);
    if (exports_.exports != 0) return true;
    has_handles = memory_handles_ != 0;
  }
  return std::any_of(devices_.begin(), devices_.end(), [has_handles](const auto& device) {
    if (!device->is_gpu()) return false;
    const CallerMemory::Live live = device->caller_memory().live();
    return live.exported != 0 || (has_handles && live.blocks != 0);
  });
}

void ContextState::CloseIfDone() {
  if (IsForked() || !IsRetired() || IsLent() || LeaveToLastOp()) return;
  CloseRetired();
}

void ContextState::CloseRetired() {
  if (IsLent()) return;
  const ClosersLock lock(*this);
  if (closed_) return;
  gate_.CloseAndWait();
  if (!IsLent() && EndExports().ok()) CloseNow().IgnoreError();
}

void ContextState::AddMemoryHandle() {
  const MutexLock lock(exports_mutex_);
  ++memory_handles_;
}

void ContextState::RemoveMemoryHandle() {
  if (IsForked()) return;
  {
    const MutexLock lock(exports_mutex_);
    --memory_handles_;
  }
  CloseIfDone();
}

absl::Status ContextState::AddExport(Bytes bytes) {
  const MutexLock lock(exports_mutex_);
  if (exports_ended_) return ClosedError();
  ++exports_.exports;
  exports_.bytes += bytes;
  return absl::OkStatus();
}

void ContextState::RemoveExport(Bytes bytes) {
  if (IsForked()) return;
  {
    const MutexLock lock(exports_mutex_);
    --exports_.exports;
    exports_.bytes -= bytes;
  }
  CloseIfDone();
}

Context::ExportCount ContextState::exports() const {
  const MutexLock lock(exports_mutex_);
  return exports_;
}

absl::Status ContextState::CheckNoExports() const {
  const MutexLock lock(exports_mutex_);
  return ExportsError();
}

absl::Status ContextState::EndExports() {
  const MutexLock lock(exports_mutex_);
  LGPU_RETURN_IF_ERROR(ExportsError());
  exports_ended_ = true;
  return absl::OkStatus();
}

absl::Status ContextState::ExportsError() const {
  if (exports_.exports == 0) return absl::OkStatus();
  return InUse(absl::FailedPreconditionError(
      Cat(exports_.exports, exports_.exports == 1 ? " array (" : " arrays (", FormatBytes(exports_.bytes),
          exports_.exports == 1 ? ") still uses" : ") still use",
          " memory of this Context outside lgpu; drop them, and try again")));
}

void ContextState::ShutDownDevices() {
  shuts_down_.store(true);
  memory_.StopUpkeep();
  orders_->Stop();
  free_gate_.CloseAndWait();
  memory_.StopUpkeep();
  for (const auto& device : devices_) {
    close_status_.Update(device->Synchronize());
    if (device->is_gpu()) recorder_.RecordMeasured(*device, OpTimers::Which::kAll);
    close_status_.Update(device->Shutdown());
  }
  closed_ = true;
}

absl::Status ContextState::ClosedError() const {
  if (IsForked()) return ForkedError();
  if (Interrupt::HasHappened()) return Interrupt::Error();  // while it waited for the gate
  // A gate that was held may be open again by now.
  if (was_suspended_.load() && !gate_.is_closed()) {
    return absl::FailedPreconditionError(
        "the Context is suspended: the contents of its tensors are in host memory\n  try: Resume, then the "
        "same call");
  }
  return absl::FailedPreconditionError(
      "the Context is closed: its memory is returned and the contents of its tensors are gone; open another "
      "one");
}

absl::StatusOr<std::shared_ptr<TensorBuffer>> ContextState::Allocate(
    const std::shared_ptr<ContextState>& state, Device& device, const TensorSpec& spec, const Op& op,
    Device::FilledBy filled_by) {
  const auto most =
      std::numeric_limits<std::int64_t>::max() / static_cast<std::int64_t>(ElementBytes(spec.dtype));
  if (spec.shape.elements() > most) {
    return absl::InvalidArgumentError(Cat("the output of op ", op.name, ", shape ", spec.shape.ToString(),
                                          ", ", DTypeName(spec.dtype),
                                          ", has more bytes than 63 bits can count"));
  }
  const Bytes bytes = TensorBuffer::SpecBytes(spec);
  Block block;
  if (!bytes.is_zero()) {
    absl::StatusOr<Block> allocated = state->AllocateInTurn(device, bytes, op.name, filled_by);
    if (!allocated.ok()) return SayWhat(allocated.status(), device, op, spec);
    block = *allocated;
  }
  return std::make_shared<TensorBuffer>(state, device, spec, block);
}

}  // namespace lgpu::internal

namespace lgpu {

bool IsMemoryInUse(const absl::Status& status) { return status.GetPayload(internal::kInUse).has_value(); }

}  // namespace lgpu
