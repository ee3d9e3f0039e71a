#ifndef LGPU_TESTS_SUPPORT_OPEN_FILES_LIMIT_H_
#define LGPU_TESTS_SUPPORT_OPEN_FILES_LIMIT_H_

#include <sys/resource.h>

#include <algorithm>

namespace lgpu {

/// An OpenFilesLimit is this process's soft limit of open files for its own lifetime. It cannot exceed the
/// hard limit.
class OpenFilesLimit {
 public:
  static constexpr rlim_t kAll = RLIM_INFINITY;  // the hard limit

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
