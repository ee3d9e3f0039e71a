#ifndef LGPU_TESTS_DAEMON_TEMPORARY_DIRECTORY_H_
#define LGPU_TESTS_DAEMON_TEMPORARY_DIRECTORY_H_

#include <stdlib.h>

#include <filesystem>
#include <string>
#include <system_error>

namespace lgpu::daemon {

/// An empty directory under /tmp (socket paths are short) that goes with its contents.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    char name[] = "/tmp/lgpu-test-XXXXXX";
    path_ = ::mkdtemp(name) == nullptr ? "" : name;
  }
  ~TemporaryDirectory() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace lgpu::daemon

#endif  // LGPU_TESTS_DAEMON_TEMPORARY_DIRECTORY_H_
