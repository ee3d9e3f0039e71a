#include "client/runtime/explain.h"

#include <algorithm>
#include <ostream>

#include "kernels/text.h"
#include "lgpu/status.h"

namespace lgpu::internal {

namespace {

/// The devices in the placer's order: types with a kernel, best first, then the other types.
std::vector<int> Order(const Placer& placer, const Op& op, DType dtype) {
  std::vector<DeviceType> types = placer.registry().SupportedDevices(op, dtype);
  for (const DeviceType type : {DeviceType::kGpu, DeviceType::kCpu}) {
    if (std::find(types.begin(), types.end(), type) == types.end()) types.push_back(type);
  }
  const std::vector<int> devices = placer.ByPreference();
  std::vector<int> order;
  for (const DeviceType type : types) {
    for (const int device : devices) {
      if (placer.TypeOf(device) == type) order.push_back(device);
    }
  }
  return order;
}

bool Fits(const Placer& placer, const DeviceRequest* request, int device) {
  return request == nullptr || !request->constrained || AreCompatible(request->name, placer.NameOf(device));
}

/// Why `device` was taken, or was not.
std::string Why(const Placer& placer, const ExplainRequest& asked, DType dtype, int device,
                const Placement* placement, int near) {
  const DeviceType type = placer.TypeOf(device);
  const Kernel* kernel = placer.registry().Find(asked.op, type, dtype);
  if (asked.request != nullptr && asked.request->malformed) {
    return "the name that was asked for cannot be read";
  }
  if (kernel == nullptr) return Cat("no ", DeviceTypeName(type), " kernel for ", DTypeName(dtype));
  const bool fits = Fits(placer, asked.request, device);
  const bool constrained = asked.request != nullptr && asked.request->constrained;
  if (placement != nullptr && placement->device == device) {
    if (placement->soft_placed) {
      return Cat("soft placement: nothing that can run it fits ", asked.request->local_name);
    }
    if (device == near) {
      return asked.op.metadata ? "its input is there" : "a few whole numbers that are on the CPU stay there";
    }
    const std::string best = kernel->priority == 0 ? "the first device with a kernel"
                                                   : Cat("its kernel has priority ", kernel->priority);
    return constrained ? Cat("fits ", asked.request->local_name) : best;
  }
  if (!fits) return Cat("asked for is ", asked.request->local_name);
  if (placement != nullptr) {
    return Cat("would do, but ", ToString(placer.NameOf(placement->device)), " comes first");
  }
  return "not taken";
}

void AddCopies(const Placer& placer, const ExplainRequest& asked, int device, PlacementExplanation& out) {
  const std::string to = ToString(placer.NameOf(device));
  for (std::size_t i = 0; i < asked.devices.size(); ++i) {
    if (asked.devices[i] == device) continue;
    const std::string from = ToString(placer.NameOf(asked.devices[i]));
    const TensorSpec& spec = asked.inputs[i];
    const CopyVerdict verdict = JudgeCopy(asked.policy, {asked.op, i, spec.dtype, to, from});
    const Bytes bytes(static_cast<std::uint64_t>(spec.shape.elements()) * ElementBytes(spec.dtype));
    out.copies.push_back({static_cast<int>(i), from, to, bytes,
                          verdict.status.ok() ? verdict.warning : std::string(verdict.status.message())});
    out.status.Update(verdict.status);
  }
}

}  // namespace

CopyVerdict JudgeCopy(DevicePolicy policy, const InputElsewhere& input) {
  if (policy == DevicePolicy::kSilent) return {};
  if (policy == DevicePolicy::kSilentForInt32 && input.dtype == DType::kInt32) return {};
  // The policies forbid automatic copies; Identity is the explicit one.
  if (&input.op == &IdentityOp() && policy != DevicePolicy::kWarn) return {};
  const std::string expectation =
      Cat("input #", input.index, " was expected to be on ", input.expected, " but is actually on ",
          input.actual, " (operation running on ", input.expected, ")");
  if (policy == DevicePolicy::kWarn) {
    return {absl::OkStatus(), Cat("before computing ", input.op.name, " ", expectation,
                                  ". This triggers a copy which can be a performance bottleneck.")};
  }
  return {absl::InvalidArgumentError(
              Cat("Tensors on conflicting devices: cannot compute ", input.op.name, " as ", expectation,
                  " Tensors can be copied explicitly using: `CopyToDevice(x, device_name)`, or transparently "
                  "with DevicePolicy::kSilent. Copying tensors between devices may slow down your model")),
          {}};
}

PlacementExplanation Explain(const Placer& placer, const ExplainRequest& asked) {
  PlacementExplanation out;
  out.op = std::string(asked.op.name);
  out.soft_placement = asked.soft;
  if (asked.request != nullptr) out.requested = asked.request->given;
  if (!asked.inputs.empty()) out.dtype = asked.inputs[0].dtype;
  out.status = asked.op.Infer(asked.inputs, asked.attributes).status();
  if (!out.status.ok()) return out;
  if (&asked.op == &AddNOp() && asked.devices.size() == 1) {
    out.device = ToString(placer.NameOf(asked.devices[0]));
    out.candidates.push_back({out.device, true, "the sum of one tensor is that tensor; nothing runs"});
    return out;
  }
  const int near = placer.NearInputs(asked.op, asked.inputs, asked.devices, asked.pin_small_ops);
  const absl::StatusOr<Placement> placement =
      placer.Place(asked.op, out.dtype, asked.request, asked.soft, near);
  out.status = placement.status();
  if (!placement.ok() && !asked.node.empty()) {
    out.status = placer.GraphError(asked.op, out.dtype, asked.request, asked.node);
  }
  const Placement* const found = placement.ok() ? &*placement : nullptr;
  for (const int device : Order(placer, asked.op, out.dtype)) {
    out.candidates.push_back({ToString(placer.NameOf(device)), found != nullptr && found->device == device,
                              Why(placer, asked, out.dtype, device, found, near)});
  }
  if (found == nullptr) return out;
  out.device = ToString(placer.NameOf(found->device));
  out.soft_placed = found->soft_placed;
  // The input of a constant is no tensor yet, and a metadata op needs no values.
  if (&asked.op != &EagerConstOp() && !asked.op.metadata) AddCopies(placer, asked, found->device, out);
  return out;
}

absl::StatusOr<const Op*> FindOpToExplain(std::string_view name) {
  if (const Op* op = FindOp(name); op != nullptr) return op;
  std::string names;
  for (const Op& op : AllOps()) names += Cat(names.empty() ? "" : ", ", op.name);
  return absl::InvalidArgumentError(Cat("there is no op \"", name, "\"; there are: ", names));
}

}  // namespace lgpu::internal

namespace lgpu {

std::string PlacementExplanation::ToString() const {
  std::string text =
      Cat("op ", op, ", ", DTypeName(dtype), ", ",
          requested.empty() ? std::string("no device asked for") : Cat("asked for ", requested),
          ", soft placement ", soft_placement ? "on" : "off", "\n");
  for (const PlacementCandidate& candidate : candidates) {
    text += Cat(candidate.taken ? "  * " : "    ", candidate.device, "  ", candidate.why, "\n");
  }
  for (const PlacementCopy& copy : copies) {
    text += Cat("  input #", copy.input, " is copied from ", copy.from, " (", FormatBytes(copy.bytes), ")",
                copy.why.empty() ? "" : ": ", copy.why, "\n");
  }
  if (!status.ok()) {
    const absl::string_view message = status.message();
    return text + Cat("fails: ", std::string_view(message.data(), message.size()), "\n");
  }
  return text + Cat("runs on ", device, soft_placed ? " (soft placement)" : "", "\n");
}

std::ostream& operator<<(std::ostream& out, const PlacementExplanation& explanation) {
  return out << explanation.ToString();
}

}  // namespace lgpu
