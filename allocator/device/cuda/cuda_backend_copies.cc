// The CUDA backend's copies. Copies to and from the host go through page-locked memory a piece at a time, so
// that host and device work at the same time. Copies between devices go directly where the target can read
// the source's memory, and else through the host. Events order all queued work.

#include <algorithm>
#include <cstring>
#include <deque>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "allocator/device/backend_checks.h"
#include "allocator/device/cuda/cuda_backend_impl.h"
#include "base/thread.h"
#include "lgpu/status.h"

namespace lgpu {
namespace {

// The driver takes as much of pageable memory into the command itself (CUDA Driver API, "API synchronization
// behavior": "for transfers from pageable host memory to device memory of a memory block of 64 KB or less").
constexpr Bytes kInCommand = Bytes(std::uint64_t{64} << 10);

// From this size on several threads fill buffers: one memcpy carries a tenth to a quarter of what the bus
// does. Starting the threads costs far less than the copy.
constexpr Bytes kSpread = Bytes(std::uint64_t{32} << 20);
constexpr unsigned kMostCarriers = 4;

Bytes PieceAt(std::uint64_t done, Bytes bytes) { return std::min(CudaStaging::kPiece, bytes - Bytes(done)); }

}  // namespace

absl::Status CudaBackend::QueueToDevice(CudaStream& stream, std::byte* to, const void* from, Bytes bytes) {
  LGPU_RETURN_IF_ERROR(driver_.Check(
      "cuMemcpyHtoDAsync", driver_.MemcpyHtoDAsync(Address(to), from, bytes.count(), stream.get())));
  stream.CountWork();
  return absl::OkStatus();
}

absl::Status CudaBackend::QueueToHost(CudaStream& stream, void* to, const std::byte* from, Bytes bytes) {
  LGPU_RETURN_IF_ERROR(driver_.Check(
      "cuMemcpyDtoHAsync", driver_.MemcpyDtoHAsync(to, Address(from), bytes.count(), stream.get())));
  stream.CountWork();
  return absl::OkStatus();
}

// The buffer stays in use until all work that is queued on `stream` now has ended.
absl::Status CudaBackend::MarkUse(CudaStream& stream, CudaStaging::Buffer& buffer) {
  absl::StatusOr<CudaEventPool::Event> event = state(stream.device()).events.Take();
  absl::Status status = event.status();
  if (status.ok()) status = driver_.Check("cuEventRecord", driver_.EventRecord(**event, stream.get()));
  if (status.ok()) {
    buffer.last = *std::move(event);
  } else {
    stream.Drain().IgnoreError();
    buffer.last = nullptr;
  }
  return status;
}

absl::Status CudaBackend::AwaitUse(CudaStaging::Buffer& buffer) const {
  if (buffer.last == nullptr) return absl::OkStatus();
  LGPU_RETURN_IF_ERROR(driver_.Check("cuEventSynchronize", driver_.EventSynchronize(*buffer.last)));
  buffer.last = nullptr;
  return absl::OkStatus();
}

bool CudaBackend::IsPageLocked(const void* host) const {
  unsigned type = 0;
  return driver_.PointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                     reinterpret_cast<CUdeviceptr>(host)) == CUDA_SUCCESS;
}

// A failed copy returns only when its queued pieces no longer use its memory.
absl::Status CudaBackend::AllOrNothing(CudaStream& stream, absl::Status status) {
  if (!status.ok()) stream.Drain().IgnoreError();
  return status;
}

// ---- to and from the host

absl::Status CudaBackend::CopyToDevice(StreamHandle stream, std::byte* to, const void* from, Bytes bytes) {
  LGPU_ASSIGN_OR_RETURN(const std::shared_ptr<CudaStream> found, FindStream(stream));
  LGPU_RETURN_IF_ERROR(ranges_.CheckAccessible(to, bytes));
  if (bytes.is_zero()) return absl::OkStatus();
  const CudaContextScope scope(driver_, found->context());
  LGPU_RETURN_IF_ERROR(scope.status());
  const bool page_locked = IsPageLocked(from);  // by the program; the device reads it later
  if (!page_locked && bytes > kInCommand) {
    return AllOrNothing(*found, CopyToDeviceStaged(*found, to, from, bytes));
  }
  // The device may read the memory after the call, and the program may change it then.
  if (!page_locked && state(found->device()).reads_pageable) {
    return AllOrNothing(*found, CarryPiece(*found, *small_staging_, to, from, bytes));
  }
  LGPU_RETURN_IF_ERROR(QueueToDevice(*found, to, from, bytes));
  return page_locked ? found->Drain() : absl::OkStatus();
}

absl::Status CudaBackend::CarryPiece(CudaStream& stream, CudaStaging& staging, std::byte* to,
                                     const void* from, Bytes bytes) {
  LGPU_ASSIGN_OR_RETURN(const CudaStaging::Lent buffer, staging.Take());
  LGPU_RETURN_IF_ERROR(AwaitUse(*buffer));
  std::memcpy(buffer->data, from, bytes.count());
  LGPU_RETURN_IF_ERROR(QueueToDevice(stream, to, buffer->data, bytes));
  return MarkUse(stream, *buffer);
}

// Copies the pieces that `next` counts out. They may be queued in any order.
absl::Status CudaBackend::CarryToDevice(CudaStream& stream, std::byte* to, const std::byte* from, Bytes bytes,
                                        std::atomic<std::uint64_t>& next) {
  while (true) {
    const std::uint64_t at = next.fetch_add(CudaStaging::kPiece.count(), std::memory_order_relaxed);
    if (at >= bytes.count()) return absl::OkStatus();
    LGPU_RETURN_IF_ERROR(CarryPiece(stream, *staging_, to + at, from + at, PieceAt(at, bytes)));
  }
}

absl::Status CudaBackend::CopyToDeviceStaged(CudaStream& stream, std::byte* to, const void* from,
                                             Bytes bytes) {
  const auto* const source = static_cast<const std::byte*>(from);
  std::atomic<std::uint64_t> next{0};
  const unsigned carriers =
      bytes < kSpread ? 1 : std::clamp(std::thread::hardware_concurrency(), 1u, kMostCarriers);
  std::vector<absl::Status> ends(carriers);
  {
    std::vector<Thread> helpers;
    for (unsigned i = 1; i < carriers; ++i) {
      absl::StatusOr<Thread> helper = Thread::Start("lgpu-upload", [&, i] {
        const CudaContextScope scope(driver_, stream.context());
        ends[i] = scope.status();
        if (ends[i].ok()) ends[i] = CarryToDevice(stream, to, source, bytes, next);
        if (!ends[i].ok()) next.store(bytes.count(), std::memory_order_relaxed);
      });
      // The threads that have started do the missing one's part.
      if (!helper.ok()) break;
      helpers.push_back(*std::move(helper));
    }
    ends[0] = CarryToDevice(stream, to, source, bytes, next);
    if (!ends[0].ok()) next.store(bytes.count(), std::memory_order_relaxed);
  }
  const auto failed =
      std::find_if(ends.begin(), ends.end(), [](const absl::Status& end) { return !end.ok(); });
  return failed == ends.end() ? absl::OkStatus() : *failed;
}

absl::Status CudaBackend::CopyToHost(StreamHandle stream, void* to, const std::byte* from, Bytes bytes) {
  LGPU_ASSIGN_OR_RETURN(const std::shared_ptr<CudaStream> found, FindStream(stream));
  LGPU_RETURN_IF_ERROR(ranges_.CheckAccessible(from, bytes));
  if (bytes.is_zero()) return absl::OkStatus();
  const CudaContextScope scope(driver_, found->context());
  LGPU_RETURN_IF_ERROR(scope.status());
  if (bytes > kInCommand && !IsPageLocked(to)) {
    return AllOrNothing(*found, CopyToHostStaged(*found, to, from, bytes));
  }
  LGPU_RETURN_IF_ERROR(QueueToHost(*found, to, from, bytes));
  const absl::StatusOr<std::uint64_t> copied = found->Record();
  return AllOrNothing(*found, copied.ok() ? found->Wait(*copied) : copied.status());
}

// Where there are two buffers, two pieces are in flight: the device writes one while the host empties the
// other.
absl::Status CudaBackend::CopyToHostStaged(CudaStream& stream, void* to, const std::byte* from, Bytes bytes) {
  struct Piece {
    CudaStaging::Lent buffer;
    std::uint64_t at;
    Bytes bytes;
  };
  std::deque<Piece> underway;
  const auto empty_oldest = [&]() -> absl::Status {
    const Piece piece = std::move(underway.front());
    underway.pop_front();
    LGPU_RETURN_IF_ERROR(AwaitUse(*piece.buffer));
    std::memcpy(static_cast<std::byte*>(to) + piece.at, piece.buffer->data, piece.bytes.count());
    return absl::OkStatus();
  };
  for (std::uint64_t done = 0; done < bytes.count();) {
    CudaStaging::Lent buffer;
    if (underway.empty()) {
      LGPU_ASSIGN_OR_RETURN(buffer, staging_->Take());
    } else if (underway.size() == 1) {
      buffer = staging_->TryTake();
    }
    if (buffer == nullptr) {
      LGPU_RETURN_IF_ERROR(empty_oldest());
      continue;
    }
    const Bytes piece = PieceAt(done, bytes);
    LGPU_RETURN_IF_ERROR(AwaitUse(*buffer));
    LGPU_RETURN_IF_ERROR(QueueToHost(stream, buffer->data, from + done, piece));
    LGPU_RETURN_IF_ERROR(MarkUse(stream, *buffer));
    underway.push_back({std::move(buffer), done, piece});
    done += piece.count();
  }
  while (!underway.empty()) LGPU_RETURN_IF_ERROR(empty_oldest());
  return absl::OkStatus();
}

// ---- between devices

absl::Status CudaBackend::CopyOnDevice(StreamHandle stream, std::byte* to, const std::byte* from,
                                       Bytes bytes) {
  LGPU_ASSIGN_OR_RETURN(const std::shared_ptr<CudaStream> found, FindStream(stream));
  LGPU_ASSIGN_OR_RETURN(const int target, ranges_.DeviceOf(to, bytes));
  LGPU_ASSIGN_OR_RETURN(const int source, ranges_.DeviceOf(from, bytes));
  if (bytes.is_zero()) return absl::OkStatus();
  LGPU_RETURN_IF_ERROR(CheckCopyTarget(found->device(), target));
  if (source != target && !LetRead(target, source, from, bytes)) {
    return CopyBetween(*found, to, source, from, bytes);
  }
  return QueueOnDevice(*found, to, from, bytes);
}

absl::Status CudaBackend::CopyFromProgram(StreamHandle stream, std::byte* to, const std::byte* from,
                                          Bytes bytes) {
  LGPU_ASSIGN_OR_RETURN(const std::shared_ptr<CudaStream> found, FindStream(stream));
  LGPU_ASSIGN_OR_RETURN(const int target, ranges_.DeviceOf(to, bytes));
  LGPU_RETURN_IF_ERROR(CheckCopyTarget(found->device(), target));
  return bytes.is_zero() ? absl::OkStatus() : QueueOnDevice(*found, to, from, bytes);
}

absl::Status CudaBackend::QueueOnDevice(CudaStream& stream, std::byte* to, const std::byte* from,
                                        Bytes bytes) {
  const CudaContextScope scope(driver_, stream.context());
  LGPU_RETURN_IF_ERROR(scope.status());
  LGPU_RETURN_IF_ERROR(driver_.Check(
      "cuMemcpyDtoDAsync", driver_.MemcpyDtoDAsync(Address(to), Address(from), bytes.count(), stream.get())));
  stream.CountWork();
  return absl::OkStatus();
}

bool CudaBackend::IsPeer(int reader, int owner) {
  DeviceState& gpu = state(reader);
  {
    MutexLock lock(gpu.mutex);
    if (const auto known = gpu.peers.find(owner); known != gpu.peers.end()) return known->second;
  }
  int can = 0;
  const CUresult result = driver_.DeviceCanAccessPeer(&can, gpu.device, state(owner).device);
  const bool is_peer = reader < MappedRanges::kMostPeers && result == CUDA_SUCCESS && can != 0;
  MutexLock lock(gpu.mutex);
  return gpu.peers.try_emplace(owner, is_peer).first->second;
}

// Mapped memory is open to its own device only; another device gets access before its first read (CUDA
// Programming Guide, "Virtual Memory Management": peer mappings are per mapping, by cuMemSetAccess).
bool CudaBackend::LetRead(int reader, int owner, const std::byte* from, Bytes bytes) {
  if (!IsPeer(reader, owner)) return false;
  const std::vector<MappedRanges::MappedRange> closed = ranges_.NotOpenTo(reader, from, bytes);
  CUmemAccessDesc access{};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = state(reader).device;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READ;
  for (const MappedRanges::MappedRange& range : closed) {
    if (driver_.MemSetAccess(Address(range.address), range.mapping.bytes.count(), &access, 1) !=
        CUDA_SUCCESS) {
      MutexLock lock(state(reader).mutex);
      state(reader).peers[owner] = false;
      return false;
    }
  }
  ranges_.SetOpenTo(reader, closed);
  return true;
}

// A stream of the source's device fills buffers, which `stream` empties.
absl::Status CudaBackend::CopyBetween(CudaStream& stream, std::byte* to, int source, const std::byte* from,
                                      Bytes bytes) {
  LGPU_ASSIGN_OR_RETURN(const std::shared_ptr<CudaStream> reader, ReaderOf(source));
  const CudaContextScope scope(driver_, stream.context());
  LGPU_RETURN_IF_ERROR(scope.status());
  absl::Status status = CopyStaged(stream, to, *reader, from, bytes);
  if (!status.ok()) {
    const CudaContextScope source_scope(driver_, reader->context());
    reader->Drain().IgnoreError();
  }
  return AllOrNothing(stream, std::move(status));
}

absl::Status CudaBackend::CopyStaged(CudaStream& stream, std::byte* to, CudaStream& reader,
                                     const std::byte* from, Bytes bytes) {
  LGPU_ASSIGN_OR_RETURN(const std::uint64_t ready, stream.Record());
  // At most this many buffers: the copy may be queued behind long work, and other copies need some meanwhile.
  constexpr std::size_t kInTurn = 3;
  std::vector<CudaStaging::Lent> buffers;
  std::size_t next = 0;
  for (std::uint64_t done = 0; done < bytes.count(); next = (next + 1) % buffers.size()) {
    const Bytes piece = PieceAt(done, bytes);
    if (buffers.size() < kInTurn) {
      CudaStaging::Lent another;
      if (buffers.empty()) {
        LGPU_ASSIGN_OR_RETURN(another, staging_->Take());
      } else {
        another = staging_->TryTake();
      }
      if (another != nullptr) {
        next = buffers.size();
        buffers.push_back(std::move(another));
      }
    }
    const CudaStaging::Lent& buffer = buffers[next];
    {
      const CudaContextScope source_scope(driver_, reader.context());
      LGPU_RETURN_IF_ERROR(source_scope.status());
      if (done == 0) LGPU_RETURN_IF_ERROR(stream.MakeWait(reader, ready));
      LGPU_RETURN_IF_ERROR(WaitOn(reader, *buffer));
      LGPU_RETURN_IF_ERROR(QueueToHost(reader, buffer->data, from + done, piece));
      LGPU_RETURN_IF_ERROR(MarkUse(reader, *buffer));
      // The driver reads ordinary memory during this call, even if the stream still waits for other work.
      if (!buffer->page_locked) LGPU_RETURN_IF_ERROR(AwaitUse(*buffer));
    }
    LGPU_RETURN_IF_ERROR(WaitOn(stream, *buffer));
    LGPU_RETURN_IF_ERROR(QueueToDevice(stream, to + done, buffer->data, piece));
    LGPU_RETURN_IF_ERROR(MarkUse(stream, *buffer));
    done += piece.count();
  }
  return absl::OkStatus();
}

absl::Status CudaBackend::WaitOn(CudaStream& stream, const CudaStaging::Buffer& buffer) const {
  if (buffer.last == nullptr) return absl::OkStatus();
  LGPU_RETURN_IF_ERROR(
      driver_.Check("cuStreamWaitEvent", driver_.StreamWaitEvent(stream.get(), *buffer.last, 0)));
  stream.CountWork();
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<CudaStream>> CudaBackend::ReaderOf(int device) {
  DeviceState& gpu = state(device);
  {
    MutexLock lock(gpu.mutex);
    if (gpu.reader != nullptr) return gpu.reader;
  }
  LGPU_ASSIGN_OR_RETURN(const CUcontext context, ContextOf(device));
  std::shared_ptr<CudaStream> made;
  {
    const CudaContextScope scope(driver_, context);
    LGPU_RETURN_IF_ERROR(scope.status());
    CUstream stream = nullptr;
    LGPU_RETURN_IF_ERROR(Explain({"cuStreamCreateWithPriority", "stream", device, Bytes()},
                                 driver_.StreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0)));
    made = std::make_shared<CudaStream>(driver_, gpu.events, device, context, stream);
  }
  MutexLock lock(gpu.mutex);
  if (gpu.reader == nullptr) gpu.reader = std::move(made);
  return gpu.reader;
}

}  // namespace lgpu
