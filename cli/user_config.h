#ifndef LGPU_CLI_USER_CONFIG_H_
#define LGPU_CLI_USER_CONFIG_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lgpu::cli {

/// One value of a file, and its place.
struct UserSetting {
  std::string value = {};   // empty: no file has it
  std::string origin = {};  // "/home/a/.config/lgpu/config.toml:3:1"
};

/// The settings of config.toml for lgpu itself; flags and variables win. The daemon is not among them:
/// programs of the library would not follow that.
struct UserConfig {
  UserSetting color;                    // "auto", "always" or "never"
  UserSetting timeout;                  // a duration
  std::vector<std::string> notes = {};  // files that cannot be read
};

/// The files in the order in which they are read, the later one winning: the system's in `system_dir`, the
/// user's.
std::vector<std::string> UserConfigFiles(const std::string& xdg_config_home, const std::string& home,
                                         const std::string& system_dir);

/// Reads TOML `text` over what `config` has. INVALID_ARGUMENT with path:line:column.
absl::Status ApplyUserConfig(std::string_view text, const std::string& path, UserConfig& config);

/// Loads the files that exist. A file that cannot be read is a note; one with a mistake is an error.
absl::StatusOr<UserConfig> LoadUserConfig(const std::vector<std::string>& files);

}  // namespace lgpu::cli

#endif  // LGPU_CLI_USER_CONFIG_H_
