#include "cli/output_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"
#include "cli/output.h"
#include "lgpu/status.h"

namespace lgpu::cli {
namespace {

struct OutputFileCloser {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using OpenFile = std::unique_ptr<std::FILE, OutputFileCloser>;

absl::Status WriteFailed(const std::string& path) {
  return absl::UnavailableError(absl::StrCat("cannot write ", path, ": ", std::strerror(errno)));
}

absl::Status WriteInto(OpenFile file, const std::string& path,
                       const std::function<absl::Status(const Sink&)>& write) {
  LGPU_RETURN_IF_ERROR(write([&](std::string_view piece) {
    return std::fwrite(piece.data(), 1, piece.size(), file.get()) == piece.size() ? absl::OkStatus()
                                                                                  : WriteFailed(path);
  }));
  return std::fclose(file.release()) == 0 ? absl::OkStatus() : WriteFailed(path);
}

/// The target of a link, so that the link stays one; the path itself where there is no file yet.
std::string TargetOfLinks(const std::string& path) {
  const std::unique_ptr<char, decltype(&std::free)> target(::realpath(path.c_str(), nullptr), &std::free);
  return target == nullptr ? path : target.get();
}

}  // namespace

absl::Status WriteOutput(const std::string& path, const std::function<absl::Status(const Sink&)>& write) {
  if (path.empty()) return write(WriteOut);
  const std::string target = TargetOfLinks(path);
  struct stat info = {};
  const bool is_there = ::stat(target.c_str(), &info) == 0;
  if (is_there && !S_ISREG(info.st_mode)) {
    OpenFile file(std::fopen(target.c_str(), "we"));
    return file == nullptr ? WriteFailed(path) : WriteInto(std::move(file), path, write);
  }
  const std::string beside = absl::StrCat(target, ".", ::getpid(), ".tmp");
  const int fd =
      ::open(beside.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, is_there ? info.st_mode & 0777 : 0666);
  if (fd < 0) return WriteFailed(path);
  OpenFile file(::fdopen(fd, "w"));
  absl::Status status = file == nullptr ? WriteFailed(path) : WriteInto(std::move(file), path, write);
  if (status.ok() && std::rename(beside.c_str(), target.c_str()) != 0) status = WriteFailed(path);
  if (!status.ok()) ::unlink(beside.c_str());
  return status;
}

}  // namespace lgpu::cli
