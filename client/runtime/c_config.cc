#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "client/runtime/c_handles.h"

using lgpu::c::Missing;
using lgpu::c::NewStrings;
using lgpu::c::Report;
using lgpu::c::Text;

namespace {

template <typename Devices>
std::vector<std::string> NamesOf(const Devices& devices) {
  std::vector<std::string> names;
  for (const auto& device : devices) names.push_back(device.name);
  return names;
}

}  // namespace

void lgpu_strings_delete(lgpu_strings* strings) { std::unique_ptr<lgpu_strings>{strings}.reset(); }
size_t lgpu_strings_count(const lgpu_strings* strings) {
  return strings == nullptr ? 0 : strings->strings.size();
}
const char* lgpu_strings_at(const lgpu_strings* strings, size_t index) {
  return index < lgpu_strings_count(strings) ? strings->strings[index].c_str() : nullptr;
}

lgpu_code lgpu_config_create(const char* endpoint, int strict, lgpu_config** config, lgpu_status* status) {
  if (config == nullptr) return Missing("the place for the config", status);
  absl::StatusOr<lgpu::Config> created =
      lgpu::Config::Create({.mode = strict != 0 ? lgpu::ConfigMode::kStrict : lgpu::ConfigMode::kNative,
                            .endpoint = Text(endpoint)});
  if (created.ok()) *config = std::make_unique<lgpu_config>(lgpu_config{*std::move(created)}).release();
  return Report(created.status(), status);
}
void lgpu_config_delete(lgpu_config* config) { std::unique_ptr<lgpu_config>{config}.reset(); }

lgpu_strings* lgpu_config_list_physical_devices(const lgpu_config* config, const char* type) {
  return config == nullptr ? nullptr : NewStrings(NamesOf(config->config.ListPhysicalDevices(Text(type))));
}
lgpu_code lgpu_config_list_logical_devices(const lgpu_config* config, const char* type,
                                           lgpu_strings** devices, lgpu_status* status) {
  if (config == nullptr) return Missing("the config", status);
  if (devices == nullptr) return Missing("the place for the devices", status);
  const auto listed = config->config.ListLogicalDevices(Text(type));
  if (listed.ok()) *devices = NewStrings(NamesOf(*listed));
  return Report(listed.status(), status);
}
lgpu_code lgpu_config_device_details(const lgpu_config* config, const char* device, lgpu_strings** name,
                                     int* compute_major, int* compute_minor, lgpu_status* status) {
  if (config == nullptr) return Missing("the config", status);
  const absl::StatusOr<lgpu::DeviceDetails> details = config->config.GetDeviceDetails(Text(device));
  if (!details.ok()) return Report(details.status(), status);
  const auto [major, minor] = details->compute_capability.value_or(std::pair(0, 0));
  if (name != nullptr) *name = NewStrings({details->device_name.value_or("")});
  if (compute_major != nullptr) *compute_major = major;
  if (compute_minor != nullptr) *compute_minor = minor;
  return Report(absl::OkStatus(), status);
}

lgpu_code lgpu_config_set_visible_devices(lgpu_config* config, const char* const* devices, size_t count,
                                          const char* type, lgpu_status* status) {
  if (config == nullptr) return Missing("the config", status);
  if (count > 0 && devices == nullptr) return Missing("the list of devices", status);
  std::vector<std::string> names;
  for (const char* device : std::span(devices, count)) names.push_back(Text(device));
  return Report(config->config.SetVisibleDevices(names, Text(type)), status);
}
lgpu_strings* lgpu_config_get_visible_devices(const lgpu_config* config, const char* type) {
  return config == nullptr ? nullptr : NewStrings(NamesOf(config->config.GetVisibleDevices(Text(type))));
}

lgpu_code lgpu_config_set_memory_growth(lgpu_config* config, const char* device, int on,
                                        lgpu_status* status) {
  if (config == nullptr) return Missing("the config", status);
  return Report(config->config.SetMemoryGrowth(Text(device), on != 0), status);
}
lgpu_code lgpu_config_get_memory_growth(const lgpu_config* config, const char* device, int* on,
                                        lgpu_status* status) {
  if (config == nullptr) return Missing("the config", status);
  const absl::StatusOr<std::optional<bool>> growth = config->config.GetMemoryGrowth(Text(device));
  if (growth.ok() && on != nullptr) *on = growth->has_value() ? (**growth ? 1 : 0) : -1;
  return Report(growth.status(), status);
}
lgpu_code lgpu_config_set_logical_devices(lgpu_config* config, const char* device, size_t count,
                                          const uint64_t* memory_limits, const uint64_t* guarantees,
                                          const int* priorities, const int* ordinals, lgpu_status* status) {
  if (config == nullptr) return Missing("the config", status);
  constexpr std::size_t kMost = 1024;
  if (count > kMost) {
    return Report(absl::InvalidArgumentError(std::to_string(count) + " logical devices of one GPU; at most " +
                                             std::to_string(kMost) + " can be asked for"),
                  status);
  }
  std::vector<lgpu::LogicalDeviceConfiguration> parts(count);
  for (std::size_t i = 0; i < count; ++i) {
    if (memory_limits != nullptr && memory_limits[i] > 0) {
      parts[i].memory_limit = lgpu::Bytes(memory_limits[i]);
    }
    if (guarantees != nullptr) parts[i].guarantee = lgpu::Bytes(guarantees[i]);
    if (priorities != nullptr) parts[i].priority = priorities[i];
    if (ordinals != nullptr) parts[i].device_ordinal = ordinals[i];
  }
  return Report(config->config.SetLogicalDeviceConfiguration(Text(device), parts), status);
}
lgpu_code lgpu_config_set_memory_fraction(lgpu_config* config, double fraction, lgpu_status* status) {
  if (config == nullptr) return Missing("the config", status);
  return Report(config->config.SetPerProcessGpuMemoryFraction(fraction), status);
}

void lgpu_config_set_soft_device_placement(lgpu_config* config, int on) {
  if (config != nullptr) config->config.SetSoftDevicePlacement(on != 0);
}
int lgpu_config_get_soft_device_placement(const lgpu_config* config) {
  return config != nullptr && config->config.GetSoftDevicePlacement() ? 1 : 0;
}
void lgpu_config_set_log_device_placement(lgpu_config* config, int on) {
  if (config != nullptr) config->config.SetLogDevicePlacement(on != 0);
}
int lgpu_config_get_log_device_placement(const lgpu_config* config) {
  return config != nullptr && config->config.GetLogDevicePlacement() ? 1 : 0;
}
void lgpu_config_set_graph_placement_log(lgpu_config* config, int on) {
  if (config == nullptr) return;
  config->config.SetPlacementLogFormat(on != 0 ? lgpu::PlacementLogFormat::kGraph
                                               : lgpu::PlacementLogFormat::kEager);
}
lgpu_code lgpu_config_set_device_policy(lgpu_config* config, const char* policy, lgpu_status* status) {
  if (config == nullptr) return Missing("the config", status);
  if (policy == nullptr) return Report(config->config.SetDevicePolicy(std::nullopt), status);
  return Report(config->config.SetDevicePolicy(policy), status);
}
const char* lgpu_config_get_device_policy(const lgpu_config* config) {
  // The words are constants of the library, and end in a zero.
  return config == nullptr ? "" : config->config.GetDevicePolicy().data();
}

lgpu_code lgpu_context_create_from_config(lgpu_config* config, lgpu_context** context, lgpu_status* status) {
  if (config == nullptr) return Missing("the config", status);
  if (context == nullptr) return Missing("the place for the context", status);
  absl::StatusOr<lgpu::Context> created = lgpu::Context::Create(config->config);
  if (created.ok()) *context = std::make_unique<lgpu_context>(lgpu_context{*std::move(created)}).release();
  return Report(created.status(), status);
}
