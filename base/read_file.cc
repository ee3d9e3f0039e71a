#include "base/read_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/unique_fd.h"

namespace lgpu {
namespace {

absl::Status CannotRead(const std::string& path, int error) {
  const std::string text = absl::StrCat("cannot read ", path, ": ", std::strerror(error));
  if (error == ENOENT || error == ENOTDIR) return absl::NotFoundError(text);
  return absl::Status(absl::ErrnoToStatusCode(error), text);
}

}  // namespace

absl::StatusOr<std::string> ReadWholeFile(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return CannotRead(path, errno);
  std::string text;
  std::array<char, 16384> part;
  while (true) {
    const ssize_t count = ::read(file.get(), part.data(), part.size());
    if (count == 0) return text;
    if (count > 0) {
      text.append(part.data(), static_cast<std::size_t>(count));
    } else if (errno != EINTR) {
      return CannotRead(path, errno);
    }
  }
}

}  // namespace lgpu
