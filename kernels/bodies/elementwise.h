#ifndef LGPU_KERNELS_BODIES_ELEMENTWISE_H_
#define LGPU_KERNELS_BODIES_ELEMENTWISE_H_

#include <cmath>
#include <type_traits>

#include "kernels/bodies/numbers.h"

namespace lgpu::code {

/// X(op, inputs, function of elements): the ops of one input and of two that are a function of each element.
#define LGPU_ELEMENTWISE_OPS(X)      \
  X(Neg, One, NegateFunction)        \
  X(Relu, One, ReluFunction)         \
  X(AddV2, Two, AddFunction)         \
  X(Sub, Two, SubtractFunction)      \
  X(Mul, Two, MultiplyFunction)      \
  X(RealDiv, Two, DivideFunction)    \
  X(ReluGrad, Two, ReluGradFunction) \
  X(Tanh, One, TanhFunction)         \
  X(TanhGrad, Two, TanhGradFunction)

enum class Elementwise : std::int32_t {
  kCopy,
#define LGPU_ELEMENTWISE_NAME(op, inputs, function) k##op,
  LGPU_ELEMENTWISE_OPS(LGPU_ELEMENTWISE_NAME)
#undef LGPU_ELEMENTWISE_NAME
};

/// output[i] = function(a[...], b[...]), where a and b may have fewer elements than the output. Functions of
/// one tensor do not look at b, which must be readable all the same.
struct ElementwiseParameters {
  static constexpr int kMostDimensions = 8;
  void* output;
  const void* a;
  const void* b;
  Packing packing;
  Elementwise function;
  std::int32_t rank;            // 0: element i of the output is made of elements i * step
  std::int32_t a_step, b_step;  // 0: one element for all, or 1
  // Else the steps from one element to the next along each dimension of the output, the outermost first.
  std::uint64_t dimensions[kMostDimensions];
  std::uint64_t a_strides[kMostDimensions];
  std::uint64_t b_strides[kMostDimensions];
};

struct CopyFunction {
  template <typename T>
  LGPU_CODE T operator()(T a, T) const {
    return a;
  }
};
struct NegateFunction {
  template <typename T>
  LGPU_CODE T operator()(T a, T) const {
    if constexpr (std::is_unsigned_v<T>) {
      return T{0} - a;
    } else {
      return Narrow<T>(-Widen(a));
    }
  }
};
// NaN stays NaN.
struct ReluFunction {
  template <typename T>
  LGPU_CODE T operator()(T a, T) const {
    if constexpr (std::is_unsigned_v<T>) {
      return a >> (8 * sizeof(T) - 1) != 0 ? T{0} : a;  // the sign
    } else {
      return Widen(a) > 0 || Widen(a) != Widen(a) ? a : Narrow<T>(0);
    }
  }
};
struct AddFunction {
  template <typename T>
  LGPU_CODE T operator()(T a, T b) const {
    return Narrow<T>(Widen(a) + Widen(b));
  }
};
struct SubtractFunction {
  template <typename T>
  LGPU_CODE T operator()(T a, T b) const {
    return Narrow<T>(Widen(a) - Widen(b));
  }
};
struct MultiplyFunction {
  template <typename T>
  LGPU_CODE T operator()(T a, T b) const {
    return Narrow<T>(Widen(a) * Widen(b));
  }
};
struct DivideFunction {
  template <typename T>
  LGPU_CODE T operator()(T a, T b) const {
    if constexpr (std::is_unsigned_v<T>) {
      return a;  // there is no such op
    } else {
      return Narrow<T>(Widen(a) / Widen(b));
    }
  }
};
/// `a` is the gradient, `b` the feature.
struct ReluGradFunction {
  template <typename T>
  LGPU_CODE T operator()(T a, T b) const {
    if constexpr (std::is_unsigned_v<T>) {
      return b != 0 && b >> (8 * sizeof(T) - 1) == 0 ? a : T{0};
    } else {
      return Widen(b) > 0 ? a : Narrow<T>(0);
    }
  }
};

struct TanhFunction {
  template <typename T>
  LGPU_CODE T operator()(T a, T) const {
    if constexpr (std::is_unsigned_v<T>) {
      return a;  // there is no such op
    } else {
      return Narrow<T>(static_cast<WideOf<T>>(std::tanh(Widen(a))));
    }
  }
};
/// `a` is tanh(x), `b` the gradient.
struct TanhGradFunction {
  template <typename T>
  LGPU_CODE T operator()(T a, T b) const {
    if constexpr (std::is_unsigned_v<T>) {
      return a;  // there is no such op
    } else {
      return Narrow<T>(Widen(b) * (1 - Widen(a) * Widen(a)));
    }
  }
};

#ifndef __CUDACC__
template <typename T, typename Function>
void ApplyRow(T* output, const T* a, std::uint64_t a_step, const T* b, std::uint64_t b_step,
              std::uint64_t count, Function function) {
  if (a_step == 1 && b_step == 1) {
    for (std::uint64_t i = 0; i < count; ++i) output[i] = function(a[i], b[i]);
  } else if (a_step == 1 && b_step == 0) {
    const T same = *b;
    for (std::uint64_t i = 0; i < count; ++i) output[i] = function(a[i], same);
  } else if (a_step == 0 && b_step == 1) {
    const T same = *a;
    for (std::uint64_t i = 0; i < count; ++i) output[i] = function(same, b[i]);
  } else {
    for (std::uint64_t i = 0; i < count; ++i) output[i] = function(a[i * a_step], b[i * b_step]);
  }
}

/// All elements by one thread: row by row, without a division for each element.
template <typename T, typename Function>
void ApplyRows(const ElementwiseParameters& p, Function function) {
  const int last = p.rank - 1;
  const std::uint64_t count = p.dimensions[last];
  std::uint64_t at[ElementwiseParameters::kMostDimensions] = {};
  std::uint64_t from_a = 0;
  std::uint64_t from_b = 0;
  for (std::uint64_t done = 0; done < p.packing.elements; done += count) {
    ApplyRow(static_cast<T*>(p.output) + done, static_cast<const T*>(p.a) + from_a, p.a_strides[last],
             static_cast<const T*>(p.b) + from_b, p.b_strides[last], count, function);
    for (int d = last - 1; d >= 0; --d) {
      from_a += p.a_strides[d];
      from_b += p.b_strides[d];
      if (++at[d] < p.dimensions[d]) break;
      at[d] = 0;
      from_a -= p.a_strides[d] * p.dimensions[d];
      from_b -= p.b_strides[d] * p.dimensions[d];
    }
  }
}
#endif

template <typename T, typename Function>
LGPU_CODE void Apply(const ElementwiseParameters& p, Thread t, Function function) {
  T* const output = static_cast<T*>(p.output);
  const T* const a = static_cast<const T*>(p.a);
  const T* const b = static_cast<const T*>(p.b);
  if (p.rank != 0) {
#ifndef __CUDACC__
    if (t.stride == 1) return ApplyRows<T>(p, function);
#endif
    for (std::uint64_t i = t.first; i < p.packing.elements; i += t.stride) {
      std::uint64_t rest = i;
      std::uint64_t from_a = 0;
      std::uint64_t from_b = 0;
      for (int d = p.rank - 1; d > 0; --d) {
        const std::uint64_t at = rest % p.dimensions[d];
        rest /= p.dimensions[d];
        from_a += at * p.a_strides[d];
        from_b += at * p.b_strides[d];
      }
      output[i] = function(a[from_a + rest * p.a_strides[0]], b[from_b + rest * p.b_strides[0]]);
    }
    return;
  }
  constexpr int kCount = Pack<T>::kCount;
  const auto one = [&](std::uint64_t i) {
    output[i] = function(a[p.a_step == 0 ? 0 : i], b[p.b_step == 0 ? 0 : i]);
  };
  const auto load = [&](const T* from, std::int32_t step, std::uint64_t pack) {
    if (step != 0) return LoadPack<T>(from + p.packing.head, pack);
    Pack<T> same;
    for (int j = 0; j < kCount; ++j) same.values[j] = from[0];
    return same;
  };
  const auto many = [&](std::uint64_t pack) {
    const Pack<T> x = load(a, p.a_step, pack);
    const Pack<T> y = load(b, p.b_step, pack);
    Pack<T> result;
    for (int j = 0; j < kCount; ++j) result.values[j] = function(x.values[j], y.values[j]);
    StorePack<T>(output + p.packing.head, pack, result);
  };
  ForElements<T>(p.packing, t, one, many);
}

template <typename T>
LGPU_CODE void ApplyElementwise(const ElementwiseParameters& p, Thread t) {
  switch (p.function) {
    case Elementwise::kCopy:
      return Apply<T>(p, t, CopyFunction());
#define LGPU_ELEMENTWISE_CASE(op, inputs, function) \
  case Elementwise::k##op:                          \
    return Apply<T>(p, t, function());
      LGPU_ELEMENTWISE_OPS(LGPU_ELEMENTWISE_CASE)
#undef LGPU_ELEMENTWISE_CASE
  }
}

}  // namespace lgpu::code

#endif  // LGPU_KERNELS_BODIES_ELEMENTWISE_H_
