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

/// output[i] = the sum of `terms` elements of the input, or their mean.
struct ReduceParameters {
  const void* input;
  void* output;
  std::uint64_t outputs, terms;
  Strided kept, reduced;
  std::int32_t mean;
  std::int32_t lanes;  // of a block's threads: so many outputs at a time; the others share the terms
};

/// In what sums are kept: wide enough that what counts is the rounding at the end.
template <typename T>
using SumOf = std::conditional_t<std::is_unsigned_v<T>, std::uint64_t, double>;

constexpr int kBlockThreads = 256;

/// The terms row, row + rows, ... of an output.
template <typename T>
LGPU_CODE SumOf<T> PartialSum(const ReduceParameters& p, std::uint64_t output, std::uint64_t row,
                              std::uint64_t rows) {
  const T* const from = static_cast<const T*>(p.input) + (p.terms == 0 ? 0 : p.kept.At(output));
  SumOf<T> sum = 0;
  for (std::uint64_t i = row; i < p.terms; i += rows)
    sum += static_cast<SumOf<T>>(Widen(from[p.reduced.At(i)]));
  return sum;
}

template <typename T>
LGPU_CODE void WriteSum(const ReduceParameters& p, std::uint64_t output, SumOf<T> sum) {
  if constexpr (std::is_unsigned_v<T>) {
    static_cast<T*>(p.output)[output] = static_cast<T>(sum);
  } else {
    const double result = p.mean != 0 ? sum / static_cast<double>(p.terms) : sum;
    static_cast<T*>(p.output)[output] = NarrowFromDouble<T>(result);
  }
}

}  // namespace lgpu::code

#endif  // LGPU_KERNELS_BODIES_REDUCE_H_
