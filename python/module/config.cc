#include "lgpu/config.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <vector>

#include "python/module/bind.h"
#include "python/module/errors.h"
#include "python/module/scopes.h"
#include "python/module/sinks.h"

namespace lgpu::python {

namespace nb = nanobind;
using nb::literals::operator""_a;

namespace {

nb::dict PhysicalDeviceDict(const PhysicalDeviceInfo& device) {
  nb::dict dict;
  dict["name"] = device.name;
  dict["device_type"] = device.device_type;
  dict["card_uuid"] = device.card_uuid;
  dict["card_name"] = device.card_name;
  dict["pci_bus_id"] = device.pci_bus_id;
  dict["total"] = device.total.count();
  if (device.free) dict["free"] = device.free->count();
  dict["simulated"] = device.simulated;
  return dict;
}
nb::list ListOf(const std::vector<PhysicalDeviceInfo>& devices) {
  nb::list list;
  for (const PhysicalDeviceInfo& device : devices) list.append(PhysicalDeviceDict(device));
  return list;
}

void BindDevices(nb::class_<Config>& type) {
  type.def(
          "list_physical_devices",
          [](const Config& self, const std::string& type_name) {
            return ListOf(self.ListPhysicalDevices(type_name));
          },
          "device_type"_a)
      .def(
          "list_logical_devices",
          [](const Config& self, const std::string& type_name) {
            nb::list list;
            for (const LogicalDeviceName& device : Check(self.ListLogicalDevices(type_name))) {
              list.append(nb::make_tuple(device.name, device.device_type));
            }
            return list;
          },
          "device_type"_a)
      .def("get_device_details",
           [](const Config& self, const std::string& device) {
             const DeviceDetails details = Check(self.GetDeviceDetails(device));
             nb::dict dict;
             if (details.device_name) dict["device_name"] = *details.device_name;
             if (details.compute_capability) {
               dict["compute_capability"] =
                   nb::make_tuple(details.compute_capability->first, details.compute_capability->second);
             }
             return dict;
           })
      .def("set_visible_devices",
           [](Config& self, const std::vector<std::string>& devices, const std::string& type_name) {
             Check(self.SetVisibleDevices(devices, type_name));
           })
      .def("get_visible_devices", [](const Config& self, const std::string& type_name) {
        return ListOf(self.GetVisibleDevices(type_name));
      });
}

void BindLimits(nb::class_<Config>& type) {
  type.def("set_memory_growth", [](Config& self, const std::string& device,
                                   bool growth) { Check(self.SetMemoryGrowth(device, growth)); })
      .def("get_memory_growth",
           [](const Config& self, const std::string& device) { return Check(self.GetMemoryGrowth(device)); })
      .def("set_logical_device_configuration",
           [](Config& self, const std::string& device,
              const std::vector<LogicalDeviceConfiguration>& devices) {
             Check(Waiting([&] { return self.SetLogicalDeviceConfiguration(device, devices); }));
           })
      .def("get_logical_device_configuration",
           [](const Config& self, const std::string& device) {
             return Check(self.GetLogicalDeviceConfiguration(device));
           })
      .def("set_per_process_gpu_memory_fraction",
           [](Config& self, double fraction) { Check(self.SetPerProcessGpuMemoryFraction(fraction)); });
}

void BindSwitches(nb::class_<Config>& type) {
  type.def("set_soft_device_placement", &Config::SetSoftDevicePlacement)
      .def("get_soft_device_placement", &Config::GetSoftDevicePlacement)
      .def("set_log_device_placement", &Config::SetLogDevicePlacement)
      .def("get_log_device_placement", &Config::GetLogDevicePlacement)
      .def(
          "set_device_policy",
          [](Config& self, const std::optional<std::string>& policy) {
            Check(self.SetDevicePolicy(policy ? std::optional<std::string_view>(*policy) : std::nullopt));
          },
          "policy"_a.none())
      .def("get_device_policy", [](const Config& self) { return std::string(self.GetDevicePolicy()); });
}

}  // namespace

void BindConfig(nb::module_& module) {
  nb::class_<LogicalDeviceConfiguration>(module, "LogicalDeviceConfiguration",
                                         "One logical device of a physical one.")
      .def(
          "__init__",
          [](LogicalDeviceConfiguration* self, std::optional<std::uint64_t> memory_limit,
             std::uint64_t guarantee, std::optional<int> priority, std::optional<int> device_ordinal) {
            new (self) LogicalDeviceConfiguration{.memory_limit = OptionalBytes(memory_limit),
                                                  .priority = priority,
                                                  .device_ordinal = device_ordinal,
                                                  .guarantee = Bytes(guarantee)};
          },
          "memory_limit"_a.none(), "guarantee"_a, "priority"_a.none(), "device_ordinal"_a.none())
      .def_prop_ro("memory_limit",
                   [](const LogicalDeviceConfiguration& self) -> std::optional<std::uint64_t> {
                     return self.memory_limit ? std::optional(self.memory_limit->count()) : std::nullopt;
                   })
      .def_prop_ro("guarantee", [](const LogicalDeviceConfiguration& self) { return self.guarantee.count(); })
      .def_ro("priority", &LogicalDeviceConfiguration::priority)
      .def_ro("device_ordinal", &LogicalDeviceConfiguration::device_ordinal);
  nb::class_<Config> type(module, "Config", "Which devices a Context will have; lgpu.Config is made of it.");
  type.def(
      "__init__",
      [](Config* self, bool strict, const std::string& endpoint, nb::object log_sink) {
        ConfigOptions options{.mode = strict ? ConfigMode::kStrict : ConfigMode::kNative,
                              .endpoint = endpoint};
        if (!log_sink.is_none()) options.log_sink = SinkOf(std::move(log_sink));
        new (self) Config(Check(Waiting([&] { return Config::Create(options); })));
      },
      "strict"_a, "endpoint"_a, "log_sink"_a.none());
  BindDevices(type);
  BindLimits(type);
  BindSwitches(type);
}

}  // namespace lgpu::python
