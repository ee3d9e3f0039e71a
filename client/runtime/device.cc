#include "client/runtime/device.h"

#include <cstring>
#include <new>
#include <optional>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "base/check.h"
#include "kernels/text.h"
#include "lgpu/refusal.h"
#include "lgpu/status.h"

namespace lgpu::internal {

namespace {

constexpr std::align_val_t kHostAlignment{64};
constexpr std::uint64_t kOpsPerPublish = 256;

constexpr std::string_view kLocalTask = "/job:localhost/replica:0/task:0";

}  // namespace

absl::Status OrderAfter(DeviceWork& backend, StreamHandle later, StreamHandle earlier) {
  const absl::StatusOr<Fence> fence = backend.Record(earlier);
  const absl::Status status = fence.ok() ? backend.WaitOnStream(later, *fence) : fence.status();
  return status.ok() ? status : backend.Drain(earlier);
}

Device::Device(int cpu_index) : type_(DeviceType::kCpu), name_(Cat(kLocalTask, "/device:CPU:", cpu_index)) {
  gpu_.index = cpu_index;
}

Device::Device(GpuParts parts)
    : type_(DeviceType::kGpu), name_(Cat(kLocalTask, "/device:GPU:", parts.index)), gpu_(std::move(parts)) {}

absl::StatusOr<std::unique_ptr<Device>> Device::Open(GpuParts parts) {
  const std::uint32_t time_every = parts.time_every;
  std::unique_ptr<Device> device(new Device(std::move(parts)));
  for (StreamHandle& stream : device->streams_) {
    LGPU_ASSIGN_OR_RETURN(stream, device->gpu_.backend->CreateStream(device->card(), device->gpu_.priority));
  }
  for (const Streams stream : {kHome, kUpload}) {
    LGPU_ASSIGN_OR_RETURN(const StreamId id, device->memory().AddStream(device->stream(stream)));
    LGPU_CHECK(id == stream);
  }
  device->caller_memory_ = std::make_unique<CallerMemory>(device->memory(), device->backend(), device->card(),
                                                          CallerMemory::PoolUse::kShared);
  device->timers_ = std::make_unique<OpTimers>(device->backend(), device->stream(), time_every);
  return device;
}

Device::~Device() {
  // A destructor cannot return Shutdown's error.
  Shutdown().IgnoreError();
}

std::uint16_t Device::record_id() const {
  return is_gpu() ? static_cast<std::uint16_t>(gpu_.index) : PlacementEntry::kHostDevice;
}

absl::StatusOr<Block> Device::Allocate(Bytes bytes, std::string_view op, std::chrono::nanoseconds timeout,
                                       FilledBy filled_by, InterruptHandler* interrupt) {
  if (!is_gpu()) {
    void* data = ::operator new(bytes.count(), kHostAlignment, std::nothrow);
    if (data != nullptr) return Block{static_cast<std::byte*>(data), bytes, 0};
    Refusal refusal;
    refusal.reason = RefusalReason::kBackend;
    refusal.device = "/device:CPU:0";
    refusal.asked = bytes;
    refusal.advice = {"a smaller tensor, or a machine with more memory"};
    return RefusalStatus(refusal);
  }
  AllocateOptions options{.op = op, .timeout = timeout, .interrupt = interrupt};
  if (filled_by == FilledBy::kHost && bytes > kSmallCopy) options.filled_on = kUpload;
  return gpu_.memory->Allocate(bytes, options);
}

void Device::Free(const Block& block, Bytes requested) {
  if (!is_gpu()) {
    ::operator delete(block.address, kHostAlignment);
    return;
  }
  const absl::Status freed = gpu_.memory->Free(block, requested);
  LGPU_CHECK(freed.ok());
}

// The pool made the upload stream wait for the earlier users of the memory only, so the copy
// runs beside kernels that were queued earlier.
absl::Status Device::CopyFromHost(std::byte* to, std::span<const std::byte> from) {
  const Bytes bytes(from.size());
  if (!is_gpu()) {
    std::memcpy(to, from.data(), from.size());
    return absl::OkStatus();
  }
  if (bytes <= kSmallCopy) return Noted(gpu_.backend->CopyToDevice(stream(), to, from.data(), bytes));
  LGPU_RETURN_IF_ERROR(Noted(gpu_.backend->CopyToDevice(stream(kUpload), to, from.data(), bytes)));
  return OrderAfter(*gpu_.backend, stream(), stream(kUpload));
}

// The copy has a stream of its own, so kernels that are queued while it runs do not wait for it. This thread,
// and not the copy's stream, waits for kernels queued before: else other threads' downloads would wait for
// them too.
absl::Status Device::CopyToHost(std::span<std::byte> to, const std::byte* from) {
  const Bytes bytes(to.size());
  if (!is_gpu()) {
    std::memcpy(to.data(), from, to.size());
    return absl::OkStatus();
  }
  if (bytes <= kSmallCopy) return Noted(gpu_.backend->CopyToHost(stream(), to.data(), from, bytes));
  LGPU_RETURN_IF_ERROR(Synchronize());
  return Noted(gpu_.backend->CopyToHost(stream(kDownload), to.data(), from, bytes));
}

absl::Status Device::Launch(const KernelLaunch& launch) {
  if (is_gpu()) return Noted(gpu_.backend->Launch(stream(), launch));
  launch.host_function(launch.arguments);
  return absl::OkStatus();
}

absl::Status Device::CallLibrary(absl::FunctionRef<absl::Status(const LibraryCall&)> call) {
  if (!is_gpu() || gpu_.matmul == nullptr) return Launcher::CallLibrary(call);
  // Outlives the backend's call, which counts the queued work at its end: only then can the pool tell that
  // the stream still uses the memory.
  absl::InlinedVector<std::shared_ptr<const Block>, 1> taken;
  return gpu_.backend->CallLibrary(stream(), [&](void* stream) {
    return call({.stream = stream,
                 .matmul = gpu_.matmul.get(),
                 .workspace_bytes = gpu_.memory->workspace().Size().count(),
                 .with_workspace = [&](std::uint64_t at_least,
                                       absl::FunctionRef<absl::Status(std::span<std::byte>)> queue)
                     -> std::optional<absl::Status> {
                   std::shared_ptr<const Block> block = gpu_.memory->workspace().Take(Bytes(at_least));
                   if (block == nullptr) return std::nullopt;
                   taken.push_back(block);
                   const MutexLock lock(workspace_order_);
                   return queue({block->address, block->bytes.count()});
                 }});
  });
}

// A block like a tensor's: the pool reuses it only after the work that was launched here.
absl::Status Device::WithScratch(Bytes bytes,
                                 absl::FunctionRef<absl::Status(std::span<std::byte> scratch)> launch) {
  if (!is_gpu()) return launch({});
  const absl::StatusOr<Block> block =
      Allocate(bytes, "scratch", std::chrono::nanoseconds::zero(), FilledBy::kKernel);
  if (!block.ok()) return launch({});
  const absl::Status status = launch({block->address, bytes.count()});
  Free(*block, bytes);
  return status;
}

absl::Status Device::OpenLibrary() {
  if (library_open_.load(std::memory_order_relaxed)) return absl::OkStatus();
  LGPU_RETURN_IF_ERROR(WithScratch(Bytes(MatMulLibrary::kScratchBytes), [&](std::span<std::byte> scratch) {
    return CallLibrary([&](const LibraryCall& call) { return call.matmul->Open(call, scratch); });
  }));
  library_open_.store(true, std::memory_order_relaxed);
  return absl::OkStatus();
}

absl::Status Device::Synchronize() {
  if (!is_gpu()) return absl::OkStatus();
  LGPU_ASSIGN_OR_RETURN(const Fence fence, gpu_.backend->Record(stream()));
  return Noted(gpu_.backend->Wait(fence));
}

absl::Status Device::LetFollow(void* stream) {
  LGPU_ASSIGN_OR_RETURN(const Fence fence, gpu_.backend->Record(this->stream()));
  return Noted(gpu_.backend->WaitOnProgramStream(stream, fence));
}

void Device::EndOutsideUse(const Block& block, UsedOn streams) {
  if (streams == UsedOn::kDefaultStreams && caller_memory_->UseOnDefaults(block).ok()) return;
  // It fails on a device with a fault, where nothing runs any more.
  Noted(gpu_.backend->DrainDevice(card())).IgnoreError();
}

absl::Status Device::CopyFromOutside(std::byte* to, const std::byte* from, Bytes bytes) {
  LGPU_RETURN_IF_ERROR(Noted(gpu_.backend->CopyFromProgram(stream(), to, from, bytes)));
  return Synchronize();
}

absl::StatusOr<void*> Device::NativeStream() {
  void* native = nullptr;
  LGPU_RETURN_IF_ERROR(gpu_.backend->CallLibrary(stream(), [&native](void* stream) {
    native = stream;
    return absl::OkStatus();
  }));
  return native;
}

absl::Status Device::Noted(absl::Status status) const {
  if (!status.ok() && gpu_.backend->HasLostContext()) gpu_.context_lost->store(1, std::memory_order_relaxed);
  return status;
}

void Device::CountOp(bool soft_placed) {
  const std::uint64_t before = ops_.fetch_add(1, std::memory_order_relaxed);
  if (soft_placed) soft_placed_.fetch_add(1, std::memory_order_relaxed);
  if (gpu_.counters == nullptr) return;
  gpu_.counters->ops.fetch_add(1, std::memory_order_relaxed);
  if (before % kOpsPerPublish == 0) gpu_.memory->PublishStats();
}

std::string Device::allocator_name() const { return is_gpu() ? Cat("GPU_", index(), "_lgpu") : "cpu"; }

absl::Status Device::Shutdown() {
  if (!streams_[kHome]) return absl::OkStatus();
  absl::Status status = Synchronize();
  if (caller_memory_ != nullptr) status.Update(caller_memory_->RemoveStreams());
  timers_.reset();
  if (gpu_.matmul != nullptr) {
    // The last device of a card closes its library, which needs the context.
    status.Update(gpu_.backend->CallLibrary(stream(), [this](void*) {
      gpu_.matmul.reset();
      return absl::OkStatus();
    }));
    if (gpu_.matmul != nullptr) gpu_.matmul->Abandon();
    gpu_.matmul.reset();
  }
  gpu_.memory->workspace().GiveUp();
  for (const Streams stream : {kHome, kUpload}) status.Update(gpu_.memory->RemoveStream(stream));
  for (StreamHandle& stream : streams_) {
    status.Update(gpu_.backend->DestroyStream(stream));
    stream = {};
  }
  return status;
}

void Device::Abandon() {
  // Their memory on the card belongs to the parent process.
  streams_ = {};
  [[maybe_unused]] const OpTimers* const timers = timers_.release();
  [[maybe_unused]] const CallerMemory* const caller_memory = caller_memory_.release();
  [[maybe_unused]] const auto* const library = new std::shared_ptr<MatMulLibrary>(std::move(gpu_.matmul));
}

}  // namespace lgpu::internal
