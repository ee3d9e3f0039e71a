#include "allocator/device/simulated_backend.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "allocator/device/access_windows.h"
#include "allocator/device/memfd.h"
#include "allocator/device/simulated_regions.h"
#include "allocator/device/simulated_stream.h"
#include "allocator/mutex.h"
#include "allocator/process_epoch.h"
#include "lgpu/refusal.h"
#include "lgpu/status.h"

namespace lgpu {
namespace {

constexpr std::size_t kMaxStreams = 1024;

// A chunk's file, alive while anybody works with it; a handle of it may be gone already.
struct ChunkFile {
  UniqueFd fd;
  int device;
  Bytes bytes;
};

class SimulatedBackend final : public DeviceBackend {
 public:
  explicit SimulatedBackend(SimulatedBackendOptions options)
      : options_(std::move(options)), windows_(options_.devices.size()) {}

  ~SimulatedBackend() override {
    if (epoch_.IsForked()) {
      // The regions were not inherited, and the stream's threads do not exist here: nothing to give back
      // but descriptors.
      regions_.Forget();
      for (StreamSlot& slot : streams_) {
        new std::shared_ptr<SimulatedStream>(std::move(slot.queue));
      }
      return;
    }
    for (StreamSlot& slot : streams_) {
      slot.queue.reset();
    }
  }

  const std::vector<PhysicalDevice>& devices() const override { return options_.devices; }
  std::optional<Bytes> FreeMemory(int) override { return std::nullopt; }

  absl::StatusOr<MemoryHandle> Create(int device, Bytes bytes) override;
  absl::StatusOr<UniqueFd> Export(MemoryHandle memory) override;
  absl::StatusOr<MemoryHandle> Import(int device, UniqueFd fd, Bytes bytes) override;
  absl::Status Release(MemoryHandle memory) override { return TakeUnmapped(memory).status(); }
  absl::Status Reclaim(MemoryHandle memory) override;

  absl::StatusOr<std::byte*> Reserve(int device, Bytes bytes) override;
  absl::Status Unreserve(std::byte* base, Bytes bytes) override;
  absl::Status Map(std::byte* address, MemoryHandle memory) override;
  absl::Status SetAccess(std::byte* address, Bytes bytes) override;
  absl::Status Unmap(std::byte* address) override;

  absl::StatusOr<StreamHandle> CreateStream(int device, int priority) override;
  absl::Status DestroyStream(StreamHandle stream) override;
  absl::StatusOr<Fence> Record(StreamHandle stream) override;
  absl::StatusOr<bool> HasPassed(const Fence& fence) override;
  absl::Status Wait(const Fence& fence) override;
  absl::Status WaitOnStream(StreamHandle stream, const Fence& fence) override;
  absl::Status CopyToDevice(StreamHandle stream, std::byte* to, const void* from, Bytes bytes) override;
  absl::Status CopyToHost(StreamHandle stream, void* to, const std::byte* from, Bytes bytes) override;
  absl::Status CopyOnDevice(StreamHandle stream, std::byte* to, const std::byte* from, Bytes bytes) override;
  absl::Status Launch(StreamHandle stream, const KernelLaunch& launch) override;

 private:
  struct Memory {
    std::shared_ptr<ChunkFile> file;
    bool mapped = false;
  };
  // A handle is slot + kMaxStreams * generation, so that a launch checks its stream without a lock.
  struct StreamSlot {
    std::atomic<std::uint64_t> handle{0};
    int device = 0;                          // guarded by mutex_ where `queue` is
    std::shared_ptr<SimulatedStream> queue;  // asynchronous mode only; guarded by mutex_
  };
  struct LiveStream {
    std::shared_ptr<SimulatedStream> queue;  // null in synchronous mode: all work is done
    int device = 0;
  };

  absl::Status CheckAlive() const;
  absl::Status CheckDevice(int device) const;
  absl::Status CheckChunkSize(int device, Bytes bytes) const;
  MemoryHandle Insert(UniqueFd fd, int device, Bytes bytes);
  absl::StatusOr<std::shared_ptr<ChunkFile>> Find(MemoryHandle memory);
  absl::StatusOr<std::shared_ptr<ChunkFile>> TakeUnmapped(MemoryHandle memory);
  void SetUnmapped(MemoryHandle memory);
  absl::Status CheckNothingQueued(int device);
  absl::Status CheckStream(StreamHandle stream) const;
  absl::StatusOr<LiveStream> FindStream(StreamHandle stream);
  absl::StatusOr<LiveStream> FindFence(const Fence& fence);

  const SimulatedBackendOptions options_;
  const ProcessEpoch epoch_;
  SimulatedRegions regions_;
  AccessWindows windows_;
  Mutex mutex_;
  std::uint64_t next_memory_ ABSL_GUARDED_BY(mutex_) = 1;
  absl::flat_hash_map<MemoryHandle, Memory> memory_ ABSL_GUARDED_BY(mutex_);
  std::uint64_t next_stream_ ABSL_GUARDED_BY(mutex_) = 1;
  std::array<StreamSlot, kMaxStreams> streams_;
};

absl::Status SimulatedBackend::CheckAlive() const {
  if (epoch_.IsForked()) {
    return absl::FailedPreconditionError(
        "this process is a forked child: devices do not work across fork; exec a program, or open devices "
        "in the child only");
  }
  return absl::OkStatus();
}

absl::Status SimulatedBackend::CheckDevice(int device) const {
  LGPU_RETURN_IF_ERROR(CheckAlive());
  if (device < 0 || static_cast<std::size_t>(device) >= options_.devices.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("there is no device ", device, ": this backend has ", options_.devices.size()));
  }
  return absl::OkStatus();
}

absl::Status SimulatedBackend::CheckChunkSize(int device, Bytes bytes) const {
  LGPU_RETURN_IF_ERROR(CheckDevice(device));
  const PhysicalDevice& about = options_.devices[static_cast<std::size_t>(device)];
  if (bytes.is_zero() || bytes != RoundDown(bytes, about.granularity)) {
    return absl::InvalidArgumentError(absl::StrCat("a chunk of ", bytes.count(),
                                                   " bytes was asked for; it has to be a ", "multiple of ",
                                                   FormatBytes(about.granularity)));
  }
  return absl::OkStatus();
}

// ---- physical memory

MemoryHandle SimulatedBackend::Insert(UniqueFd fd, int device, Bytes bytes) {
  auto file = std::make_shared<ChunkFile>(ChunkFile{std::move(fd), device, bytes});
  MutexLock lock(mutex_);
  const MemoryHandle handle{next_memory_++};
  memory_.emplace(handle, Memory{std::move(file)});
  return handle;
}

absl::StatusOr<std::shared_ptr<ChunkFile>> SimulatedBackend::Find(MemoryHandle memory) {
  LGPU_RETURN_IF_ERROR(CheckAlive());
  MutexLock lock(mutex_);
  const auto found = memory_.find(memory);
  if (found == memory_.end()) {
    return absl::NotFoundError(
        absl::StrCat("memory handle ", memory.value, " is not known: released already?"));
  }
  return found->second.file;
}

absl::StatusOr<std::shared_ptr<ChunkFile>> SimulatedBackend::TakeUnmapped(MemoryHandle memory) {
  LGPU_RETURN_IF_ERROR(CheckAlive());
  MutexLock lock(mutex_);
  const auto found = memory_.find(memory);
  if (found == memory_.end()) {
    return absl::NotFoundError(
        absl::StrCat("memory handle ", memory.value, " is not known: released already?"));
  }
  if (found->second.mapped) {
    return absl::FailedPreconditionError(
        absl::StrCat("memory handle ", memory.value, " is still mapped here; unmap it first"));
  }
  std::shared_ptr<ChunkFile> file = std::move(found->second.file);
  memory_.erase(found);
  return file;
}

void SimulatedBackend::SetUnmapped(MemoryHandle memory) {
  MutexLock lock(mutex_);
  memory_.find(memory)->second.mapped = false;
}

absl::StatusOr<MemoryHandle> SimulatedBackend::Create(int device, Bytes bytes) {
  LGPU_RETURN_IF_ERROR(CheckChunkSize(device, bytes));
  const PhysicalDevice& about = options_.devices[static_cast<std::size_t>(device)];
  if (bytes > about.total) {
    Refusal refusal;
    refusal.reason = RefusalReason::kBackend;
    refusal.what = "chunk of device memory";
    refusal.asked = bytes;
    refusal.card = absl::StrCat("GPU ", device, " (simulated)");
    refusal.card_total = about.total;
    return RefusalStatus(refusal);
  }
  LGPU_ASSIGN_OR_RETURN(UniqueFd fd, CreateChunkMemfd(bytes, options_.sparse));
  return Insert(std::move(fd), device, bytes);
}

absl::StatusOr<UniqueFd> SimulatedBackend::Export(MemoryHandle memory) {
  LGPU_ASSIGN_OR_RETURN(const std::shared_ptr<ChunkFile> file, Find(memory));
  UniqueFd fd(fcntl(file->fd.get(), F_DUPFD_CLOEXEC, 0));
  if (!fd) {
    const int error = errno;
    if (error == EMFILE) {
      return MachineRefusal(RefusalReason::kDescriptors, "descriptor of an exported chunk", file->bytes);
    }
    return SystemCallError("fcntl(F_DUPFD_CLOEXEC) of a chunk", error);
  }
  return fd;
}

absl::StatusOr<MemoryHandle> SimulatedBackend::Import(int device, UniqueFd fd, Bytes bytes) {
  LGPU_RETURN_IF_ERROR(CheckChunkSize(device, bytes));
  LGPU_RETURN_IF_ERROR(CheckChunkMemfd(fd.get(), bytes));
  return Insert(std::move(fd), device, bytes);
}

absl::Status SimulatedBackend::Reclaim(MemoryHandle memory) {
  LGPU_ASSIGN_OR_RETURN(const std::shared_ptr<ChunkFile> file, TakeUnmapped(memory));
  return EmptyChunkMemfd(file->fd.get());
}

// ---- address space

absl::StatusOr<std::byte*> SimulatedBackend::Reserve(int device, Bytes bytes) {
  LGPU_RETURN_IF_ERROR(CheckDevice(device));
  const Bytes granularity = options_.devices[static_cast<std::size_t>(device)].granularity;
  if (bytes.is_zero() || bytes != RoundDown(bytes, granularity)) {
    return absl::InvalidArgumentError(absl::StrCat("reserve: ", bytes.count(),
                                                   " bytes were asked for; it has to be a ", "multiple of ",
                                                   FormatBytes(granularity)));
  }
  return regions_.Reserve(bytes);
}

absl::Status SimulatedBackend::Unreserve(std::byte* base, Bytes bytes) {
  LGPU_RETURN_IF_ERROR(CheckAlive());
  return regions_.Unreserve(base, bytes);
}

absl::Status SimulatedBackend::Map(std::byte* address, MemoryHandle memory) {
  LGPU_RETURN_IF_ERROR(CheckAlive());
  std::shared_ptr<ChunkFile> file;
  {
    MutexLock lock(mutex_);
    const auto found = memory_.find(memory);
    if (found == memory_.end()) {
      return absl::NotFoundError(absl::StrCat("map: memory handle ", memory.value, " is not known"));
    }
    if (found->second.mapped) {
      return absl::FailedPreconditionError(
          absl::StrCat("map: memory handle ", memory.value, " is mapped already; unmap it first"));
    }
    found->second.mapped = true;
    file = found->second.file;
  }
  const SimulatedRegions::Mapping mapping{memory, file->device, file->bytes};
  const Bytes granularity = options_.devices[static_cast<std::size_t>(file->device)].granularity;
  absl::Status status = regions_.BeginMap(address, mapping, granularity);
  if (status.ok()) {
    void* const result =
        mmap(address, file->bytes.count(), PROT_NONE, MAP_SHARED | MAP_FIXED, file->fd.get(), 0);
    if (result == MAP_FAILED) {
      status = MappingError("mmap of a chunk", errno, file->bytes);
    } else if (madvise(address, file->bytes.count(), MADV_DONTFORK) != 0) {
      status = MappingError("madvise(MADV_DONTFORK) of a chunk", errno, file->bytes);
      MakeUnmapped(address, file->bytes).IgnoreError();
    }
    regions_.Settle(address, status.ok());
  }
  if (!status.ok()) {
    SetUnmapped(memory);
  }
  return status;
}

absl::Status SimulatedBackend::SetAccess(std::byte* address, Bytes bytes) {
  LGPU_RETURN_IF_ERROR(CheckAlive());
  if (bytes.is_zero()) {
    return absl::InvalidArgumentError("set access: an empty range");
  }
  LGPU_ASSIGN_OR_RETURN(const std::vector<SimulatedRegions::MappedRange> ranges,
                        regions_.BeginAccess(address, bytes));
  absl::Status status;
  if (options_.asynchronous) {
    for (const SimulatedRegions::MappedRange& range : ranges) {
      status.Update(windows_.Add(range.mapping.device, range.address, range.mapping.bytes));
    }
  } else if (mprotect(address, bytes.count(), PROT_READ | PROT_WRITE) != 0) {
    status = MappingError("mprotect of mapped chunks", errno, bytes);
  }
  regions_.SettleAccess(ranges, status.ok());
  return status;
}

absl::Status SimulatedBackend::CheckNothingQueued(int device) {
  MutexLock lock(mutex_);
  for (const StreamSlot& slot : streams_) {
    if (slot.queue != nullptr && slot.device == device && !slot.queue->IsIdle()) {
      return absl::FailedPreconditionError(
          absl::StrCat("unmap: work is queued on stream ", slot.handle.load(std::memory_order_relaxed),
                       " and may use the mapping; record a fence and wait for it first"));
    }
  }
  return absl::OkStatus();
}

absl::Status SimulatedBackend::Unmap(std::byte* address) {
  LGPU_RETURN_IF_ERROR(CheckAlive());
  LGPU_ASSIGN_OR_RETURN(const SimulatedRegions::Mapping mapping, regions_.BeginUnmap(address));
  if (options_.asynchronous) {
    if (absl::Status status = CheckNothingQueued(mapping.device); !status.ok()) {
      regions_.Settle(address, /*mapped=*/true);
      return status;
    }
    windows_.Remove(mapping.device, address);
  }
  const absl::Status status = MakeUnmapped(address, mapping.bytes);
  regions_.Settle(address, /*mapped=*/!status.ok());
  if (status.ok()) {
    SetUnmapped(mapping.memory);
  }
  return status;
}

// ---- streams

absl::StatusOr<StreamHandle> SimulatedBackend::CreateStream(int device, int /*priority*/) {
  LGPU_RETURN_IF_ERROR(CheckDevice(device));
  std::shared_ptr<SimulatedStream> queue;
  if (options_.asynchronous) {
    LGPU_ASSIGN_OR_RETURN(queue, SimulatedStream::Start());
  }
  MutexLock lock(mutex_);
  for (std::size_t i = 0; i < kMaxStreams; ++i) {
    StreamSlot& slot = streams_[i];
    if (slot.handle.load(std::memory_order_relaxed) == 0) {
      const StreamHandle handle{next_stream_++ * kMaxStreams + i};
      slot.device = device;
      slot.queue = std::move(queue);
      slot.handle.store(handle.value, std::memory_order_release);
      return handle;
    }
  }
  return absl::ResourceExhaustedError(
      absl::StrCat("a simulated backend has at most ", kMaxStreams, " streams at a time; destroy some"));
}

absl::Status SimulatedBackend::DestroyStream(StreamHandle stream) {
  LGPU_RETURN_IF_ERROR(CheckStream(stream));
  std::shared_ptr<SimulatedStream> queue;
  {
    MutexLock lock(mutex_);
    StreamSlot& slot = streams_[stream.value % kMaxStreams];
    std::uint64_t expected = stream.value;
    if (!slot.handle.compare_exchange_strong(expected, 0, std::memory_order_acq_rel)) {
      return absl::NotFoundError(absl::StrCat("stream ", stream.value, " is not known: destroyed already?"));
    }
    queue = std::move(slot.queue);
  }
  if (queue != nullptr) {
    queue->Wait(queue->queued());
  }
  return absl::OkStatus();
}

absl::Status SimulatedBackend::CheckStream(StreamHandle stream) const {
  LGPU_RETURN_IF_ERROR(CheckAlive());
  const StreamSlot& slot = streams_[stream.value % kMaxStreams];
  if (stream.value == 0 || slot.handle.load(std::memory_order_acquire) != stream.value) {
    return absl::NotFoundError(absl::StrCat("stream ", stream.value, " is not known: destroyed already?"));
  }
  return absl::OkStatus();
}

absl::StatusOr<SimulatedBackend::LiveStream> SimulatedBackend::FindStream(StreamHandle stream) {
  LGPU_RETURN_IF_ERROR(CheckStream(stream));
  if (!options_.asynchronous) {
    return LiveStream{};
  }
  MutexLock lock(mutex_);
  const StreamSlot& slot = streams_[stream.value % kMaxStreams];
  if (slot.handle.load(std::memory_order_relaxed) != stream.value) {
    return absl::NotFoundError(absl::StrCat("stream ", stream.value, " is not known: destroyed already?"));
  }
  return LiveStream{slot.queue, slot.device};
}

absl::StatusOr<SimulatedBackend::LiveStream> SimulatedBackend::FindFence(const Fence& fence) {
  LGPU_ASSIGN_OR_RETURN(LiveStream stream, FindStream(fence.stream));
  if (fence.sequence > (stream.queue == nullptr ? 0 : stream.queue->queued())) {
    return absl::InvalidArgumentError(
        absl::StrCat("fence ", fence.sequence, " of stream ", fence.stream.value, " was never recorded"));
  }
  return stream;
}

absl::StatusOr<Fence> SimulatedBackend::Record(StreamHandle stream) {
  LGPU_ASSIGN_OR_RETURN(const LiveStream live, FindStream(stream));
  return Fence{stream, live.queue == nullptr ? 0 : live.queue->queued()};
}

absl::StatusOr<bool> SimulatedBackend::HasPassed(const Fence& fence) {
  LGPU_ASSIGN_OR_RETURN(const LiveStream live, FindFence(fence));
  return live.queue == nullptr || live.queue->HasPassed(fence.sequence);
}

absl::Status SimulatedBackend::Wait(const Fence& fence) {
  LGPU_ASSIGN_OR_RETURN(const LiveStream live, FindFence(fence));
  if (live.queue != nullptr) {
    live.queue->Wait(fence.sequence);
  }
  return absl::OkStatus();
}

absl::Status SimulatedBackend::WaitOnStream(StreamHandle stream, const Fence& fence) {
  LGPU_ASSIGN_OR_RETURN(const LiveStream waiter, FindStream(stream));
  LGPU_ASSIGN_OR_RETURN(const LiveStream other, FindFence(fence));
  if (waiter.queue != nullptr && waiter.queue != other.queue) {
    waiter.queue->Queue([queue = other.queue, sequence = fence.sequence] { queue->Wait(sequence); });
  }
  return absl::OkStatus();
}

absl::Status SimulatedBackend::CopyToDevice(StreamHandle stream, std::byte* to, const void* from,
                                            Bytes bytes) {
  LGPU_ASSIGN_OR_RETURN(const LiveStream live, FindStream(stream));
  LGPU_RETURN_IF_ERROR(regions_.CheckAccessible(to, bytes));
  if (bytes.is_zero()) {
    return absl::OkStatus();
  }
  if (live.queue == nullptr) {
    std::memcpy(to, from, bytes.count());
    return absl::OkStatus();
  }
  const auto* const first = static_cast<const std::byte*>(from);
  live.queue->Queue(
      [this, to, device = live.device, data = std::vector<std::byte>(first, first + bytes.count())] {
        const AccessWindow window(windows_, device);
        std::memcpy(to, data.data(), data.size());
      });
  return absl::OkStatus();
}

absl::Status SimulatedBackend::CopyToHost(StreamHandle stream, void* to, const std::byte* from, Bytes bytes) {
  LGPU_ASSIGN_OR_RETURN(const LiveStream live, FindStream(stream));
  LGPU_RETURN_IF_ERROR(regions_.CheckAccessible(from, bytes));
  if (bytes.is_zero()) {
    return absl::OkStatus();
  }
  if (live.queue == nullptr) {
    std::memcpy(to, from, bytes.count());
    return absl::OkStatus();
  }
  live.queue->Wait(live.queue->Queue([this, to, from, bytes, device = live.device] {
    const AccessWindow window(windows_, device);
    std::memcpy(to, from, bytes.count());
  }));
  return absl::OkStatus();
}

absl::Status SimulatedBackend::CopyOnDevice(StreamHandle stream, std::byte* to, const std::byte* from,
                                            Bytes bytes) {
  LGPU_ASSIGN_OR_RETURN(const LiveStream live, FindStream(stream));
  LGPU_RETURN_IF_ERROR(regions_.CheckAccessible(to, bytes));
  LGPU_RETURN_IF_ERROR(regions_.CheckAccessible(from, bytes));
  if (bytes.is_zero()) {
    return absl::OkStatus();
  }
  if (live.queue == nullptr) {
    std::memmove(to, from, bytes.count());
    return absl::OkStatus();
  }
  live.queue->Queue([this, to, from, bytes, device = live.device] {
    const AccessWindow window(windows_, device);
    std::memmove(to, from, bytes.count());
  });
  return absl::OkStatus();
}

absl::Status SimulatedBackend::Launch(StreamHandle stream, const KernelLaunch& launch) {
  if (launch.host_function == nullptr) {
    return absl::InvalidArgumentError("launch: a simulated device needs a host function, and there is none");
  }
  if (launch.argument_bytes > KernelLaunch::kMaxArgumentBytes) {
    return absl::InvalidArgumentError(absl::StrCat("launch: ", launch.argument_bytes,
                                                   " bytes of arguments; at most ",
                                                   KernelLaunch::kMaxArgumentBytes, " are possible"));
  }
  if (!options_.asynchronous) {
    LGPU_RETURN_IF_ERROR(CheckStream(stream));
    launch.host_function(launch.arguments);
    return absl::OkStatus();
  }
  LGPU_ASSIGN_OR_RETURN(const LiveStream live, FindStream(stream));
  const auto* const first = static_cast<const std::byte*>(launch.arguments);
  live.queue->Queue([this, function = launch.host_function, device = live.device,
                     arguments = std::vector<std::byte>(first, first + launch.argument_bytes)] {
    const AccessWindow window(windows_, device);
    function(arguments.data());
  });
  return absl::OkStatus();
}

// FNV-1a: the same on every machine and in every build, which std::hash does not promise.
std::uint64_t StableHash(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  }
  return hash ^ (hash >> 29);
}

}  // namespace

std::unique_ptr<DeviceBackend> MakeSimulatedBackend(SimulatedBackendOptions options) {
  std::sort(options.devices.begin(), options.devices.end(),
            [](const PhysicalDevice& a, const PhysicalDevice& b) { return a.pci_bus_id < b.pci_bus_id; });
  return std::make_unique<SimulatedBackend>(std::move(options));
}

PhysicalDevice SimulatedDevice(int index, Bytes memory, const std::string& seed) {
  const std::uint64_t high = StableHash(absl::StrCat("lgpu simulated ", index, " of ", seed));
  const std::uint64_t low = StableHash(absl::StrCat(seed, " has simulated ", index));
  PhysicalDevice device;
  device.uuid = absl::StrFormat("GPU-%08x-%04x-%04x-%04x-%012x", high >> 32, (high >> 16) & 0xffff,
                                high & 0xffff, low >> 48, low & 0xffffffffffff);
  device.name = "Simulated GPU";
  device.pci_bus_id = absl::StrFormat("%04x:%02x:00.0", (index + 1) >> 8, (index + 1) & 0xff);
  device.total = memory;
  device.granularity = 2_MiB;
  device.simulated = true;
  return device;
}

}  // namespace lgpu
