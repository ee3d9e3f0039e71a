#include "allocator/device/backend_checks.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace lgpu {

absl::Status ForkedBackendError() {
  return absl::FailedPreconditionError(
      "this process is a forked child: devices do not work across fork; exec a program, or open devices "
      "in the child only");
}

absl::Status CheckDeviceIndex(int device, std::size_t count) {
  if (device >= 0 && static_cast<std::size_t>(device) < count) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("there is no device ", device, ": this backend has ", count));
}

absl::Status CheckWholeUnits(std::string_view what, Bytes bytes, Bytes granularity) {
  if (!bytes.is_zero() && bytes == RoundDown(bytes, granularity)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(absl::string_view(what.data(), what.size()), " of ",
                                                 bytes.count(), " bytes was asked for; it has to be a ",
                                                 "multiple of ", FormatBytes(granularity)));
}

absl::Status CheckCopyTarget(int stream_device, int target) {
  if (stream_device == target) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("copy: to memory of device ", target,
                                                 " on a stream of device ", stream_device,
                                                 "; queue it on a stream of the device that is written"));
}

absl::Status UnknownHandleError(const HandleWords& words, std::uint64_t handle) {
  return absl::NotFoundError(
      absl::StrCat(words.what, " ", handle, " is not known: ", words.ended, " already?"));
}

absl::Status TooManyHandlesError(const HandleWords& words, std::size_t limit) {
  return absl::ResourceExhaustedError(
      absl::StrCat("a backend has at most ", limit, " ", words.what, "s at a time; ", words.end, " some"));
}

}  // namespace lgpu
