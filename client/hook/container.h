#ifndef LGPU_CLIENT_HOOK_CONTAINER_H_
#define LGPU_CLIENT_HOOK_CONTAINER_H_

#include <string>
#include <vector>

#include "client/hook/root.h"

namespace lgpu::hook {

/// A Container is what the runtime says of a container that it is about to start.
struct Container {
  Root root;
  std::vector<std::string> search_path;  // LD_LIBRARY_PATH of its first process
  std::vector<std::string> mounts;       // where the runtime has mounted something
  std::string mount_label;               // of SELinux; "": none
};

/// Reads the state that the runtime writes to a hook's `state` (OCI runtime specification), and the
/// configuration that it names. Refuses where neither leads to a root.
Container ReadContainer(int state);

/// The elements of a search path that are absolute.
std::vector<std::string> FoldersOf(const std::string& search_path);

}  // namespace lgpu::hook

#endif  // LGPU_CLIENT_HOOK_CONTAINER_H_
