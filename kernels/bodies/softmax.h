#ifndef LGPU_KERNELS_BODIES_SOFTMAX_H_
#define LGPU_KERNELS_BODIES_SOFTMAX_H_

#include <cmath>
#include <limits>

#include "kernels/bodies/numbers.h"

namespace lgpu::code {

/// Sparse softmax cross-entropy of each row of `classes` logits, and its gradient. A label that is no class
/// makes the row NaN.
struct SoftmaxParameters {
  const void* logits;
  const void* labels;
  void* loss;
  void* backprop;
  std::uint64_t rows, classes;
  std::int32_t wide_labels;  // int64, else int32
  std::int32_t lanes;        // the threads of a block that share a row
};

LGPU_CODE std::int64_t LabelOf(const SoftmaxParameters& p, std::uint64_t row) {
  return p.wide_labels != 0 ? static_cast<const std::int64_t*>(p.labels)[row]
                            : static_cast<const std::int32_t*>(p.labels)[row];
}

/// The largest of the logits lane, lane + lanes, ... of a row. NaN counts as the largest.
template <typename T>
LGPU_CODE double PartialMax(const SoftmaxParameters& p, std::uint64_t row, std::uint64_t lane,
                            std::uint64_t lanes) {
  const T* const logits = static_cast<const T*>(p.logits) + row * p.classes;
  double most = -INFINITY;
  for (std::uint64_t c = lane; c < p.classes; c += lanes) {
    const double logit = static_cast<double>(Widen(logits[c]));
    if (!(logit <= most)) most = logit;
  }
  return most;
}
LGPU_CODE double Larger(double a, double b) { return a != a || a > b ? a : b; }

/// exp(logit - most), computed in WideOf<T>.
template <typename T>
LGPU_CODE WideOf<T> Exponential(T logit, double most) {
  return ::exp(Widen(logit) - static_cast<WideOf<T>>(most));
}
template <typename T>
LGPU_CODE double PartialExponentials(const SoftmaxParameters& p, std::uint64_t row, double most,
                                     std::uint64_t lane, std::uint64_t lanes) {
  const T* const logits = static_cast<const T*>(p.logits) + row * p.classes;
  double sum = 0;
  for (std::uint64_t c = lane; c < p.classes; c += lanes) {
    sum += static_cast<double>(Exponential(logits[c], most));
  }
  return sum;
}

/// This lane's part of the row's gradient, and the loss from the first one.
template <typename T>
LGPU_CODE void WriteSoftmax(const SoftmaxParameters& p, std::uint64_t row, double most, double sum,
                            std::uint64_t lane, std::uint64_t lanes) {
  const std::uint64_t offset = row * p.classes;
  const T* const logits = static_cast<const T*>(p.logits) + offset;
  T* const backprop = static_cast<T*>(p.backprop) + offset;
  const std::int64_t label = LabelOf(p, row);
  const bool known = label >= 0 && static_cast<std::uint64_t>(label) < p.classes;
  const double nan = static_cast<double>(NAN);
  for (std::uint64_t c = lane; c < p.classes; c += lanes) {
    const double share = static_cast<double>(Exponential(logits[c], most)) / sum;
    const double hit = static_cast<std::int64_t>(c) == label ? 1.0 : 0.0;
    backprop[c] = NarrowFromDouble<T>(known ? share - hit : nan);
  }
  if (lane != 0) return;
  const double loss =
      known ? ::log(sum) - (static_cast<double>(Widen(logits[static_cast<std::uint64_t>(label)])) - most)
            : nan;
  static_cast<T*>(p.loss)[row] = NarrowFromDouble<T>(loss);
}

}  // namespace lgpu::code

#endif  // LGPU_KERNELS_BODIES_SOFTMAX_H_
