#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/cpu/convert.h"
#include "kernels/cpu/convert_blocks.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/wide.h"
#include "kernels/kernel_arguments.h"

namespace lgpu {

namespace {

using HostFunction = void (*)(const void*);

constexpr std::int64_t kBlock = 512;  // elements; they stay in the first-level cache

/// At most a block.
template <typename From, typename To>
void CastBlock(const From* __restrict from, To* __restrict to, std::int64_t n) {
  if constexpr (cpu::kIsSmallFloat<From> && !std::is_same_v<From, To>) {
    float wide[kBlock];
    cpu::WidenBlock(from, wide, n);
    if constexpr (cpu::kIsSmallFloat<To>) {
      cpu::NarrowBlock(wide, to, n);
    } else {
      for (std::int64_t i = 0; i < n; ++i) to[i] = cpu::Convert<To>(wide[i]);
    }
  } else {
    for (std::int64_t i = 0; i < n; ++i) to[i] = cpu::Convert<To>(from[i]);
  }
}

template <typename From, typename To>
void CastByBlocks(const From* from, To* to, std::int64_t elements) {
  const bool past_caches =
      cpu::HasWide() && cpu::WritesPastCaches(to, static_cast<std::size_t>(elements) * sizeof(To));
  alignas(32) To block[kBlock];
  for (std::int64_t offset = 0; offset < elements; offset += kBlock) {
    const std::int64_t n = std::min(kBlock, elements - offset);
    CastBlock(from + offset, past_caches ? block : to + offset, n);
    if (past_caches) cpu::CopyPastCaches(block, to + offset, static_cast<std::size_t>(n) * sizeof(To));
  }
  if (past_caches) cpu::FencePastCaches();
}

template <typename From, typename To>
void CastElements(const void* block) {
  const auto& args = *static_cast<const KernelArguments*>(block);
  const From* __restrict from = reinterpret_cast<const From*>(args.inputs[0]);
  To* __restrict to = reinterpret_cast<To*>(args.output);
  if constexpr (std::is_same_v<From, float> && cpu::kIsSmallFloat<To>) {
    cpu::NarrowBlock(from, to, args.elements);
  } else if constexpr (std::is_same_v<To, float> && cpu::kIsSmallFloat<From>) {
    cpu::WidenBlock(from, to, args.elements);
  } else {
    CastByBlocks(from, to, args.elements);
  }
}

template <typename From>
HostFunction CastFrom(DType to) {
  switch (to) {
    case DType::kFloat32:
      return CastElements<From, float>;
    case DType::kFloat64:
      return CastElements<From, double>;
    case DType::kInt32:
      return CastElements<From, std::int32_t>;
    case DType::kInt64:
      return CastElements<From, std::int64_t>;
    case DType::kBFloat16:
      return CastElements<From, BFloat16>;
    case DType::kFloat16:
      return CastElements<From, Half>;
    case DType::kInvalid:
      break;
  }
  return nullptr;
}

HostFunction CastFunction(DType from, DType to) {
  switch (from) {
    case DType::kFloat32:
      return CastFrom<float>(to);
    case DType::kFloat64:
      return CastFrom<double>(to);
    case DType::kInt32:
      return CastFrom<std::int32_t>(to);
    case DType::kInt64:
      return CastFrom<std::int64_t>(to);
    case DType::kBFloat16:
      return CastFrom<BFloat16>(to);
    case DType::kFloat16:
      return CastFrom<Half>(to);
    case DType::kInvalid:
      break;
  }
  return nullptr;
}

}  // namespace

absl::Status RunCast(std::span<const TensorView> inputs, std::span<const TensorView> outputs,
                     const OpAttributes&, Launcher& launcher) {
  if (outputs[0].spec.shape.elements() == 0) return absl::OkStatus();
  KernelArguments args;
  args.output = outputs[0].data;
  args.elements = outputs[0].spec.shape.elements();
  args.input_count = 1;
  args.inputs[0] = inputs[0].data;
  return launcher.Launch(HostLaunch(CastFunction(inputs[0].spec.dtype, outputs[0].spec.dtype), args));
}

}  // namespace lgpu
