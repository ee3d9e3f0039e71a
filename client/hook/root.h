#ifndef LGPU_CLIENT_HOOK_ROOT_H_
#define LGPU_CLIENT_HOOK_ROOT_H_

#include <sys/stat.h>

#include <string>
#include <utility>
#include <vector>

#include "base/unique_fd.h"

namespace lgpu::hook {

/// A Root is a container's root. Nothing in it is trusted: a path, with every link on its way, ends inside of
/// it (openat2 with RESOLVE_IN_ROOT), and only regular files are opened.
class Root {
 public:
  explicit Root(UniqueFd directory) : directory_(std::move(directory)) {}

  /// A regular file for reading. Empty: there is none, or it is of another kind.
  UniqueFd OpenFile(const std::string& path) const;
  /// Empty: there is no such folder.
  UniqueFd OpenFolder(const std::string& path) const;
  /// Makes the folder and those above it where they are missing. Refuses where the root allows none.
  UniqueFd MakeFolder(const std::string& path) const;
  /// Looks at what lies there, of any kind. False: nothing.
  bool Look(const std::string& path, struct stat* found) const;
  /// The names in a folder; nothing where there is none.
  std::vector<std::string> List(const std::string& path) const;
  /// The first bytes of a regular file; "" where there is none.
  std::string ReadText(const std::string& path) const;

 private:
  UniqueFd Open(const std::string& path, int flags) const;

  UniqueFd directory_;
};

/// All that `fd` has, up to `most` bytes.
std::string ReadSome(int fd, std::size_t most);

}  // namespace lgpu::hook

#endif  // LGPU_CLIENT_HOOK_ROOT_H_
