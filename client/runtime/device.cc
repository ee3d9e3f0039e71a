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
    : type_(DeviceType::kGpu),
      name_(Cat(kLocalTask, "/device:GPU:", parts.index)),
      gpu_(std::move(parts)),
      workspace_(std::make_unique<Workspace>(*gpu_.pool)) {}

Device::~Device() {
  // Shutdown says what went wrong; here nobody listens.
  Shutdown().IgnoreError();
}

std::uint16_t Device::record_id() const {
  return is_gpu() ? static_cast<std::uint16_t>(gpu_.index) : PlacementEntry::kHostDevice;
}

absl::StatusOr<Block> Device::Allocate(Bytes bytes, std::string_view op, std::chrono::nanoseconds timeout,
                                       FilledBy filled_by) {
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
  absl::StatusOr<Block> block = AllocateGpu(bytes, op, timeout, filled_by);
  if (block.ok()) {
    const std::uint64_t size = block->bytes.count();
    std::uint64_t largest = largest_allocation();
    while (largest < size &&
           !largest_allocation_.compare_exchange_weak(largest, size, std::memory_order_relaxed)) {
    }
  }
  ClientPage::Device* counters = gpu_.counters;
  if (counters == nullptr) return block;
  if (!block.ok()) {
    counters->refusals.fetch_add(1, std::memory_order_relaxed);
    PublishStats();
    return block;
  }
  // The peak is of what is counted here: while the page moves to another daemon, its counts may be behind.
  const std::uint64_t size = block->bytes.count();
  const std::uint64_t used = used_.fetch_add(size, std::memory_order_relaxed) + size;
  counters->used.fetch_add(size, std::memory_order_relaxed);
  std::uint64_t peak = counters->peak_used.load(std::memory_order_relaxed);
  while (peak < used && !counters->peak_used.compare_exchange_weak(peak, used, std::memory_order_relaxed)) {
  }
  counters->requested.fetch_add(bytes.count(), std::memory_order_relaxed);
  counters->live_blocks.fetch_add(1, std::memory_order_relaxed);
  counters->allocations.fetch_add(1, std::memory_order_relaxed);
  return block;
}

// Before it asks for anybody else's memory, the device gives up what it does not need itself.
absl::StatusOr<Block> Device::AllocateGpu(Bytes bytes, std::string_view op, std::chrono::nanoseconds timeout,
                                          FilledBy filled_by) {
  AllocateOptions options{.op = op, .spare_only = true};
  if (filled_by == FilledBy::kHost && bytes > kSmallCopy) options.filled_on = kUpload;
  std::optional<Workspace::Shortage> shortage;
  if (gpu_.matmul != nullptr) {
    absl::StatusOr<Block> block = gpu_.pool->Allocate(bytes, options);
    if (block.ok() || !absl::IsResourceExhausted(block.status())) return block;
    shortage.emplace(*workspace_);
  }
  options.spare_only = false;
  options.timeout = timeout;
  return gpu_.pool->Allocate(bytes, options);
}

void Device::Free(const Block& block, Bytes requested) {
  if (!is_gpu()) {
    ::operator delete(block.address, kHostAlignment);
    return;
  }
  // Counted before the pool has it: whoever gets the memory next counts it too, and the sum of both could be
  // seen as more than the limit.
  if (gpu_.counters != nullptr) {
    used_.fetch_sub(block.bytes.count(), std::memory_order_relaxed);
    gpu_.counters->used.fetch_sub(block.bytes.count(), std::memory_order_relaxed);
    gpu_.counters->requested.fetch_sub(requested.count(), std::memory_order_relaxed);
    gpu_.counters->live_blocks.fetch_sub(1, std::memory_order_relaxed);
  }
  const absl::Status freed = gpu_.pool->Free(block);
  LGPU_CHECK(freed.ok());
}

// The pool made the upload stream wait for those who had the memory before, and for nobody else: the copy
// runs beside kernels that were queued earlier.
absl::Status Device::CopyFromHost(std::byte* to, std::span<const std::byte> from) {
  const Bytes bytes(from.size());
  if (!is_gpu()) {
    std::memcpy(to, from.data(), from.size());
    return absl::OkStatus();
  }
  if (bytes <= kSmallCopy) return gpu_.backend->CopyToDevice(stream(), to, from.data(), bytes);
  LGPU_RETURN_IF_ERROR(gpu_.backend->CopyToDevice(stream(kUpload), to, from.data(), bytes));
  return OrderAfter(*gpu_.backend, stream(), stream(kUpload));
}

// On a stream of its own it keeps nobody's kernels waiting, which are queued while it runs. This thread waits
// for those that were queued before: on that stream, others' downloads would wait for them too.
absl::Status Device::CopyToHost(std::span<std::byte> to, const std::byte* from) {
  const Bytes bytes(to.size());
  if (!is_gpu()) {
    std::memcpy(to.data(), from, to.size());
    return absl::OkStatus();
  }
  if (bytes <= kSmallCopy) return gpu_.backend->CopyToHost(stream(), to.data(), from, bytes);
  LGPU_RETURN_IF_ERROR(Synchronize());
  return gpu_.backend->CopyToHost(stream(kDownload), to.data(), from, bytes);
}

absl::Status Device::Launch(const KernelLaunch& launch) {
  if (is_gpu()) return gpu_.backend->Launch(stream(), launch);
  launch.host_function(launch.arguments);
  return absl::OkStatus();
}

absl::Status Device::CallLibrary(absl::FunctionRef<absl::Status(const LibraryCall&)> call) {
  if (!is_gpu() || gpu_.matmul == nullptr) return Launcher::CallLibrary(call);
  // Outlives the backend's call, which counts what was queued at its end: the pool must not have the memory
  // back before it can tell that the stream is not done with it.
  absl::InlinedVector<std::shared_ptr<const Block>, 1> taken;
  return gpu_.backend->CallLibrary(stream(), [&](void* stream) {
    return call({.stream = stream,
                 .matmul = gpu_.matmul.get(),
                 .workspace_bytes = workspace_->Size().count(),
                 .with_workspace = [&](std::uint64_t at_least,
                                       absl::FunctionRef<absl::Status(std::span<std::byte>)> queue)
                     -> std::optional<absl::Status> {
                   std::shared_ptr<const Block> block = workspace_->Take(Bytes(at_least));
                   if (block == nullptr) return std::nullopt;
                   taken.push_back(block);
                   const MutexLock lock(workspace_order_);
                   return queue({block->address, block->bytes.count()});
                 }});
  });
}

absl::Status Device::OpenLibrary() {
  if (library_open_.load(std::memory_order_relaxed)) return absl::OkStatus();
  LGPU_RETURN_IF_ERROR(CallLibrary([](const LibraryCall& call) { return call.matmul->Open(); }));
  library_open_.store(true, std::memory_order_relaxed);
  return absl::OkStatus();
}

absl::Status Device::Synchronize() {
  if (!is_gpu()) return absl::OkStatus();
  LGPU_ASSIGN_OR_RETURN(const Fence fence, gpu_.backend->Record(stream()));
  return gpu_.backend->Wait(fence);
}

absl::StatusOr<Bytes> Device::Trim() {
  workspace_->GiveUp();
  LGPU_RETURN_IF_ERROR(Synchronize());
  LGPU_ASSIGN_OR_RETURN(const Bytes trimmed, gpu_.pool->Trim(Bytes(~std::uint64_t{0})));
  PublishStats();
  return trimmed;
}

absl::StatusOr<Pool::Trimmed> Device::TrimFor(Bytes bytes) {
  LGPU_ASSIGN_OR_RETURN(const Pool::Trimmed first, gpu_.pool->TrimFor(bytes));
  if (first.returned >= bytes || workspace_->GiveUp().is_zero()) return first;
  LGPU_ASSIGN_OR_RETURN(const Pool::Trimmed second, gpu_.pool->TrimFor(bytes - first.returned));
  return Pool::Trimmed{first.returned + second.returned, second.pending};
}

void Device::CountOp(bool soft_placed) {
  const std::uint64_t before = ops_.fetch_add(1, std::memory_order_relaxed);
  if (soft_placed) soft_placed_.fetch_add(1, std::memory_order_relaxed);
  if (gpu_.counters == nullptr) return;
  gpu_.counters->ops.store(before + 1, std::memory_order_relaxed);
  if (before % kOpsPerPublish == 0) PublishStats();
}

void Device::PublishStats() {
  if (gpu_.counters == nullptr) return;
  gpu_.counters->largest_free_block.store(gpu_.pool->stats().largest_free_block.count(),
                                          std::memory_order_relaxed);
}

void Device::ResetStats() {
  gpu_.pool->ResetPeak();
  largest_allocation_.store(0, std::memory_order_relaxed);
  allocations_before_reset_.store(stats().num_allocs, std::memory_order_relaxed);
  if (gpu_.counters == nullptr) return;
  gpu_.counters->peak_used.store(used_.load(std::memory_order_relaxed), std::memory_order_relaxed);
}

std::vector<Refusal::Owner> Device::LargestOwners(std::size_t n) const {
  std::vector<Refusal::Owner> owners;
  for (const MemoryOwner& owner : gpu_.pool->LargestOwners(n)) {
    owners.push_back({owner.op, owner.bytes, owner.blocks});
  }
  return owners;
}

std::string Device::allocator_name() const { return is_gpu() ? Cat("GPU_", index(), "_lgpu") : "cpu"; }

absl::Status Device::Shutdown() {
  if (gpu_.pool == nullptr) return absl::OkStatus();
  absl::Status status = Synchronize();
  gpu_.timers.reset();
  if (gpu_.matmul != nullptr) {
    // The last device of a card closes its library, which needs the context.
    status.Update(gpu_.backend->CallLibrary(stream(), [this](void*) {
      gpu_.matmul.reset();
      return absl::OkStatus();
    }));
    if (gpu_.matmul != nullptr) gpu_.matmul->Abandon();
    gpu_.matmul.reset();
  }
  workspace_.reset();
  for (const StreamHandle stream : gpu_.streams) status.Update(gpu_.backend->DestroyStream(stream));
  gpu_.pool.reset();
  return status;
}

void Device::Abandon() {
  // Its destructor would unmap and return chunks that belong to the parent process.
  [[maybe_unused]] const Pool* const leaked = gpu_.pool.release();
  [[maybe_unused]] const OpTimers* const timers = gpu_.timers.release();
  [[maybe_unused]] const Workspace* const workspace = workspace_.release();
  [[maybe_unused]] const auto* const library = new std::shared_ptr<MatMulLibrary>(std::move(gpu_.matmul));
}

}  // namespace lgpu::internal
