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

/// A row of elements: single ones before the first aligned address, packs of 16 bytes, and the rest. Lane
/// `lane` of `lanes` takes every lanes-th of each.
struct RowSpan {
  std::uint64_t head, packs, classes;
  std::uint64_t lane, lanes;
};

/// `aligned`: packs may be loaded and stored.
template <typename T>
LGPU_CODE RowSpan SpanOfRow(const T* row, std::uint64_t classes, bool aligned, std::uint64_t lane,
                            std::uint64_t lanes) {
  const std::uint64_t gap = (16 - reinterpret_cast<std::uintptr_t>(row) % 16) % 16 / sizeof(T);
  const std::uint64_t head = aligned && gap < classes ? gap : classes;
  return {head, (classes - head) / Pack<T>::kCount, classes, lane, lanes};
}

/// Calls `many(c, step, packs)` for the lane's packs, some at a time: pack u holds the elements from c + u *
/// step on. Calls `one(c, value)` for its single elements.
template <typename T, typename One, typename Many>
LGPU_CODE void ForLogits(const T* logits, const RowSpan& span, One one, Many many) {
  constexpr std::uint64_t kCount = Pack<T>::kCount;
  const Words* const packs = reinterpret_cast<const Words*>(logits + span.head);
  std::uint64_t i = span.lane;
#ifdef __CUDACC__
#pragma unroll 1
#endif
  for (; i + (kInFlight - 1) * span.lanes < span.packs; i += kInFlight * span.lanes) {
    Words loaded[kInFlight];
    LoadTogether(loaded, [&](int u) { return packs + i + u * span.lanes; });
    many(span.head + i * kCount, span.lanes * kCount, loaded);
  }
#ifdef __CUDACC__
#pragma unroll 1
#endif
  for (; i < span.packs; i += span.lanes) {
    const Words loaded[1] = {packs[i]};
    many(span.head + i * kCount, std::uint64_t{0}, loaded);
  }
  // Both ends in one loop, so that `one` is compiled once.
  const std::uint64_t tail = span.head + span.packs * kCount;
#ifdef __CUDACC__
#pragma unroll 1
#endif
  for (std::uint64_t k = span.lane; k < span.head + (span.classes - tail); k += span.lanes) {
    const std::uint64_t c = k < span.head ? k : k - span.head + tail;
    one(c, logits[c]);
  }
}

/// Stores a pack at once: nvcc would store its words one by one, each where it is chosen.
template <typename T>
LGPU_CODE void StoreTogether(void* aligned, const Pack<T>& pack) {
  const Words words = BitCast<Words>(pack);
#ifdef __CUDACC__
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(aligned)),
               "r"(words.x), "r"(words.y), "r"(words.z), "r"(words.w)
               : "memory");
#else
  *static_cast<Words*>(aligned) = words;
#endif
}

/// The largest of some logits, NaN apart, and the sum of exp(logit - most) over them: NaN if one of them is.
template <typename T>
class SoftmaxPart {
 public:
  WideOf<T> most = -INFINITY;
  double sum = 0;

  /// The sum for a larger `most`. In double, since a row may raise it at every logit.
  LGPU_CODE double SumFor(double larger) const {
    return static_cast<double>(most) == larger ? sum : sum * ::exp(static_cast<double>(most) - larger);
  }

  LGPU_CODE void AddOne(T logit) {
    const WideOf<T> value = Widen(logit);
    if (value > most) Raise(value);
    sum += static_cast<double>(::exp(value - From()));
  }

  template <int packs>
  LGPU_CODE void Add(const Words (&loaded)[packs]) {
    constexpr int kCount = Pack<T>::kCount;
    WideOf<T> larger = most;
    for (int u = 0; u < packs; ++u) {
      const auto pack = BitCast<Pack<T>>(loaded[u]);
      for (int j = 0; j < kCount; ++j) {
        if (Widen(pack.values[j]) > larger) larger = Widen(pack.values[j]);
      }
    }
    if (larger > most) Raise(larger);
    const WideOf<T> from = From();
    for (int u = 0; u < packs; ++u) {
      const auto pack = BitCast<Pack<T>>(loaded[u]);
      WideOf<T> values[kCount];
      for (int j = 0; j < kCount; ++j) values[j] = ::exp(Widen(pack.values[j]) - from);
      for (int half = kCount / 2; half > 0; half /= 2) {
        for (int j = 0; j < half; ++j) values[j] += values[j + half];
      }
      sum += static_cast<double>(values[0]);
    }
  }

 private:
  LGPU_CODE void Raise(WideOf<T> larger) {
    sum = SumFor(static_cast<double>(larger));
    most = larger;
  }
  /// What is taken off the logits. Where all are -infinity, their difference would be NaN.
  LGPU_CODE WideOf<T> From() const { return most == -INFINITY ? WideOf<T>{0} : most; }
};

/// The part of one lane. The row is read once.
template <typename T>
LGPU_CODE SoftmaxPart<T> PartOfRow(const SoftmaxParameters& p, std::uint64_t row, std::uint64_t lane,
                                   std::uint64_t lanes) {
  const T* const logits = static_cast<const T*>(p.logits) + row * p.classes;
  SoftmaxPart<T> part;
  ForLogits(
      logits, SpanOfRow(logits, p.classes, true, lane, lanes),
      [&part](std::uint64_t, T logit) { part.AddOne(logit); },
      [&part](std::uint64_t, std::uint64_t, const auto& loaded) { part.Add(loaded); });
  return part;
}
LGPU_CODE double Larger(double a, double b) { return a > b ? a : b; }

/// This lane's part of the row's gradient, and the loss from the first one.
template <typename T>
LGPU_CODE void WriteSoftmax(const SoftmaxParameters& p, std::uint64_t row, double most, double sum,
                            std::uint64_t lane, std::uint64_t lanes) {
  using Number = WideOf<T>;
  const std::uint64_t offset = row * p.classes;
  const T* const logits = static_cast<const T*>(p.logits) + offset;
  T* const backprop = static_cast<T*>(p.backprop) + offset;
  const std::int64_t label = LabelOf(p, row);
  const bool known = label >= 0 && static_cast<std::uint64_t>(label) < p.classes;
  const double nan = static_cast<double>(NAN);
  const auto from = static_cast<Number>(most);
  const auto scale = static_cast<Number>(known ? 1 / sum : nan);
  const auto gradient = [from, scale](T logit, bool hit) {
    const Number share = ::exp(Widen(logit) - from) * scale;
    return Narrow<T>(hit ? share - 1 : share);
  };
  const bool alike =
      (reinterpret_cast<std::uintptr_t>(logits) - reinterpret_cast<std::uintptr_t>(backprop)) % 16 == 0;
  const RowSpan span = SpanOfRow(logits, p.classes, alike, lane, lanes);
  ForLogits(
      logits, span,
      [&](std::uint64_t c, T logit) { backprop[c] = gradient(logit, static_cast<std::int64_t>(c) == label); },
      [&](std::uint64_t c, std::uint64_t step, const auto& loaded) {
#ifdef __CUDACC__
#pragma unroll
#endif
        for (const Words& words : loaded) {
          const auto pack = BitCast<Pack<T>>(words);
          // The place of the label in the pack, if it is there.
          const std::uint64_t hit = static_cast<std::uint64_t>(label) - c;
          Pack<T> result;
          for (int j = 0; j < Pack<T>::kCount; ++j) {
            result.values[j] = gradient(pack.values[j], hit == static_cast<std::uint64_t>(j));
          }
          StoreTogether(backprop + c, result);
          c += step;
        }
      });
  if (lane != 0) return;
  const double loss =
      known ? ::log(sum) - (static_cast<double>(Widen(logits[static_cast<std::uint64_t>(label)])) - most)
            : nan;
  static_cast<T*>(p.loss)[row] = NarrowFromDouble<T>(loss);
}

}  // namespace lgpu::code

#endif  // LGPU_KERNELS_BODIES_SOFTMAX_H_
