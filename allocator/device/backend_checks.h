#ifndef LGPU_ALLOCATOR_DEVICE_BACKEND_CHECKS_H_
#define LGPU_ALLOCATOR_DEVICE_BACKEND_CHECKS_H_

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "lgpu/bytes.h"

namespace lgpu {

// Checks that all backends share.

/// FAILED_PRECONDITION: this process is a forked child, and the devices belong to its parent.
absl::Status ForkedBackendError();
/// INVALID_ARGUMENT unless `device` is below `count`.
absl::Status CheckDeviceIndex(int device, std::size_t count);
/// INVALID_ARGUMENT unless `bytes` is a multiple of `granularity` and not zero; `what` begins the text.
absl::Status CheckWholeUnits(std::string_view what, Bytes bytes, Bytes granularity);
/// INVALID_ARGUMENT unless a copy to memory of `target` is queued on a stream of that device.
absl::Status CheckCopyTarget(int stream_device, int target);

/// The words for handles of one kind in errors.
struct HandleWords {
  const char* what;   // "stream"
  const char* end;    // "destroy"
  const char* ended;  // "destroyed"
};
constexpr HandleWords kStreamWords = {.what = "stream", .end = "destroy", .ended = "destroyed"};
constexpr std::size_t kMaxBackendStreams = 4096;
/// NOT_FOUND.
absl::Status UnknownHandleError(const HandleWords& words, std::uint64_t handle);
/// RESOURCE_EXHAUSTED.
absl::Status TooManyHandlesError(const HandleWords& words, std::size_t limit);

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_DEVICE_BACKEND_CHECKS_H_
