#include "daemon/server/hook_link.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <system_error>

namespace lgpu::daemon {

void LinkHook(const std::filesystem::path& runtime_directory) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path above = fs::read_symlink("/proc/self/exe", error).parent_path().parent_path();
  const fs::path link = runtime_directory / "hook";
  // Installed, and in the build tree.
  for (const fs::path& hook : {above / LGPU_HOOK_FROM_PREFIX, above / "client/driver/lgpu-hook"}) {
    if (::access(hook.c_str(), X_OK) != 0) continue;
    if (fs::read_symlink(link, error) == hook && !error) return;
    fs::remove(link, error);
    fs::create_symlink(hook, link, error);
    if (error) spdlog::warn("cannot make the link {}: {}", link.string(), error.message());
    return;
  }
  fs::remove(link, error);
}

}  // namespace lgpu::daemon
