#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/cpu/add_n_wide.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/convert_blocks.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/kernel_arguments.h"

namespace lgpu {

namespace {

constexpr std::int64_t kBlockElements = 2048;  // the partial sums stay in the first-level cache

/// sum = (first ? 0 : sum) + inputs[0] + ... in this order, for up to four inputs at a time. Starting
/// from the first input and not from zero keeps -0.
template <bool first, typename T>
void AddUpToFour(T* __restrict sum, std::span<const T* const> in, std::int64_t n) {
  const auto add = [&](auto terms) {
    for (std::int64_t i = 0; i < n; ++i) sum[i] = terms(i);
  };
  const T* a = in[0];
  const T* b = in.size() > 1 ? in[1] : nullptr;
  const T* c = in.size() > 2 ? in[2] : nullptr;
  const T* d = in.size() > 3 ? in[3] : nullptr;
  const auto start = [&](std::int64_t i) -> T {
    if constexpr (first) return a[i];
    if constexpr (!first) return sum[i] + a[i];
  };
  switch (in.size()) {
    case 1:
      return add([&](std::int64_t i) -> T { return start(i); });
    case 2:
      return add([&](std::int64_t i) -> T { return start(i) + b[i]; });
    case 3:
      return add([&](std::int64_t i) -> T { return start(i) + b[i] + c[i]; });
    default:
      return add([&](std::int64_t i) -> T { return start(i) + b[i] + c[i] + d[i]; });
  }
}

/// sum[0..n) += the inputs' elements from `offset` on; `fresh`: sum holds nothing yet.
template <typename T>
void SumBlock(T* sum, const KernelArguments& args, std::int64_t offset, std::int64_t n, bool fresh) {
  for (std::int32_t i = 0; i < args.input_count; i += 4) {
    const T* group[4] = {};
    const std::size_t count = static_cast<std::size_t>(std::min(4, args.input_count - i));
    for (std::size_t j = 0; j < count; ++j) {
      group[j] = reinterpret_cast<const T*>(args.inputs[static_cast<std::size_t>(i) + j]) + offset;
    }
    const std::span<const T* const> in(group, count);
    if (fresh && i == 0) {
      AddUpToFour<true, T>(sum, in, n);
    } else {
      AddUpToFour<false, T>(sum, in, n);
    }
  }
}

/// The same for half and bfloat16, in float.
template <typename T>
void SumWidened(float* __restrict sum, const KernelArguments& args, std::int64_t offset, std::int64_t n) {
  float term[kBlockElements];
  if (args.accumulate) cpu::WidenBlock(reinterpret_cast<const T*>(args.output) + offset, sum, n);
  for (std::int32_t i = 0; i < args.input_count; ++i) {
    const T* const input = reinterpret_cast<const T*>(args.inputs[i]) + offset;
    const bool first = i == 0 && !args.accumulate;
    cpu::WidenBlock(input, first ? sum : term, n);
    if (first) continue;
    for (std::int64_t k = 0; k < n; ++k) sum[k] += term[k];
  }
}

/// T is unsigned for whole numbers: they wrap around.
template <typename T, DType dtype>
void Add(const void* block) {
  const auto& args = *static_cast<const KernelArguments*>(block);
  T* output = reinterpret_cast<T*>(args.output);
  for (std::int64_t offset = cpu::AddWide(args, dtype); offset < args.elements; offset += kBlockElements) {
    const std::int64_t n = std::min(kBlockElements, args.elements - offset);
    if constexpr (cpu::kIsSmallFloat<T>) {
      float sum[kBlockElements];
      SumWidened<T>(sum, args, offset, n);
      cpu::NarrowBlock(sum, output + offset, n);
    } else {
      SumBlock<T>(output + offset, args, offset, n, !args.accumulate);
    }
  }
}

void (*AddFor(DType dtype))(const void*) {
  switch (dtype) {
    case DType::kFloat32:
      return Add<float, DType::kFloat32>;
    case DType::kFloat64:
      return Add<double, DType::kFloat64>;
    case DType::kInt32:
      return Add<std::uint32_t, DType::kInt32>;
    case DType::kInt64:
      return Add<std::uint64_t, DType::kInt64>;
    case DType::kBFloat16:
      return Add<BFloat16, DType::kBFloat16>;
    case DType::kFloat16:
      return Add<Half, DType::kFloat16>;
    case DType::kInvalid:
      break;
  }
  return nullptr;
}

}  // namespace

// One launch takes up to kMaxInputs inputs; half and bfloat16 are rounded once a launch.
absl::Status RunAddN(std::span<const TensorView> inputs, std::span<const TensorView> outputs,
                     const OpAttributes&, Launcher& launcher) {
  if (outputs[0].spec.shape.elements() == 0) return absl::OkStatus();
  KernelArguments args;
  args.output = outputs[0].data;
  args.elements = outputs[0].spec.shape.elements();
  args.accumulate = false;
  while (!inputs.empty()) {
    const std::size_t count = std::min<std::size_t>(inputs.size(), KernelArguments::kMaxInputs);
    args.input_count = static_cast<std::int32_t>(count);
    for (std::size_t i = 0; i < count; ++i) args.inputs[i] = inputs[i].data;
    const absl::Status status = launcher.Launch(HostLaunch(AddFor(outputs[0].spec.dtype), args));
    if (!status.ok()) return status;
    inputs = inputs.subspan(count);
    args.accumulate = true;
  }
  return absl::OkStatus();
}

}  // namespace lgpu
