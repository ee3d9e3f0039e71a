// Configurations as lists of settings: for people, and to compare two of them.

#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "daemon/server/config.h"

namespace lgpu::daemon {
namespace {

std::vector<Setting> Values(const Config& config) {
  return {{"daemon.runtime_dir", config.runtime_dir, ""},
          {"daemon.state_dir", config.state_dir, ""},
          {"daemon.lock_dir", config.lock_dir, ""},
          {"daemon.socket_group", config.socket_group, ""},
          {"daemon.socket_mode", absl::StrFormat("0o%o", config.socket_mode), ""},
          {"daemon.log_level", config.log_level, ""},
          {"daemon.log_format", config.log_format, ""},
          {"daemon.max_sessions", absl::StrCat(config.max_sessions), ""},
          {"devices.visible", config.has_cuda_visible_devices ? config.cuda_visible_devices : "all", ""},
          {"memory.reserve", FormatBytes(config.reserve), ""},
          {"memory.overhead_allowance",
           config.overhead_allowance
               ? FormatBytes(*config.overhead_allowance)
               : absl::StrCat(FormatBytes(Config::kUsualOverhead), " where NVML answers, else 0B"),
           ""},
          {"memory.on_uncharged", config.on_uncharged, ""},
          {"memory.max_drain", absl::StrCat(config.max_drain.count(), "ms"), ""},
          {"memory.give_way_wait", absl::StrCat(config.give_way_wait.count(), "ms"), ""},
          {"memory.min_run", absl::StrCat(config.min_run.count(), "ms"), ""},
          {"memory.default_mode", config.policy.preallocate ? "preallocate" : "growth", ""},
          {"placements.records", absl::StrCat(config.policy.placement_records), ""},
          {"events.kept", absl::StrCat(config.kept_events), ""},
          {"http.listen", config.http.listen.empty() ? "off" : config.http.listen, ""},
          {"http.token_file", config.http.token_file.empty() ? "none" : config.http.token_file, ""},
          {"http.owners", config.http.owners, ""},
          {"http.show_users", config.http.show_users ? "true" : "false", ""}};
}

// These a running daemon takes over.
bool IsLive(const std::string& key) {
  return key == "daemon.log_level" || key == "memory.default_mode" || key == "placements.records";
}

}  // namespace

std::vector<Setting> ListSettings(const Config& config) {
  std::vector<Setting> settings = Values(config);
  for (Setting& setting : settings) {
    const auto found = config.origins.find(setting.key);
    setting.origin = found == config.origins.end() ? "default" : found->second;
  }
  return settings;
}

std::vector<std::string> NeedRestart(const Config& running, const Config& wanted) {
  std::vector<std::string> keys;
  const std::vector<Setting> before = Values(running);
  const std::vector<Setting> after = Values(wanted);
  for (std::size_t i = 0; i < before.size(); ++i) {
    if (before[i].value != after[i].value && !IsLive(before[i].key)) keys.push_back(before[i].key);
  }
  if (running.simulated != wanted.simulated) keys.emplace_back("simulated_device");
  return keys;
}

}  // namespace lgpu::daemon
