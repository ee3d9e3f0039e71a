#include "daemon/recovery/journal_io.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/unique_fd.h"
#include "daemon/recovery/journal_format.h"
#include "lgpu/status.h"

namespace lgpu::daemon {
namespace {

absl::Status Failed(std::string_view call, const std::string& name, int error) {
  const std::string text = absl::StrCat(std::string(call), " ", name, ": ", std::strerror(error));
  return error == ENOSPC || error == EDQUOT || error == EFBIG || error == EMFILE || error == ENFILE
             ? absl::ResourceExhaustedError(text)
             : absl::InternalError(text);
}

}  // namespace

absl::StatusOr<std::optional<std::string>> ReadFile(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file && errno == ENOENT) return std::optional<std::string>();
  if (!file) return absl::ErrnoToStatus(errno, absl::StrCat("cannot read ", path));
  std::string bytes;
  std::array<char, 65536> buffer;
  while (true) {
    const ssize_t got = ::read(file.get(), buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot read ", path));
    if (got == 0) return std::optional<std::string>(std::move(bytes));
    bytes.append(buffer.data(), static_cast<std::size_t>(got));
  }
}

absl::Status AppendToFile(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return Failed("write to", "the journal", errno);
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  return absl::OkStatus();
}

absl::Status WriteJournalLength(int fd, std::uint64_t length) {
  const std::string bytes = EncodeJournalLength(length);
  while (true) {
    const ssize_t written = ::pwrite(fd, bytes.data(), bytes.size(), kJournalLengthAt);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return Failed("write the length of", "the journal", errno);
    if (static_cast<std::size_t>(written) == bytes.size()) return absl::OkStatus();
    return absl::InternalError("write the length of the journal: only a part of it was written");
  }
}

absl::Status ReplaceFile(int directory, const std::string& name, std::string_view bytes, bool sync) {
  const std::string beside = name + ".new";
  UniqueFd file(
      ::openat(directory, beside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!file) return Failed("open", beside, errno);
  absl::Status status = AppendToFile(file.get(), bytes);
  if (status.ok() && sync && ::fsync(file.get()) != 0) status = Failed("fsync", beside, errno);
  if (status.ok() && ::renameat(directory, beside.c_str(), directory, name.c_str()) != 0) {
    status = Failed("rename to", name, errno);
  }
  if (!status.ok()) {
    ::unlinkat(directory, beside.c_str(), 0);
    return status;
  }
  if (sync && ::fsync(directory) != 0) return Failed("fsync of the directory of", name, errno);
  return absl::OkStatus();
}

void KeepDamaged(const std::string& path) {
  const std::string aside = path + ".damaged";
  (void)::unlink(aside.c_str());
  (void)::link(path.c_str(), aside.c_str());
}

}  // namespace lgpu::daemon
