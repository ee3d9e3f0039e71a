#ifndef LGPU_KERNELS_BODIES_REDUCE_H_
#define LGPU_KERNELS_BODIES_REDUCE_H_

#include <type_traits>

#include "kernels/bodies/numbers.h"

namespace lgpu::code {

/// Positions in a tensor: those of some of its dimensions, the outermost first.
struct Strided {
  static constexpr int kMostDimensions = 8;
  std::int32_t rank;
  std::uint64_t dimensions[kMostDimensions];
  std::uint64_t strides[kMostDimensions];

  LGPU_CODE std::uint64_t At(std::uint64_t i) const {
    if (rank == 1) return i * strides[0];
    std::uint64_t offset = 0;
    for (int d = rank - 1; d >= 0; --d) {
      offset += i % dimensions[d] * strides[d];
      i /= dimensions[d];
    }
    return offset;
  }
};

/// output[i] = the sum of `terms` elements of the input, or their mean. A sum that would take one block long
/// is divided into `splits` sums of `terms_of_split` terms each, in `partials`, [splits, outputs] in SumOf; a
/// second launch adds those up.
struct ReduceParameters {
  const void* input;
  void* output;
  void* partials;  // null: there is one split, and the sum goes into `output`
  std::uint64_t outputs, terms;
  std::uint64_t splits, terms_of_split;
  std::uint64_t mean_of;  // the number of terms of the mean; only if `mean`
  Strided kept, reduced;
  std::int32_t mean;
  std::int32_t lanes;  // outputs of a block at a time; threads / lanes threads share the terms of each
};

/// The type in which sums are kept: so wide that only the final rounding counts. Whole numbers wrap around.
template <typename T>
using SumOf = std::conditional_t<std::is_integral_v<T>, std::uint64_t, double>;

constexpr int kBlockThreads = 256;

/// This thread's part of the sum of `count` neighbours: 16 bytes at a time between the ends.
template <typename T>
LGPU_CODE SumOf<T> PartialSumOfRange(const T* from, std::uint64_t count, std::uint64_t row,
                                     std::uint64_t rows) {
  constexpr std::uint64_t kCount = Pack<T>::kCount;
  const std::uint64_t gap = (16 - reinterpret_cast<std::uintptr_t>(from) % 16) % 16 / sizeof(T);
  const std::uint64_t head = gap < count ? gap : count;
  const std::uint64_t packs = (count - head) / kCount;
  SumOf<T> sum = 0;
  const auto add = [&sum](const Pack<T>& pack) {
    for (int j = 0; j < static_cast<int>(kCount); ++j) sum += static_cast<SumOf<T>>(Widen(pack.values[j]));
  };
  std::uint64_t i = row;
  for (; i + (kInFlight - 1) * rows < packs; i += kInFlight * rows) {
    Words loaded[kInFlight];
    LoadTogether(loaded, [&](int u) { return reinterpret_cast<const Words*>(from + head) + i + u * rows; });
    for (int u = 0; u < kInFlight; ++u) add(BitCast<Pack<T>>(loaded[u]));
  }
  for (; i < packs; i += rows) add(LoadPack<T>(from + head, i));
  for (i = row; i < head; i += rows) sum += static_cast<SumOf<T>>(Widen(from[i]));
  for (i = head + packs * kCount + row; i < count; i += rows) sum += static_cast<SumOf<T>>(Widen(from[i]));
  return sum;
}

/// The part of thread `row` of `rows` in a split of an output.
template <typename T>
LGPU_CODE SumOf<T> PartialSum(const ReduceParameters& p, std::uint64_t output, std::uint64_t split,
                              std::uint64_t row, std::uint64_t rows) {
  const std::uint64_t begin = split * p.terms_of_split;
  const std::uint64_t rest = p.terms > begin ? p.terms - begin : 0;
  const std::uint64_t count = rest < p.terms_of_split ? rest : p.terms_of_split;
  if (count == 0) return 0;
  const T* const from = static_cast<const T*>(p.input) + p.kept.At(output);
  if (p.reduced.rank == 1 && p.reduced.strides[0] == 1) {
    return PartialSumOfRange<T>(from + begin, count, row, rows);
  }
  SumOf<T> sum = 0;
  const std::uint64_t end = begin + count;
  std::uint64_t i = begin + row;
  for (; i + (kInFlight - 1) * rows < end; i += kInFlight * rows) {
    T loaded[kInFlight];
    for (int u = 0; u < kInFlight; ++u) loaded[u] = from[p.reduced.At(i + u * rows)];
    for (int u = 0; u < kInFlight; ++u) sum += static_cast<SumOf<T>>(Widen(loaded[u]));
  }
  for (; i < end; i += rows) sum += static_cast<SumOf<T>>(Widen(from[p.reduced.At(i)]));
  return sum;
}

template <typename T>
LGPU_CODE void WriteSum(const ReduceParameters& p, std::uint64_t output, std::uint64_t split, SumOf<T> sum) {
  if (p.partials != nullptr) {
    static_cast<SumOf<T>*>(p.partials)[split * p.outputs + output] = sum;
  } else if constexpr (std::is_integral_v<T>) {
    if constexpr (std::is_signed_v<T>) {  // a mean of whole numbers: towards zero, and of none 0
      const auto count = static_cast<std::int64_t>(p.mean_of);
      if (p.mean != 0) sum = count == 0 ? 0 : static_cast<SumOf<T>>(static_cast<std::int64_t>(sum) / count);
    }
    static_cast<T*>(p.output)[output] = static_cast<T>(sum);
  } else {
    const double result = p.mean != 0 ? sum / static_cast<double>(p.mean_of) : sum;
    static_cast<T*>(p.output)[output] = NarrowFromDouble<T>(result);
  }
}

}  // namespace lgpu::code

#endif  // LGPU_KERNELS_BODIES_REDUCE_H_
