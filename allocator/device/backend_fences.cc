#include "allocator/device/backend_fences.h"

#include "absl/strings/str_cat.h"
#include "lgpu/status.h"

namespace lgpu {

absl::StatusOr<StreamHandle> BackendFences::Find(StreamId stream) const {
  if (stream >= streams_.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("stream ", stream, " was named; this device has ", streams_.size()));
  }
  return streams_[stream];
}

absl::StatusOr<std::uint64_t> BackendFences::Record(StreamId stream) {
  LGPU_ASSIGN_OR_RETURN(const StreamHandle handle, Find(stream));
  LGPU_ASSIGN_OR_RETURN(const Fence fence, backend_.Record(handle));
  return fence.sequence;
}

absl::StatusOr<bool> BackendFences::HasPassed(StreamId stream, std::uint64_t value) {
  LGPU_ASSIGN_OR_RETURN(const StreamHandle handle, Find(stream));
  return backend_.HasPassed({handle, value});
}

absl::Status BackendFences::Wait(StreamId stream, std::uint64_t value) {
  LGPU_ASSIGN_OR_RETURN(const StreamHandle handle, Find(stream));
  return backend_.Wait({handle, value});
}

absl::Status BackendFences::Order(StreamId waiter, StreamId stream, std::uint64_t value) {
  LGPU_ASSIGN_OR_RETURN(const StreamHandle handle, Find(stream));
  LGPU_ASSIGN_OR_RETURN(const StreamHandle waiting, Find(waiter));
  return backend_.WaitOnStream(waiting, {handle, value});
}

}  // namespace lgpu
