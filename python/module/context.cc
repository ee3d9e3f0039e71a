#include "lgpu/context.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <string>

#include "lgpu/bytes.h"
#include "lgpu/config.h"
#include "lgpu/tensor_export.h"
#include "python/module/bind.h"
#include "python/module/dicts.h"
#include "python/module/errors.h"
#include "python/module/numbers.h"
#include "python/module/scopes.h"
#include "python/module/sinks.h"
#include "python/module/words.h"

namespace lgpu::python {

namespace nb = nanobind;
using nb::literals::operator""_a;

namespace {

void SetOption(ContextOptions& options, const std::string& name, nb::handle value) {
  if (name == "devices") {
    options.logical_devices = nb::cast<std::vector<LogicalDeviceOptions>>(value);
  } else if (name == "lease") {
    options.lease = nb::cast<std::string>(value);
  } else if (name == "lease_name") {
    options.lease_name = nb::cast<std::string>(value);
  } else if (name == "endpoint") {
    options.endpoint = nb::cast<std::string>(value);
  } else if (name == "log_device_placement") {
    options.log_device_placement = nb::cast<bool>(value);
  } else if (name == "graph_log_format") {
    if (nb::cast<bool>(value)) options.placement_log_format = PlacementLogFormat::kGraph;
  } else if (name == "soft_device_placement") {
    options.soft_device_placement = nb::cast<bool>(value);
  } else if (name == "device_policy") {
    options.device_policy = PolicyOf(nb::cast<std::string>(value));
  } else if (name == "pin_small_ops") {
    options.pin_small_ops = nb::cast<bool>(value);
  } else if (name == "allocation_timeout_ms") {
    options.allocation_timeout = std::chrono::milliseconds(nb::cast<std::int64_t>(value));
  } else if (name == "cast_on_gpu") {
    options.cast_on_gpu = nb::cast<bool>(value);
  } else if (name == "tensor_float_32") {
    options.tensor_float_32 = nb::cast<bool>(value);
  } else if (name == "log_sink") {
    options.log_sink = SinkOf(nb::borrow(value));
  } else {
    throw StatusError(absl::InvalidArgumentError("there is no option \"" + name + "\" of a Context"));
  }
}

/// `options` with what is given in their place.
ContextOptions OptionsOf(const nb::dict& given, ContextOptions options) {
  for (const auto& [key, value] : given) {
    const auto name = nb::cast<std::string>(key);
    try {
      SetOption(options, name, value);
    } catch (const nb::cast_error&) {
      const std::string text = name + " of a Context cannot be " + nb::cast<std::string>(nb::repr(value));
      throw nb::type_error(text.c_str());
    }
  }
  return options;
}

nb::dict ExplanationDict(const PlacementExplanation& explanation) {
  nb::dict dict;
  dict["op"] = explanation.op;
  dict["dtype"] = NameOf(explanation.dtype);
  dict["requested"] = explanation.requested;
  dict["soft_placement"] = explanation.soft_placement;
  dict["device"] = explanation.device;
  dict["soft_placed"] = explanation.soft_placed;
  nb::list candidates;
  for (const PlacementCandidate& candidate : explanation.candidates) {
    nb::dict one;
    one["device"] = candidate.device;
    one["taken"] = candidate.taken;
    one["why"] = candidate.why;
    candidates.append(one);
  }
  dict["candidates"] = candidates;
  nb::list copies;
  for (const PlacementCopy& copy : explanation.copies) {
    nb::dict one;
    one["input"] = copy.input;
    one["from"] = copy.from;
    one["to"] = copy.to;
    one["bytes"] = copy.bytes.count();
    one["why"] = copy.why;
    copies.append(one);
  }
  dict["copies"] = copies;
  dict["error"] = explanation.status.ok() ? nb::none() : ExceptionOf(explanation.status);
  dict["text"] = explanation.ToString();
  return dict;
}

/// The bytes of an object with Python's buffer, as long as this lives.
class HostBytes {
 public:
  HostBytes(nb::handle object, int flags) {
    if (PyObject_GetBuffer(object.ptr(), &view_, flags) != 0) throw nb::python_error();
  }
  ~HostBytes() { PyBuffer_Release(&view_); }
  HostBytes(const HostBytes&) = delete;
  HostBytes& operator=(const HostBytes&) = delete;
  std::byte* data() const { return static_cast<std::byte*>(view_.buf); }
  std::size_t size() const { return static_cast<std::size_t>(view_.len); }

 private:
  Py_buffer view_{};
};

Tensor Constant(PyContext& self, const std::string& dtype, const std::vector<std::int64_t>& shape,
                nb::handle values) {
  const HostBytes bytes(values, PyBUF_SIMPLE);
  const DType type = DTypeOf(dtype);
  const Shape dimensions = Check(Shape::Make(shape));
  return Check(InScopes(
      [&] { return self.get().ConstantBytes(type, dimensions, std::span(bytes.data(), bytes.size())); }));
}

/// Raises for any other status than OK.
void CheckNotInUse(const absl::Status& status) {
  if (IsMemoryInUse(status)) {
    const absl::string_view text = status.message();
    const nb::object error =
        nb::module_::import_("lgpu.errors").attr("ExportsInUseError")(std::string(text.data(), text.size()));
    PyErr_SetObject(error.type().ptr(), error.ptr());
    throw nb::python_error();
  }
  Check(status);
}

void Close(PyContext& self) {
  CheckNotInSink();
  CheckNotInUse(Waiting([&] { return self.get().Close(); }));
}

void Suspend(PyContext& self) {
  CheckNotInSink();
  CheckNotInUse(Waiting([&] { return self.get().Suspend(); }));
}

void BindMembers(nb::class_<PyContext>& type) {
  type.def("close", &Close)
      .def("suspend", &Suspend)
      .def("resume", [](PyContext& self) { Check(Waiting([&] { return self.get().Resume(); })); })
      .def(
          "retire", [](PyContext& self) { self.Retire(); },
          "Ends the Context now; arrays of other libraries that use its memory keep it until the last is "
          "gone.")
      .def("constant", &Constant, "dtype"_a, "shape"_a, "values"_a)
      .def(
          "constant_of_numbers",
          [](PyContext& self, nb::handle value) { return ConstantOfNumbers(self.get(), value); },
          nb::arg("value").none(),
          nb::sig("def constant_of_numbers(self, value: typing.Any) -> Tensor | None"),
          "None: the value is not made of Python's own numbers alone.")
      .def_prop_ro("lease", [](PyContext& self) { return self.get().lease(); })
      .def("logical_devices",
           [](PyContext& self) {
             nb::list devices;
             for (const LogicalDeviceInfo& device : self.get().logical_devices()) {
               devices.append(DictOf(device));
             }
             return devices;
           })
      .def(
          "list_logical_devices",
          [](PyContext& self, const std::string& type_name) {
            nb::list devices;
            for (const LogicalDeviceName& device : self.get().ListLogicalDevices(type_name)) {
              devices.append(nb::make_tuple(device.name, device.device_type));
            }
            return devices;
          },
          "device_type"_a = "")
      .def(
          "resize",
          [](PyContext& self, const std::string& device, std::uint64_t limit,
             std::optional<std::uint64_t> guarantee) {
            ResizeOptions options{.memory_limit = Bytes(limit)};
            if (guarantee) options.guarantee = Bytes(*guarantee);
            Check(Waiting([&] { return self.get().ResizeDevice(device, options); }));
          },
          "device"_a, "memory_limit"_a, "guarantee"_a = nb::none())
      .def("trim", [](PyContext& self) { return Check(Waiting([&] { return self.get().Trim(); })).count(); })
      .def("memory_info",
           [](PyContext& self, const std::string& device) {
             const MemoryInfo info = Check(self.get().GetMemoryInfo(device));
             nb::dict dict;
             dict["current"] = info.current.count();
             dict["peak"] = info.peak.count();
             return dict;
           })
      .def("memory_stats",
           [](PyContext& self, const std::string& device) {
             return DictOf(Check(self.get().GetMemoryStats(device)));
           })
      .def("memory_summary", [](PyContext& self) { return self.get().MemorySummary(); })
      .def("reset_memory_stats",
           [](PyContext& self, const std::string& device) { Check(self.get().ResetMemoryStats(device)); })
      .def("exports",
           [](PyContext& self) {
             const Context::ExportCount count = self.get().Exports();
             return nb::make_tuple(count.exports, count.bytes.count());
           })
      .def("device_mapping", [](PyContext& self) { return self.get().DeviceMapping(); })
      .def("set_device_policy",
           [](PyContext& self, const std::string& word) { self.get().SetDevicePolicy(PolicyOf(word)); })
      .def("set_log_device_placement", [](PyContext& self, bool on) { self.get().SetLogDevicePlacement(on); })
      .def("set_soft_device_placement",
           [](PyContext& self, bool on) { self.get().SetSoftDevicePlacement(on); })
      .def("op_counts",
           [](PyContext& self) {
             nb::dict counts;
             for (const Context::OpCount& count : self.get().OpCounts()) {
               counts[count.device.c_str()] = nb::make_tuple(count.ops, count.soft_placed);
             }
             return counts;
           })
      .def("copy_counts",
           [](PyContext& self) {
             nb::list routes;
             for (const Context::CopyRoute& route : self.get().CopyRoutes()) {
               routes.append(
                   nb::make_tuple(route.from, route.to, route.count.copies, route.count.bytes.count()));
             }
             return routes;
           })
      .def(
          "explain",
          [](PyContext& self, const std::string& op, const std::vector<Tensor>& inputs, bool transpose_a,
             bool transpose_b, const std::optional<std::string>& cast_to) {
            const Context::ExplainOptions options{.transpose_a = transpose_a,
                                                  .transpose_b = transpose_b,
                                                  .cast_to = cast_to ? DTypeOf(*cast_to) : DType::kInvalid};
            return ExplanationDict(Check(InScopes([&] { return self.get().Explain(op, inputs, options); })));
          },
          "op"_a, "inputs"_a, "transpose_a"_a, "transpose_b"_a, "cast_to"_a.none());
}

}  // namespace

void BindContext(nb::module_& module) {
  nb::class_<LogicalDeviceOptions>(module, "LogicalDeviceOptions", "One logical device to ask for.")
      .def(
          "__init__",
          [](LogicalDeviceOptions* self, std::optional<std::uint64_t> memory_limit, std::uint64_t guarantee,
             bool preallocate, std::string physical_device, std::string name, int priority) {
            new (self)
                LogicalDeviceOptions{.memory_limit = OptionalBytes(memory_limit),
                                     .guarantee = Bytes(guarantee),
                                     .mode = preallocate ? MemoryMode::kPreallocate : MemoryMode::kGrowth,
                                     .physical_device = std::move(physical_device),
                                     .name = std::move(name),
                                     .priority = priority};
          },
          "memory_limit"_a.none(), "guarantee"_a, "preallocate"_a, "physical_device"_a, "name"_a,
          "priority"_a);
  nb::class_<PyContext> type(module, "Context", nb::is_weak_referenceable(),
                             "The connection to logical devices; lgpu.Context is made of it.");
  type.def(
          "__init__",
          [](PyContext* self, const nb::dict& given) {
            const ContextOptions options = OptionsOf(given, ContextOptions());
            new (self) PyContext(Check(Waiting([&] { return Context::Create(options); })));
          },
          "options"_a)
      .def(
          "__init__",
          [](PyContext* self, const nb::dict& given, Config& config, bool has_devices_of_config) {
            const ContextOptions options = OptionsOf(given, config.GetContextOptions());
            new (self) PyContext(Check(Waiting([&] {
              return has_devices_of_config ? Context::Create(config, options) : Context::Create(options);
            })));
          },
          "options"_a, "config"_a, "has_devices_of_config"_a);
  BindMembers(type);
  module.def(
      "parse_bytes", [](const std::string& text) { return Check(ParseBytes(text)).count(); }, "text"_a,
      "Reads a size as the command does: \"2GiB\", \"512M\".");
  module.def(
      "format_bytes", [](std::uint64_t bytes) { return FormatBytes(Bytes(bytes)); }, "bytes"_a,
      "Writes a size as the command does.");
}

}  // namespace lgpu::python
