#ifndef LGPU_CLI_OUTPUT_FILE_H_
#define LGPU_CLI_OUTPUT_FILE_H_

#include <functional>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace lgpu::cli {

/// Takes the next piece of a file; not OK: it could not be written.
using Sink = std::function<absl::Status(std::string_view)>;

/// Writes the pieces of `write`: to stdout where `path` is empty, else into the file. A regular file is
/// written beside `path` and then takes its place, so that after an error the old file is still there, or
/// none. UNAVAILABLE: it cannot be written, with the path and the reason; else the error of `write`.
absl::Status WriteOutput(const std::string& path, const std::function<absl::Status(const Sink&)>& write);

}  // namespace lgpu::cli

#endif  // LGPU_CLI_OUTPUT_FILE_H_
