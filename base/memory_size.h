#ifndef LGPU_BASE_MEMORY_SIZE_H_
#define LGPU_BASE_MEMORY_SIZE_H_

#include <string_view>

#include "absl/status/statusor.h"
#include "lgpu/bytes.h"

namespace lgpu {

/// ParseBytes for an amount of GPU memory that a user writes. INVALID_ARGUMENT also for a bare number from 1
/// to below 1 MiB: "64" would be 64 bytes, and its writer means 64MiB. "64B" and "0" are read.
absl::StatusOr<Bytes> ParseMemorySize(std::string_view text);

}  // namespace lgpu

#endif  // LGPU_BASE_MEMORY_SIZE_H_
