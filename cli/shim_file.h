#ifndef LGPU_CLI_SHIM_FILE_H_
#define LGPU_CLI_SHIM_FILE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace lgpu::cli {

/// A ShimFile is the bytes of one of lgpu's libraries that stand before a driver's (client/driver/), as an
/// installed file has them or as a copy of `lgpu run --isolate` does.
class ShimFile {
 public:
  /// Reads `path`. Nothing: it is no library that needs `real`, so it is none of lgpu's. INTERNAL: it is one,
  /// and damaged.
  static absl::StatusOr<std::optional<ShimFile>> Read(const std::string& path, std::string_view real);

  /// The folder in which a copy finds the real library; empty: this is no copy.
  std::string folder() const;
  /// The bytes of a copy that finds the real library in `folder`, and the lease's variables (NAME=VALUE, each
  /// with the end of a line) in its own note. INVALID_ARGUMENT: one of them is too long.
  absl::StatusOr<std::string> CopyFor(const std::string& folder, const std::string& variables) const;

 private:
  std::string bytes_;
  std::size_t note_ = 0;                 // where the PlaceNote lies in the bytes
  std::size_t runpath_ = 0;              // where the value of DT_RUNPATH lies
  std::uint64_t folder_as_runpath_ = 0;  // that value, for the note's folder
};

}  // namespace lgpu::cli

#endif  // LGPU_CLI_SHIM_FILE_H_
