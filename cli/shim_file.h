#ifndef LGPU_CLI_SHIM_FILE_H_
#define LGPU_CLI_SHIM_FILE_H_

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "client/driver/shim_file.h"

namespace lgpu::cli {

/// Reads one of lgpu's libraries at `path`. Nothing: it is no library that needs `real`, so it is none of
/// lgpu's. INTERNAL: it is one, and damaged.
absl::StatusOr<std::optional<shim::ShimFile>> ReadShimFile(const std::string& path, std::string_view real);

/// As ShimFile::CopyFor; INVALID_ARGUMENT: the folder or the variables are too long.
absl::StatusOr<std::string> CopyOfShim(const shim::ShimFile& file, const std::string& folder,
                                       const std::string& variables);

}  // namespace lgpu::cli

#endif  // LGPU_CLI_SHIM_FILE_H_
