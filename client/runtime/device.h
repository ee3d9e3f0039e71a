#ifndef LGPU_CLIENT_RUNTIME_DEVICE_H_
#define LGPU_CLIENT_RUNTIME_DEVICE_H_

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "allocator/device/device_work.h"
#include "base/mutex.h"
#include "client/runtime/op_timers.h"
#include "client/session/caller_memory.h"
#include "client/session/device_pool.h"
#include "kernels/op.h"
#include "lgpu/pool.h"
#include "proto/wire/pages.h"

namespace lgpu::internal {

/// Work queued on `later` from now on waits, on the device, for the work queued on `earlier`. If the backend
/// cannot order them this thread waits, so that no block is handed out that `earlier` still works with.
absl::Status OrderAfter(DeviceWork& backend, StreamHandle later, StreamHandle earlier);

/// A Device is where tensors of a context lie and its ops run: the CPU, or a logical GPU with its pool and
/// its stream. It is a Launcher for its own kernels. Thread-safe until Shutdown, which runs alone.
class Device final : public Launcher {
 public:
  /// The streams of a GPU: kernels and copies from other devices; large copies from the host, and to it,
  /// beside them. The first two are known to the memory by these numbers.
  enum Streams : StreamId { kHome, kUpload, kDownload, kStreams };
  /// Up to this a copy is not worth the events that order it.
  static constexpr Bytes kSmallCopy = Bytes(std::uint64_t{64} << 10);
  /// The first writer of a new tensor.
  enum class FilledBy { kKernel, kHost };
  struct GpuParts {
    int index = 0;
    int card = 0;          // index in the backend's devices()
    int cuda_device = -1;  // what CUDA calls the card here; -1: it is simulated
    DeviceWork* backend = nullptr;
    DevicePool* memory = nullptr;                        // outlives the device
    ClientPage::Device* counters = nullptr;              // null: an index that the page has no place for
    std::atomic<std::uint64_t>* context_lost = nullptr;  // ClientPage::context_lost
    int priority = 0;                                    // of the streams
    std::uint32_t time_every = 0;                        // ContextOptions::device_time_every
    std::shared_ptr<MatMulLibrary> matmul;               // of the card; null where devices are simulated
  };
  explicit Device(int cpu_index);  // a CPU
  /// Makes the streams, and gives their numbers to the memory, which has no other stream yet.
  static absl::StatusOr<std::unique_ptr<Device>> Open(GpuParts parts);
  ~Device() override;

  DeviceType type() const { return type_; }
  bool is_gpu() const { return type_ == DeviceType::kGpu; }
  int index() const { return gpu_.index; }
  int card() const { return gpu_.card; }
  int cuda_device() const { return gpu_.cuda_device; }
  const std::string& name() const { return name_; }  // "/job:localhost/replica:0/task:0/device:GPU:0"
  std::uint16_t record_id() const;                   // as PlacementEntry writes it
  StreamHandle stream(Streams stream = kHome) const { return streams_[stream]; }
  DeviceWork& backend() const { return *gpu_.backend; }  // GPUs only
  DevicePool& memory() const { return *gpu_.memory; }    // GPUs only
  /// The program's blocks of it for kernels of its own; until Shutdown. GPUs only.
  CallerMemory& caller_memory() const { return *caller_memory_; }
  OpTimers& timers() const { return *timers_; }  // GPUs only

  /// Memory for `bytes` > 0, for a tensor that `op` makes. RESOURCE_EXHAUSTED carries a Refusal whose `what`
  /// is still empty.
  absl::StatusOr<Block> Allocate(Bytes bytes, std::string_view op, std::chrono::nanoseconds timeout,
                                 FilledBy filled_by, InterruptHandler* interrupt = nullptr);
  void Free(const Block& block, Bytes requested);
  /// Fills memory that was allocated for the host to fill; `from` may go when this returns.
  absl::Status CopyFromHost(std::byte* to, std::span<const std::byte> from);
  /// Waits for queued work of the stream that uses `from`.
  absl::Status CopyToHost(std::span<std::byte> to, const std::byte* from);
  absl::Status Launch(const KernelLaunch& launch) override;
  absl::Status CallLibrary(absl::FunctionRef<absl::Status(const LibraryCall&)> call) override;
  absl::Status WithScratch(Bytes bytes,
                           absl::FunctionRef<absl::Status(std::span<std::byte> scratch)> launch) override;
  /// OK where kernels that need a library find it, else the reason. The first call on a card loads it.
  absl::Status OpenLibrary();
  /// Waits until all work queued on the stream has ended.
  absl::Status Synchronize();

  // For other code of this program that works on the same real GPU, on `stream` of its own: a CUstream.

  /// What that code queues there from now on waits for all that was queued here. INVALID_ARGUMENT: the stream
  /// is of another context.
  absl::Status LetFollow(void* stream);
  /// That code has queued its last work with `block`, which is live: on the default streams, or on others,
  /// which are waited for because they may be destroyed at any time.
  enum class UsedOn { kDefaultStreams, kAnyStream };
  void EndOutsideUse(const Block& block, UsedOn streams);
  /// Fills `to` from memory of the same card that is not the pool's, and waits for that.
  absl::Status CopyFromOutside(std::byte* to, const std::byte* from, Bytes bytes);
  /// The CUstream of this device's work, for code that makes it wait for its own.
  absl::StatusOr<void*> NativeStream();

  /// Counts an op that ran here.
  void CountOp(bool soft_placed);
  std::uint64_t ops() const { return ops_.load(std::memory_order_relaxed); }
  std::uint64_t soft_placed() const { return soft_placed_.load(std::memory_order_relaxed); }
  /// The allocator's name in messages: "GPU_0_lgpu", "cpu".
  std::string allocator_name() const;

  /// Waits for the streams and gives them up; the memory has no stream any more.
  absl::Status Shutdown();
  /// Forgets everything without touching it: in a forked child it is not ours.
  void Abandon();

 private:
  /// Tells the daemon of an error that ends the program's use of GPUs.
  absl::Status Noted(absl::Status status) const;
  explicit Device(GpuParts parts);

  const DeviceType type_;
  const std::string name_;
  GpuParts gpu_;
  std::array<StreamHandle, kStreams> streams_{};  // none of a CPU, or after Shutdown
  std::unique_ptr<OpTimers> timers_;              // GPUs only
  std::unique_ptr<CallerMemory> caller_memory_;   // GPUs only
  // Held while a library queues work that uses the workspace. One call may queue several entries on the
  // stream that hand on values there; another call's work between them would overwrite these.
  Mutex workspace_order_;
  std::atomic<bool> library_open_{false};
  std::atomic<std::uint64_t> ops_{0};
  std::atomic<std::uint64_t> soft_placed_{0};
};

}  // namespace lgpu::internal

#endif  // LGPU_CLIENT_RUNTIME_DEVICE_H_
