#ifndef LGPU_DAEMON_SERVER_HOOK_LINK_H_
#define LGPU_DAEMON_SERVER_HOOK_LINK_H_

#include <filesystem>

namespace lgpu::daemon {

/// Makes the link `hook` in the runtime directory, which leads to this machine's lgpu-hook; without an
/// installed one there is no link. `lgpu env --format cdi` reads it, and may run where the machine's files
/// are not seen.
void LinkHook(const std::filesystem::path& runtime_directory);

}  // namespace lgpu::daemon

#endif  // LGPU_DAEMON_SERVER_HOOK_LINK_H_
