#include "client/placer.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "kernels/text.h"
#include "lgpu/device_name.h"
#include "proto/placement_ring.h"

namespace lgpu::internal {

namespace {

DeviceName ThisTask() { return {.job = "localhost", .replica = 0, .task = 0}; }

DeviceName NameOf(DeviceType type, int id) {
  DeviceName name = ThisTask();
  name.type = std::string(DeviceTypeName(type));
  name.id = id;
  return name;
}

std::string_view AttributeNameOf(const Op& op) { return &op == &CastOp() ? "SrcT" : "T"; }

std::string TypeList(std::span<const DeviceType> types) {
  std::string text;
  for (const DeviceType type : types) text += Cat(text.empty() ? "" : ", ", DeviceTypeName(type));
  return text;
}

/// All devices, better types first, then by name as text: GPU:10 comes before GPU:2.
std::string DeviceList(int gpu_count) {
  std::vector<std::string> names;
  for (int i = 0; i < gpu_count; ++i) names.push_back(ToString(NameOf(DeviceType::kGpu, i)));
  std::sort(names.begin(), names.end());
  names.push_back(ToString(NameOf(DeviceType::kCpu, 0)));
  std::string text;
  for (const std::string& name : names) text += Cat(text.empty() ? "" : ", ", name);
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

Placer::Placer(const KernelRegistry& registry, int gpu_count) : registry_(registry), gpu_count_(gpu_count) {
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

DeviceRequest Placer::Resolve(std::string_view text) const {
  DeviceRequest request;
  request.given = std::string(text);
  const std::optional<DeviceName> name = ParseFullOrLocalName(text);
  if (!name) {
    request.malformed = true;
    return request;
  }
  request.constrained = *name != DeviceName{};
  request.may_fall_back = AreCompatible(*name, ThisTask());
  request.full_name = ToString(MergeUnset(*name, ThisTask()));
  request.local_name = ToString({.type = name->type, .id = name->id});
  if (request.local_name.empty()) request.local_name = request.full_name;
  for (int i = gpu_count_ - 1; i >= 0; --i) {  // the lowest one that fits stays
    if (AreCompatible(*name, NameOf(DeviceType::kGpu, i))) request.match[1] = i;
  }
  if (AreCompatible(*name, NameOf(DeviceType::kCpu, 0))) request.match[0] = cpu();
  request.record_id = RecordId(*name, request);
  return request;
}

absl::StatusOr<Placement> Placer::Place(const Op& op, DType dtype, const DeviceRequest* request,
                                        bool soft) const {
  const Supported& supported = SupportedFor(op, dtype);
  const bool constrained = request != nullptr && (request->constrained || request->malformed);
  if (!constrained || !request->malformed) {
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
  const std::string types = TypeList({supported.types.data(), supported.count});
  const int flag = soft ? 1 : 0;
  if (request == nullptr) {
    return absl::InvalidArgumentError(Cat("No supported device found in available devices [",
                                          DeviceList(gpu_count_), "]. enable_soft_placement=", flag,
                                          ". Supported devices types [", types, "]."));
  }
  return absl::InvalidArgumentError(Cat("Could not satisfy device specification '", request->full_name,
                                        "'. enable_soft_placement=", flag, ". Supported device types [",
                                        types, "]. All available devices [", DeviceList(gpu_count_), "]."));
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
  for (int i = 0; i <= gpu_count_; ++i) {  // as TensorFlow lists them: the CPU, then the GPUs
    const int position = i == 0 ? cpu() : i - 1;
    const auto full = [this](int p) {
      return p == cpu() ? NameOf(DeviceType::kCpu, 0) : NameOf(DeviceType::kGpu, p);
    };
    if (!AreCompatible(*name, full(position))) continue;
    if (found) {
      return absl::InvalidArgumentError(Cat("Multiple devices match the provided string '", text, "': '",
                                            ToString(full(*found)), "' and '", ToString(full(position)),
                                            "'."));
    }
    found = position;
  }
  if (!found) return absl::NotFoundError(Cat("No matching devices found for '", text, "'"));
  return *found;
}

}  // namespace lgpu::internal
