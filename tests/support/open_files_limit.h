#ifndef LGPU_TESTS_SUPPORT_OPEN_FILES_LIMIT_H_
#define LGPU_TESTS_SUPPORT_OPEN_FILES_LIMIT_H_

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "base/unique_fd.h"

namespace lgpu {

/// An OpenFilesLimit is this process's soft limit of open files for its own lifetime. It cannot exceed the
/// hard limit.
class OpenFilesLimit {
 public:
  static constexpr rlim_t kAll = RLIM_INFINITY;  // the hard limit

  /// With this limit the process can open so many more files.
  static rlim_t ForMore(int more) {
    std::vector<UniqueFd> lowest;
    while (static_cast<int>(lowest.size()) <= more) lowest.emplace_back(::dup(STDIN_FILENO));
    return static_cast<rlim_t>(lowest.back().get());
  }

  explicit OpenFilesLimit(rlim_t files) {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit now = {.rlim_cur = std::min(files, before_.rlim_max), .rlim_max = before_.rlim_max};
    ::setrlimit(RLIMIT_NOFILE, &now);
  }
  OpenFilesLimit(const OpenFilesLimit&) = delete;
  OpenFilesLimit& operator=(const OpenFilesLimit&) = delete;
  ~OpenFilesLimit() { ::setrlimit(RLIMIT_NOFILE, &before_); }

  rlim_t hard() const { return before_.rlim_max; }

 private:
  rlimit before_ = {};
};

}  // namespace lgpu

#endif  // LGPU_TESTS_SUPPORT_OPEN_FILES_LIMIT_H_
