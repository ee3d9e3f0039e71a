#ifndef LGPU_CLI_ERRORS_H_
#define LGPU_CLI_ERRORS_H_

#include <string>

#include "absl/status/status.h"
#include "cli/output.h"
#include "nlohmann/json.hpp"

namespace lgpu::cli {

/// The text of an error as it goes to stderr, with a newline at its end:
///
///   lgpu: error: memory limit reached on /device:GPU:0 of lease train [RESOURCE_EXHAUSTED]
///     asked for  512.00MiB
///     try: lgpu resize train --memory 5GiB
///
/// A status that carries a Refusal is shown through FormatRefusal. Control characters are made harmless.
std::string FormatError(const absl::Status& status, const Style& style);

/// The same for --json: {"schema": "lgpu.error/v1", "code": ..., "message": ..., "exit_code": ...} and, if
/// there is one, "refusal" with its numbers.
nlohmann::json ErrorToJson(const absl::Status& status, int exit_code);

}  // namespace lgpu::cli

#endif  // LGPU_CLI_ERRORS_H_
