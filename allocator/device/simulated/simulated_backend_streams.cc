// The simulated backend's streams, copies and kernels.

#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "allocator/device/backend_checks.h"
#include "allocator/device/simulated/simulated_backend_impl.h"
#include "lgpu/status.h"

namespace lgpu {

// ---- streams

absl::StatusOr<StreamHandle> SimulatedBackend::CreateStream(int device, int /*priority*/) {
  LGPU_RETURN_IF_ERROR(CheckDevice(device));
  std::shared_ptr<SimulatedStream> queue;
  if (options_.asynchronous) {
    LGPU_ASSIGN_OR_RETURN(queue, SimulatedStream::Start());
  }
  return streams_.Insert({.queue = std::move(queue), .device = device});
}

absl::StatusOr<StreamHandle> SimulatedBackend::AdoptStream(int device, void* native) {
  LGPU_RETURN_IF_ERROR(CheckDevice(device));
  LiveStream adopted{.queue = nullptr, .device = device};
  if (options_.asynchronous) {
    const absl::StatusOr<LiveStream> own =
        streams_.Find(StreamHandle{reinterpret_cast<std::uintptr_t>(native)});
    if (own.ok()) adopted.queue = own->queue;
  }
  return streams_.Insert(std::move(adopted));
}

absl::Status SimulatedBackend::DestroyStream(StreamHandle stream) {
  LGPU_RETURN_IF_ERROR(CheckAlive());
  LGPU_ASSIGN_OR_RETURN(const LiveStream live, streams_.Remove(stream));
  if (live.queue != nullptr) live.queue->Wait(live.queue->queued());
  return absl::OkStatus();
}

absl::Status SimulatedBackend::CheckStream(StreamHandle stream) const {
  LGPU_RETURN_IF_ERROR(CheckAlive());
  return streams_.Contains(stream);
}

absl::StatusOr<SimulatedBackend::LiveStream> SimulatedBackend::FindStream(StreamHandle stream) {
  LGPU_RETURN_IF_ERROR(CheckAlive());
  return streams_.Find(stream);
}

absl::StatusOr<SimulatedBackend::LiveStream> SimulatedBackend::FindFence(const Fence& fence) {
  if (!options_.asynchronous && fence.sequence == 0) {
    LGPU_RETURN_IF_ERROR(CheckStream(fence.stream));
    return LiveStream();
  }
  LGPU_ASSIGN_OR_RETURN(LiveStream stream, FindStream(fence.stream));
  if (fence.sequence > (stream.queue == nullptr ? 0 : stream.queue->queued())) {
    return absl::InvalidArgumentError(
        absl::StrCat("fence ", fence.sequence, " of stream ", fence.stream.value, " was never recorded"));
  }
  return stream;
}

absl::Status SimulatedBackend::Drain(StreamHandle stream) {
  LGPU_ASSIGN_OR_RETURN(const LiveStream live, FindStream(stream));
  if (live.queue != nullptr) live.queue->Wait(live.queue->queued());
  return absl::OkStatus();
}

absl::StatusOr<Fence> SimulatedBackend::Record(StreamHandle stream) {
  if (!options_.asynchronous) {
    LGPU_RETURN_IF_ERROR(CheckStream(stream));
    return Fence{stream, 0};
  }
  LGPU_ASSIGN_OR_RETURN(const LiveStream live, FindStream(stream));
  return Fence{stream, live.queue == nullptr ? 0 : live.queue->queued()};
}

absl::StatusOr<bool> SimulatedBackend::HasPassed(const Fence& fence) {
  LGPU_ASSIGN_OR_RETURN(const LiveStream live, FindFence(fence));
  return live.queue == nullptr || live.queue->HasPassed(fence.sequence);
}

absl::Status SimulatedBackend::Wait(const Fence& fence) {
  LGPU_ASSIGN_OR_RETURN(const LiveStream live, FindFence(fence));
  if (live.queue != nullptr) live.queue->Wait(fence.sequence);
  return absl::OkStatus();
}

absl::Status SimulatedBackend::WaitOnStream(StreamHandle stream, const Fence& fence) {
  LGPU_ASSIGN_OR_RETURN(const LiveStream waiter, FindStream(stream));
  LGPU_ASSIGN_OR_RETURN(const LiveStream other, FindFence(fence));
  if (other.queue == nullptr || waiter.queue == other.queue) return absl::OkStatus();
  if (waiter.queue == nullptr) {
    other.queue->Wait(fence.sequence);
  } else {
    waiter.queue->Queue([queue = other.queue, sequence = fence.sequence] { queue->Wait(sequence); });
  }
  return absl::OkStatus();
}

absl::Status SimulatedBackend::CopyToDevice(StreamHandle stream, std::byte* to, const void* from,
                                            Bytes bytes) {
  LGPU_ASSIGN_OR_RETURN(const LiveStream live, FindStream(stream));
  LGPU_RETURN_IF_ERROR(regions_.ranges().CheckAccessible(to, bytes));
  if (bytes.is_zero()) return absl::OkStatus();
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
  LGPU_RETURN_IF_ERROR(regions_.ranges().CheckAccessible(from, bytes));
  if (bytes.is_zero()) return absl::OkStatus();
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
  LGPU_ASSIGN_OR_RETURN(const int target, regions_.ranges().DeviceOf(to, bytes));
  LGPU_ASSIGN_OR_RETURN(const int source, regions_.ranges().DeviceOf(from, bytes));
  if (bytes.is_zero()) return absl::OkStatus();
  LGPU_RETURN_IF_ERROR(CheckCopyTarget(live.device, target));
  if (live.queue == nullptr) {
    std::memmove(to, from, bytes.count());
    return absl::OkStatus();
  }
  live.queue->Queue([this, to, from, bytes, target, source] {
    const AccessWindow written(windows_, target);
    const AccessWindow read(windows_, source);
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
  if (live.queue == nullptr) {
    const AccessWindow window(windows_, live.device);
    launch.host_function(launch.arguments);
    return absl::OkStatus();
  }
  const auto* const first = static_cast<const std::byte*>(launch.arguments);
  live.queue->Queue([this, function = launch.host_function, device = live.device,
                     arguments = std::vector<std::byte>(first, first + launch.argument_bytes)] {
    const AccessWindow window(windows_, device);
    function(arguments.data());
  });
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<StreamTimer>> SimulatedBackend::StartTimer(StreamHandle stream) {
  LGPU_ASSIGN_OR_RETURN(LiveStream live, FindStream(stream));
  return StartSimulatedTimer(std::move(live.queue));
}

}  // namespace lgpu
