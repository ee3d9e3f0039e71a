#include "kernels/bodies/reduce.h"

#include <algorithm>
#include <bit>

#include "kernels/axes.h"
#include "kernels/cpu/wide.h"
#include "kernels/cuda/device_kernels.h"
#include "kernels/launchers/common_kernels.h"
#include "kernels/launchers/common_launch.h"
#include "lgpu/bytes.h"
#include "lgpu/status.h"

namespace lgpu {

namespace {

using code::ReduceParameters;
using code::Strided;

/// Appends a dimension; merges it with the last one where the steps fit.
void Append(Strided& to, std::uint64_t size, std::uint64_t stride) {
  if (size == 1) return;
  if (to.rank > 0 && to.strides[to.rank - 1] == stride * size) {
    to.dimensions[to.rank - 1] *= size;
    to.strides[to.rank - 1] = stride;
    return;
  }
  to.dimensions[to.rank] = size;
  to.strides[to.rank] = stride;
  ++to.rank;
}

bool IsRange(const Strided& positions) { return positions.rank == 1 && positions.strides[0] == 1; }

/// How many outputs a block of threads has at a time: few terms leave threads for more of them, and
/// neighbours in memory are read together.
std::int32_t LanesFor(const ReduceParameters& p, bool last_is_kept, std::size_t element_bytes) {
  constexpr std::uint64_t kThreads = code::kBlockThreads;
  const std::uint64_t loads = IsRange(p.reduced) ? p.terms * element_bytes / 16 : p.terms;
  const std::uint64_t rows = std::bit_ceil(std::clamp<std::uint64_t>(loads, 1, kThreads));
  const std::uint64_t neighbours =
      last_is_kept ? std::bit_ceil(std::clamp<std::uint64_t>(p.outputs, 1, 32)) : 1;
  return static_cast<std::int32_t>(std::max(kThreads / rows, neighbours));
}

std::uint64_t BlocksOf(const ReduceParameters& p) {
  const auto lanes = static_cast<std::uint64_t>(p.lanes);
  return (p.outputs + lanes - 1) / lanes * p.splits;
}

/// The number of splits with which a sum keeps a whole card busy, with enough work for every thread.
std::uint64_t SplitsFor(const ReduceParameters& p) {
  constexpr std::uint64_t kBlocks = 1024;
  constexpr std::uint64_t kLeastTermsOfThread = 16;
  const std::uint64_t rows = code::kBlockThreads / static_cast<std::uint64_t>(p.lanes);
  return std::max<std::uint64_t>(1, std::min(p.terms / (rows * kLeastTermsOfThread), kBlocks / BlocksOf(p)));
}

constexpr std::uint64_t kRowsTogether = 4;

/// Adds kRowsTogether rows to the sums, each sum in the order of the rows.
template <typename From>
[[gnu::always_inline]] inline void AddRows(const From* rows, std::uint64_t stride, std::uint64_t count,
                                           code::SumOf<From>* __restrict sums) {
  using Sum = code::SumOf<From>;
  for (std::uint64_t i = 0; i < count; ++i) {
    Sum sum = sums[i];
    for (std::uint64_t row = 0; row < kRowsTogether; ++row) {
      sum += static_cast<Sum>(code::Widen(rows[i + row * stride]));
    }
    sums[i] = sum;
  }
}

#if defined(LGPU_WIDE)
template <typename From>
LGPU_WIDE void AddRowsWide(const From* rows, std::uint64_t stride, std::uint64_t count,
                           code::SumOf<From>* sums) {
  AddRows(rows, stride, count, sums);
}
#endif

template <typename From>
void AddRowsByProcessor(const From* rows, std::uint64_t stride, std::uint64_t count,
                        code::SumOf<From>* sums) {
#if defined(LGPU_WIDE)
  if (cpu::HasWide()) return AddRowsWide(rows, stride, count, sums);
#endif
  AddRows(rows, stride, count, sums);
}

/// Sums of neighbours in memory: some rows at a time, many sums at a time. The order of each sum is that of
/// PartialSum.
template <typename From, typename To>
void SumRows(const ReduceParameters& p, std::uint64_t split) {
  constexpr std::uint64_t kMost = 1024;
  const std::uint64_t begin = split * p.terms_of_split;
  const std::uint64_t end = std::min(p.terms, begin + p.terms_of_split);
  const std::uint64_t stride = p.reduced.strides[0];
  for (std::uint64_t first = 0; first < p.outputs; first += kMost) {
    const std::uint64_t count = std::min(kMost, p.outputs - first);
    const From* const rows = static_cast<const From*>(p.input) + first;
    code::SumOf<From> sums[kMost];
    std::fill_n(sums, count, code::SumOf<From>{0});
    std::uint64_t term = begin;
    for (; term + kRowsTogether <= end; term += kRowsTogether) {
      AddRowsByProcessor(rows + term * stride, stride, count, sums);
    }
    for (; term < end; ++term) {
      for (std::uint64_t i = 0; i < count; ++i) {
        sums[i] += static_cast<code::SumOf<From>>(code::Widen(rows[term * stride + i]));
      }
    }
    for (std::uint64_t i = 0; i < count; ++i) code::WriteSum<To>(p, first + i, split, sums[i]);
  }
}

/// The sum of neighbours in memory, as eight sums that do not wait for one another.
template <typename T>
code::SumOf<T> SumOfRange(const T* from, std::uint64_t count) {
  constexpr std::uint64_t kSums = 8;
  code::SumOf<T> sums[kSums] = {};
  const std::uint64_t whole = count / kSums * kSums;
  for (std::uint64_t i = 0; i < whole; i += kSums) {
    for (std::uint64_t j = 0; j < kSums; ++j) {
      sums[j] += static_cast<code::SumOf<T>>(code::Widen(from[i + j]));
    }
  }
  for (std::uint64_t i = whole; i < count; ++i) {
    sums[i - whole] += static_cast<code::SumOf<T>>(code::Widen(from[i]));
  }
  return (sums[0] + sums[4]) + (sums[1] + sums[5]) + ((sums[2] + sums[6]) + (sums[3] + sums[7]));
}

template <typename From, typename To>
void ReduceOnHost(const void* parameters) {
  const auto& p = *static_cast<const ReduceParameters*>(parameters);
  if (IsRange(p.kept) && p.reduced.rank == 1) {
    for (std::uint64_t split = 0; split < p.splits; ++split) SumRows<From, To>(p, split);
    return;
  }
  const bool is_range = IsRange(p.reduced);
  for (std::uint64_t split = 0; split < p.splits; ++split) {
    const std::uint64_t begin = std::min(p.terms, split * p.terms_of_split);
    const std::uint64_t count = std::min(p.terms - begin, p.terms_of_split);
    for (std::uint64_t i = 0; i < p.outputs; ++i) {
      const auto sum = is_range ? SumOfRange(static_cast<const From*>(p.input) + p.kept.At(i) + begin, count)
                                : code::PartialSum<From>(p, i, split, 0, 1);
      code::WriteSum<To>(p, i, split, sum);
    }
  }
}

absl::Status LaunchReduce(const ReduceParameters& p, DType dtype, Launcher& launcher) {
  const auto host = ForSignedType(dtype, []<typename T>() { return +ReduceOnHost<T, T>; });
  return launcher.Launch(CommonLaunch(host, ReduceKernel(dtype), p, BlocksOf(p)));
}

/// Adds up the partial sums of `split`.
absl::Status LaunchPartials(const ReduceParameters& split, DType dtype, Launcher& launcher) {
  ReduceParameters p{};
  p.input = split.partials;
  p.output = split.output;
  p.outputs = split.outputs;
  p.terms = p.terms_of_split = split.splits;
  p.splits = 1;
  p.mean = split.mean;
  p.mean_of = split.mean_of;
  Append(p.kept, p.outputs, 1);
  Append(p.reduced, p.terms, p.outputs);
  p.lanes = LanesFor(p, p.outputs > 1, sizeof(std::uint64_t));
  const auto host = ForSignedType(dtype, []<typename T>() { return +ReduceOnHost<code::SumOf<T>, T>; });
  return launcher.Launch(CommonLaunch(host, ReducePartialsKernel(dtype), p, BlocksOf(p)));
}

absl::Status Reduce(std::span<const TensorView> inputs, std::span<const TensorView> outputs,
                    const OpAttributes& attributes, bool mean, Launcher& launcher) {
  const Shape& shape = inputs[0].spec.shape;
  const std::uint32_t reduced = *ReducedAxes(shape, attributes.axes);  // Op::infer checked them
  ReduceParameters p{};
  p.input = inputs[0].data;
  p.output = outputs[0].data;
  p.outputs = static_cast<std::uint64_t>(outputs[0].spec.shape.elements());
  p.terms = 1;
  p.mean = mean ? 1 : 0;
  if (p.outputs == 0) return absl::OkStatus();
  std::uint64_t strides[Shape::kMaxRank] = {};
  std::uint64_t step = 1;
  for (int d = shape.rank() - 1; d >= 0; --d) {
    strides[d] = step;
    step *= static_cast<std::uint64_t>(shape[d]);
  }
  bool last_is_kept = false;
  for (int d = 0; d < shape.rank(); ++d) {
    const auto size = static_cast<std::uint64_t>(shape[d]);
    const bool is_reduced = (reduced >> d & 1U) != 0;
    if (is_reduced) p.terms *= size;
    Append(is_reduced ? p.reduced : p.kept, size, strides[d]);
    if (size > 1) last_is_kept = !is_reduced;
  }
  p.mean_of = p.terms;
  p.splits = 1;
  p.terms_of_split = p.terms;
  const DType dtype = outputs[0].spec.dtype;
  p.lanes = LanesFor(p, last_is_kept, ElementBytes(dtype));
  const std::uint64_t splits = SplitsFor(p);
  if (splits == 1) return LaunchReduce(p, dtype, launcher);
  const Bytes scratch_bytes(splits * p.outputs * sizeof(std::uint64_t));
  return launcher.WithScratch(scratch_bytes, [&](std::span<std::byte> scratch) {
    if (scratch.empty()) return LaunchReduce(p, dtype, launcher);
    ReduceParameters split = p;
    split.partials = scratch.data();
    split.splits = splits;
    split.terms_of_split = (p.terms + splits - 1) / splits;
    LGPU_RETURN_IF_ERROR(LaunchReduce(split, dtype, launcher));
    return LaunchPartials(split, dtype, launcher);
  });
}

}  // namespace

absl::Status RunSum(std::span<const TensorView> inputs, std::span<const TensorView> outputs,
                    const OpAttributes& attributes, Launcher& launcher) {
  return Reduce(inputs, outputs, attributes, false, launcher);
}

absl::Status RunMean(std::span<const TensorView> inputs, std::span<const TensorView> outputs,
                     const OpAttributes& attributes, Launcher& launcher) {
  return Reduce(inputs, outputs, attributes, true, launcher);
}

}  // namespace lgpu
