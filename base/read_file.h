#ifndef LGPU_BASE_READ_FILE_H_
#define LGPU_BASE_READ_FILE_H_

#include <string>

#include "absl/status/statusor.h"

namespace lgpu {

/// The whole content of a file. NOT_FOUND: there is none; else the system's error: a
/// directory, rights, too many open files. Never throws, as a stream does where there is a directory.
absl::StatusOr<std::string> ReadWholeFile(const std::string& path);

}  // namespace lgpu

#endif  // LGPU_BASE_READ_FILE_H_
