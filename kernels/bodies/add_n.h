#ifndef LGPU_KERNELS_BODIES_ADD_N_H_
#define LGPU_KERNELS_BODIES_ADD_N_H_

#include "kernels/bodies/numbers.h"

namespace lgpu::code {

/// The sum of `count` inputs, over what the output holds if `accumulate`. Every input is read once and the
/// output written once.
template <int most>
struct AddNParameters {
  static constexpr int kMost = most;
  void* output;
  Packing packing;
  std::int32_t count;
  std::int32_t accumulate;
  const void* inputs[most];
};
// AddNFew takes the usual number of inputs, and its parameters are quickly sent. AddNMany takes the most that
// a launch can carry.
using AddNFew = AddNParameters<32>;
using AddNMany = AddNParameters<480>;

// Starting from the first input and not from zero keeps -0; the order is that of the CPU's kernel, so the
// bits are the same but for those of NaN.
template <typename T, int most>
LGPU_CODE void AddN(const AddNParameters<most>& p, Thread t) {
  using Sum = WideOf<T>;
  constexpr int kCount = Pack<T>::kCount;
  const int first = p.accumulate != 0 ? 0 : 1;
  const void* const start = p.accumulate != 0 ? p.output : p.inputs[0];
  const auto one = [&](std::uint64_t i) {
    Sum sum = Widen(static_cast<const T*>(start)[i]);
    for (int k = first; k < p.count; ++k) sum += Widen(static_cast<const T*>(p.inputs[k])[i]);
    static_cast<T*>(p.output)[i] = Narrow<T>(sum);
  };
  const auto many = [&](std::uint64_t pack) {
    Sum sum[kCount];
    const Pack<T> begin = LoadPack<T>(static_cast<const T*>(start) + p.packing.head, pack);
    for (int j = 0; j < kCount; ++j) sum[j] = Widen(begin.values[j]);
    int k = first;
#ifdef __CUDACC__
#pragma unroll 1
#endif
    for (; k + kInFlight <= p.count; k += kInFlight) {
      Words words[kInFlight];
      LoadTogether(words, [&](int u) {
        return reinterpret_cast<const Words*>(static_cast<const T*>(p.inputs[k + u]) + p.packing.head) + pack;
      });
      for (int u = 0; u < kInFlight; ++u) {
        const auto more = BitCast<Pack<T>>(words[u]);
        for (int j = 0; j < kCount; ++j) sum[j] += Widen(more.values[j]);
      }
    }
    for (; k < p.count; ++k) {
      const Pack<T> more = LoadPack<T>(static_cast<const T*>(p.inputs[k]) + p.packing.head, pack);
      for (int j = 0; j < kCount; ++j) sum[j] += Widen(more.values[j]);
    }
    Pack<T> result;
    for (int j = 0; j < kCount; ++j) result.values[j] = Narrow<T>(sum[j]);
    StorePack<T>(static_cast<T*>(p.output) + p.packing.head, pack, result);
  };
  ForElements<T>(p.packing, t, one, many);
}

}  // namespace lgpu::code

#endif  // LGPU_KERNELS_BODIES_ADD_N_H_
