#include "cli/shim_file.h"

#include <fcntl.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/unique_fd.h"
#include "client/driver/place_note.h"

namespace lgpu::cli {

absl::StatusOr<std::optional<shim::ShimFile>> ReadShimFile(const std::string& path, std::string_view real) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return std::nullopt;
  std::string damage;
  std::optional<shim::ShimFile> file = shim::ShimFile::Read(fd.get(), real, &damage);
  if (damage.empty()) return file;
  return absl::InternalError(absl::StrCat(path, ", a library of lgpu's, is damaged: ", damage,
                                          "\ntry: install the package lgpu-driver-shim again"));
}

absl::StatusOr<std::string> CopyOfShim(const shim::ShimFile& file, const std::string& folder,
                                       const std::string& variables) {
  std::optional<std::string> copy = file.CopyFor(folder, variables);
  if (copy) return *std::move(copy);
  return absl::InvalidArgumentError(absl::StrCat("the folder of links (", folder.size(),
                                                 " bytes) or the lease's variables (", variables.size(),
                                                 " bytes) have more than ", shim::PlaceNote::kRoom - 1,
                                                 " bytes\ntry: a shorter runtime directory of lgpud"));
}

}  // namespace lgpu::cli
