#include "client/runtime/placer.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "kernels/text.h"
#include "lgpu/device_name.h"
#include "proto/wire/placement_ring.h"

namespace lgpu::internal {

namespace {

DeviceName ThisTask() { return {.job = "localhost", .replica = 0, .task = 0}; }

bool IsBeyondConstants(const Op& op, const DeviceRequest& request) {
  return &op == &EagerConstOp() && request.elsewhere;
}

/// TensorFlow's runtime leaves a part with a star unset; Python keeps the star.
DeviceName WithoutStars(DeviceName name) {
  if (name.job == "*") name.job.reset();
  if (name.type == "*") name.type.reset();
  return name;
}

std::string_view AttributeNameOf(const Op& op) { return &op == &CastOp() ? "SrcT" : "T"; }

std::string TypeList(std::span<const DeviceType> types) {
  std::string text;
  for (const DeviceType type : types) text += Cat(text.empty() ? "" : ", ", DeviceTypeName(type));
  return text;
}

std::uint16_t RecordId(const DeviceName& name, const DeviceRequest& request) {
  constexpr std::size_t kGpu = static_cast<std::size_t>(DeviceType::kGpu);
  if (name.type == "GPU") {
    const int id = name.id.value_or(std::max(request.match[kGpu], 0));
    return id < PlacementEntry::kHostDevice ? static_cast<std::uint16_t>(id) : PlacementEntry::kNoDevice;
  }
  return name.type == "CPU" ? PlacementEntry::kHostDevice : PlacementEntry::kNoDevice;
}

}  // namespace

Placer::Placer(const KernelRegistry& registry, int gpu_count, int cpu_count)
    : registry_(registry), gpu_count_(gpu_count), cpu_count_(cpu_count) {
  for (const Op& op : AllOps()) {
    for (std::size_t dtype = 0; dtype < kDTypes; ++dtype) {
      Supported supported;
      for (const DeviceType type : registry.SupportedDevices(op, static_cast<DType>(dtype))) {
        supported.types[supported.count++] = type;
      }
      supported_.push_back(supported);
    }
  }
}

int Placer::First(DeviceType type) const {
  if (type == DeviceType::kCpu) return cpu();
  return gpu_count_ > 0 ? 0 : DeviceRequest::kNone;
}

DeviceName Placer::NameOf(int device) const {
  DeviceName name = ThisTask();
  name.type = std::string(DeviceTypeName(TypeOf(device)));
  name.id = device < gpu_count_ ? device : device - gpu_count_;
  return name;
}

std::vector<int> Placer::ByPreference() const {
  std::vector<std::pair<std::string, int>> gpus;
  std::vector<std::pair<std::string, int>> cpus;
  for (int i = 0; i < device_count(); ++i) {
    (i < gpu_count_ ? gpus : cpus).emplace_back(ToString(NameOf(i)), i);
  }
  std::sort(gpus.begin(), gpus.end());
  std::sort(cpus.begin(), cpus.end());
  std::vector<int> order;
  for (const auto& devices : {gpus, cpus}) {
    for (const auto& [name, device] : devices) order.push_back(device);
  }
  return order;
}

std::string Placer::DeviceList() const {
  std::string text;
  for (const int device : ByPreference()) text += Cat(text.empty() ? "" : ", ", ToString(NameOf(device)));
  return text;
}

DeviceRequest Placer::RequestFor(const DeviceName& name, std::string_view given) const {
  DeviceRequest request;
  request.given = std::string(given);
  request.name = request.spec = request.written = name;
  request.constrained = name != DeviceName{};
  request.may_fall_back = AreCompatible(name, ThisTask());
  request.elsewhere = !request.may_fall_back;
  request.full_name = ToString(MergeUnset(name, ThisTask()));
  request.local_name = ToString({.type = name.type, .id = name.id});
  if (request.local_name.empty()) request.local_name = request.full_name;
  const std::vector<int> order = ByPreference();
  for (auto device = order.rbegin(); device != order.rend(); ++device) {  // the first one that fits stays
    if (!AreCompatible(name, NameOf(*device))) continue;
    request.match[static_cast<std::size_t>(TypeOf(*device))] = *device;
  }
  request.record_id = RecordId(name, request);
  return request;
}

DeviceRequest Placer::Resolve(std::string_view text) const {
  std::optional<DeviceName> name = ParseFullOrLocalName(text);
  const bool known = name && (!name->type || name->type == "GPU" || name->type == "CPU");
  if (!known) {
    if (absl::StatusOr<DeviceName> lenient = ParseLenientName(text); lenient.ok()) name = *std::move(lenient);
  }
  if (name) return RequestFor(*name, text);
  DeviceRequest request;
  request.given = std::string(text);
  request.malformed = true;
  return request;
}

DeviceRequest Placer::ResolveSpec(std::string_view text, const DeviceRequest* outer) const {
  const absl::StatusOr<DeviceName> spec = ParseDeviceSpec(text);
  DeviceRequest request;
  request.given = std::string(text);
  request.malformed = true;
  if (!spec.ok()) {
    request.malformed_because = std::string(spec.status().message());
    return request;
  }
  // A scope that asks for nothing builds on nothing.
  const bool inside = outer != nullptr && outer->spec != DeviceName{};
  const DeviceName name = MergeUnset(*spec, inside ? outer->spec : NameOf(cpu()));
  const std::string text_of_name = ToString(name);
  // Python lets names through that the runtime cannot read, such as a number below zero.
  const std::optional<DeviceName> read = ParseFullName(text_of_name);
  if (read != WithoutStars(name)) {
    request.given = text_of_name;
    return request;
  }
  DeviceRequest scope = RequestFor(*read, text_of_name);
  scope.spec = name;
  scope.elsewhere = !IsSpecification(ThisTask(), name);
  if (scope.elsewhere) scope.full_name = text_of_name;
  scope.written = MergeUnset(*spec, outer != nullptr ? outer->written : DeviceName{});
  return scope;
}

int Placer::NearInputs(const Op& op, std::span<const TensorSpec> inputs, std::span<const int> devices,
                       bool pin_small_ops) const {
  constexpr std::int64_t kMostElements = 64;
  if (devices.empty() || inputs.size() != devices.size() || &op == &EagerConstOp()) {
    return DeviceRequest::kNone;
  }
  if (op.metadata) return devices[0];
  if (!pin_small_ops) return DeviceRequest::kNone;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const bool whole = inputs[i].dtype == DType::kInt32 || inputs[i].dtype == DType::kInt64;
    if (!whole || devices[i] != cpu() || inputs[i].shape.elements() > kMostElements) {
      return DeviceRequest::kNone;
    }
  }
  return cpu();
}

absl::StatusOr<Placement> Placer::Place(const Op& op, DType dtype, const DeviceRequest* request, bool soft,
                                        int near) const {
  const Supported& supported = SupportedFor(op, dtype);
  const bool constrained = request != nullptr && (request->constrained || request->malformed);
  if (near != DeviceRequest::kNone &&
      (!constrained || (!request->malformed && AreCompatible(request->name, NameOf(near))))) {
    if (const Kernel* kernel = registry_.Find(op, TypeOf(near), dtype)) return Placement{near, kernel, false};
  }
  const bool useless = constrained && (request->malformed || IsBeyondConstants(op, *request));
  if (!useless) {
    for (std::size_t i = 0; i < supported.count; ++i) {
      const DeviceType type = supported.types[i];
      const int device = constrained ? request->match[static_cast<std::size_t>(type)] : First(type);
      if (device != DeviceRequest::kNone) return Placement{device, registry_.Find(op, type, dtype), false};
    }
    if (constrained && soft && request->may_fall_back) {
      for (std::size_t i = 0; i < supported.count; ++i) {
        const DeviceType type = supported.types[i];
        const int device = First(type);
        if (device != DeviceRequest::kNone) return Placement{device, registry_.Find(op, type, dtype), true};
      }
    }
  }
  return Fail(op, dtype, constrained ? request : nullptr, soft);
}

absl::StatusOr<Placement> Placer::Fail(const Op& op, DType dtype, const DeviceRequest* request,
                                       bool soft) const {
  if (request != nullptr && !request->malformed_because.empty()) {
    return absl::InvalidArgumentError(request->malformed_because);
  }
  if (request != nullptr && request->malformed) {
    return absl::InvalidArgumentError(Cat("Malformed device specification '", request->given,
                                          "' in eager op: ", op.name,
                                          ". Write for instance \"/GPU:0\", \"/CPU:0\", or "
                                          "\"/job:localhost/replica:0/task:0/device:GPU:0\""));
  }
  const Supported& supported = SupportedFor(op, dtype);
  if (supported.count == 0) {
    return absl::NotFoundError(Cat("Could not find device for node: {{node ", op.name, "}} = ", op.name, "[",
                                   AttributeNameOf(op), "=", DTypeAttributeName(dtype),
                                   "]\nAll kernels registered for op ", op.name, ":\n",
                                   registry_.DescribeKernels(op)));
  }
  if (request != nullptr && IsBeyondConstants(op, *request)) return UnknownDevice(*request);
  const std::string types = TypeList({supported.types.data(), supported.count});
  const int flag = soft ? 1 : 0;
  if (request == nullptr) {
    return absl::InvalidArgumentError(Cat("No supported device found in available devices [", DeviceList(),
                                          "]. enable_soft_placement=", flag, ". Supported devices types [",
                                          types, "]."));
  }
  return absl::InvalidArgumentError(Cat("Could not satisfy device specification '", request->full_name,
                                        "'. enable_soft_placement=", flag, ". Supported device types [",
                                        types, "]. All available devices [", DeviceList(), "].",
                                        registry_.lacking().empty() ? "" : "\n", registry_.lacking()));
}

absl::Status Placer::GraphError(const Op& op, DType dtype, const DeviceRequest* request,
                                std::string_view node) const {
  const std::string prefix = Cat("Cannot assign a device for operation ", node, ": ");
  if (request != nullptr && !request->malformed_because.empty()) {
    return absl::InvalidArgumentError(request->malformed_because);
  }
  if (request != nullptr && request->malformed) {
    return absl::InvalidArgumentError(Cat(prefix, "Malformed device specification '", request->given, "'"));
  }
  const std::string kernels = Cat("\nRegistered kernels:\n", registry_.DescribeKernels(op));
  const std::string attributes = Cat(AttributeNameOf(op), "=", DTypeAttributeName(dtype));
  bool runs = false;  // somewhere among the devices that there are
  for (int device = 0; device < device_count(); ++device) {
    runs = runs || registry_.Find(op, TypeOf(device), dtype) != nullptr;
  }
  if (!runs) {
    return absl::InvalidArgumentError(Cat(prefix, "No OpKernel was registered to support Op '", op.name,
                                          "' used by {{node ", node, "}} with these attrs: [", attributes,
                                          "]\nRegistered devices: [CPU", gpu_count_ > 0 ? ", GPU" : "", "]",
                                          kernels));
  }
  const std::string asked = request == nullptr ? "" : ToString(request->written);
  const bool exists = request == nullptr || request->match[0] != DeviceRequest::kNone ||
                      request->match[1] != DeviceRequest::kNone;
  if (!exists) {
    std::vector<std::string> names;
    for (int device = 0; device < device_count(); ++device) names.push_back(ToString(NameOf(device)));
    std::sort(names.begin(), names.end());
    std::string list;
    for (const std::string& name : names) list += Cat(list.empty() ? "" : ", ", name);
    return absl::InvalidArgumentError(
        Cat(prefix, "{{node ", node, "}} was explicitly assigned to ", asked, " but available devices are [ ",
            list, " ]. Make sure the device specification refers to a valid device."));
  }
  const std::string_view type = DeviceTypeName(
      request != nullptr && request->match[1] != DeviceRequest::kNone ? DeviceType::kGpu : DeviceType::kCpu);
  return absl::InvalidArgumentError(Cat(prefix, "Could not satisfy explicit device specification '", asked,
                                        "' because no supported kernel for ", type,
                                        " devices is available.\nOp: ", op.name, "\nNode attrs: ", attributes,
                                        kernels));
}

absl::Status Placer::UnknownDevice(const DeviceRequest& request) const {
  std::string devices;
  for (const int device : ByPreference()) {
    const DeviceName name = NameOf(device);
    devices += Cat(" ", ToString({.type = name.type, .id = name.id}));
  }
  return absl::InvalidArgumentError(Cat(request.full_name, " unknown device.\n  this context has:", devices,
                                        "\n  try: one of these, a context with more logical devices, or soft "
                                        "placement"));
}

absl::StatusOr<int> Placer::Lookup(std::string_view text) const {
  const DeviceRequest request = Resolve(text);
  if (request.malformed) return Fail(EagerConstOp(), DType::kInvalid, &request, false).status();
  for (const int device : ByPreference()) {
    if (request.match[static_cast<std::size_t>(TypeOf(device))] == device) return device;
  }
  return UnknownDevice(request);
}

absl::StatusOr<int> Placer::FindOne(std::string_view text) const {
  const std::optional<DeviceName> name = ParseFullOrLocalName(text);
  if (!name) {
    return absl::InvalidArgumentError(
        Cat("Failed parsing device name: '", text,
            "'. Note a valid device string should at least contain a device type and a device index, like "
            "\"GPU:0\"."));
  }
  std::optional<int> found;
  for (int i = 0; i < device_count(); ++i) {  // as TensorFlow lists them: the CPUs, then the GPUs
    const int position = i < cpu_count_ ? gpu_count_ + i : i - cpu_count_;
    if (!AreCompatible(*name, NameOf(position))) continue;
    if (found) {
      return absl::InvalidArgumentError(Cat("Multiple devices match the provided string '", text, "': '",
                                            ToString(NameOf(*found)), "' and '", ToString(NameOf(position)),
                                            "'."));
    }
    found = position;
  }
  if (!found) return absl::InvalidArgumentError(Cat("No matching devices found for '", text, "'"));
  return *found;
}

}  // namespace lgpu::internal
