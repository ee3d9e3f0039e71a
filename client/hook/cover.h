#ifndef LGPU_CLIENT_HOOK_COVER_H_
#define LGPU_CLIENT_HOOK_COVER_H_

#include <string>
#include <vector>

#include "client/driver/shim_file.h"
#include "client/hook/container.h"
#include "client/hook/driver_search.h"

namespace lgpu::hook {

/// An installed library of lgpu's, which the machine has.
struct Installed {
  Library names;
  shim::ShimFile file;
};

struct Lease {
  std::string id;
  std::string cards;      // UUIDs with commas between them
  std::string directory;  // on the machine; the runtime has mounted it
};

/// Reads lgpu's libraries beside this program. Refuses where one is missing or damaged.
std::vector<Installed> ReadInstalled();

/// Puts a copy of lgpu's library with the lease's variables in its note over each file of the driver in the
/// container, so that a program reaches it by any path. Refuses, and the container does not start, where a
/// program would not be limited. The process is in the container's mount namespace, before its root changes.
void Cover(const Container& container, const std::vector<Installed>& libraries, const Lease& lease);

}  // namespace lgpu::hook

#endif  // LGPU_CLIENT_HOOK_COVER_H_
