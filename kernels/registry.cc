#include "kernels/registry.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "kernels/text.h"

namespace lgpu {

namespace {

constexpr std::array<DType, 6> kAllTypes = {DType::kFloat16, DType::kBFloat16, DType::kFloat32,
                                            DType::kFloat64, DType::kInt32,    DType::kInt64};

bool Has(DTypes dtypes, DType dtype) {
  const bool is_floating = dtype != DType::kInt32 && dtype != DType::kInt64;
  return dtypes == DTypes::kAll || (dtypes == DTypes::kFloating && is_floating);
}

}  // namespace

std::string_view DTypeAttributeName(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return "DT_FLOAT";
    case DType::kFloat64:
      return "DT_DOUBLE";
    case DType::kInt32:
      return "DT_INT32";
    case DType::kInt64:
      return "DT_INT64";
    case DType::kBFloat16:
      return "DT_BFLOAT16";
    case DType::kFloat16:
      return "DT_HALF";
    case DType::kInvalid:
      break;
  }
  return "DT_INVALID";
}

KernelRegistry KernelRegistry::WithoutCode(const Options& options) {
  KernelRegistry registry;
  for (const DeviceType device : {DeviceType::kGpu, DeviceType::kCpu}) {
    const bool gpu = device == DeviceType::kGpu;
    for (const DType dtype : kAllTypes) {
      for (const Op& op : AllOps()) {
        const bool is_asked_for = &op == &CastOp() && options.cast_on_gpu;
        if (is_asked_for || Has(gpu ? op.on_gpus : op.on_cpu, dtype)) {
          registry.Add({&op, device, dtype, 0, nullptr});
        }
      }
    }
  }
  return registry;
}

void KernelRegistry::Add(const Kernel& kernel) {
  LGPU_CHECK(static_cast<std::size_t>(kernel.dtype) < kDTypes);
  const std::size_t slot = Slot(*kernel.op, kernel.device, kernel.dtype);
  if (slot >= index_.size()) index_.resize(slot + 1, -1);
  if (index_[slot] >= 0) {
    kernels_[static_cast<std::size_t>(index_[slot])] = kernel;
    return;
  }
  index_[slot] = static_cast<int>(kernels_.size());
  kernels_.push_back(kernel);
}

std::vector<DeviceType> KernelRegistry::SupportedDevices(const Op& op, DType dtype) const {
  std::vector<const Kernel*> found;
  for (const DeviceType device : {DeviceType::kGpu, DeviceType::kCpu}) {
    if (const Kernel* kernel = Find(op, device, dtype); kernel != nullptr) found.push_back(kernel);
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const Kernel* a, const Kernel* b) { return a->priority > b->priority; });
  std::vector<DeviceType> devices;
  for (const Kernel* kernel : found) devices.push_back(kernel->device);
  return devices;
}

std::string KernelRegistry::DescribeKernels(const Op& op) const {
  std::string text;
  for (const Kernel& kernel : kernels_) {
    if (kernel.op != &op) continue;
    text += Cat(text.empty() ? "" : "\n", "  device='", DeviceTypeName(kernel.device), "'; ",
                &op == &CastOp() ? "SrcT" : "T", " in [", DTypeAttributeName(kernel.dtype), "]");
  }
  return text.empty() ? "  <no registered kernels>" : text;
}

}  // namespace lgpu
