#ifndef LGPU_KERNELS_BODIES_NUMBERS_H_
#define LGPU_KERNELS_BODIES_NUMBERS_H_

// The code of kernels (this folder) is written once for one thread of many: nvcc compiles it for GPUs, the
// host compiler for the CPU, and the fake driver of the tests runs it thread by thread. C++17, without
// features that a GPU lacks.

#include <cstdint>
#include <cstring>

#ifdef __CUDACC__
#include <cuda_fp16.h>
#define LGPU_CODE __device__ __forceinline__
#else
#include "kernels/cpu/convert.h"
#define LGPU_CODE inline
#endif

namespace lgpu::code {

/// Which of all threads of a launch this one is.
struct Thread {
  std::uint64_t first;   // its number
  std::uint64_t stride;  // how many there are
};

// Elements as they lie in memory. Whole numbers are unsigned, so that they wrap around.
struct HalfBits {
  std::uint16_t bits;
};
struct BFloat16Bits {
  std::uint16_t bits;
};

/// The type in which an element is computed.
template <typename T>
struct Wide {
  using Type = T;
};
template <>
struct Wide<HalfBits> {
  using Type = float;
};
template <>
struct Wide<BFloat16Bits> {
  using Type = float;
};
template <typename T>
using WideOf = typename Wide<T>::Type;

template <typename To, typename From>
LGPU_CODE To BitCast(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

template <typename T>
LGPU_CODE T Widen(T value) {
  return value;
}
LGPU_CODE float Widen(BFloat16Bits value) { return BitCast<float>(std::uint32_t{value.bits} << 16); }
LGPU_CODE float Widen(HalfBits value) {
#ifdef __CUDACC__
  return __half2float(BitCast<__half>(value));
#else
  return cpu::Widen(Half{value.bits});
#endif
}

/// Rounds to nearest, ties to even; NaN stays NaN.
template <typename T>
LGPU_CODE T Narrow(WideOf<T> value) {
  return value;
}
template <>
LGPU_CODE BFloat16Bits Narrow<BFloat16Bits>(float value) {
  const auto bits = BitCast<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
  const std::uint32_t quiet = (bits >> 16) | 0x40U;
  return {static_cast<std::uint16_t>((bits & 0x7fffffffU) > 0x7f800000U ? quiet : rounded)};
}
template <>
LGPU_CODE HalfBits Narrow<HalfBits>(float value) {
#ifdef __CUDACC__
  return BitCast<HalfBits>(__float2half_rn(value));
#else
  return {cpu::NarrowToHalf(value).bits};
#endif
}

/// `value` in T, rounded once.
template <typename T>
LGPU_CODE T NarrowFromDouble(double value) {
  return static_cast<T>(value);
}
/// In float, rounded to odd: a further rounding to fewer bits gives what one rounding of `value` would have
/// given.
LGPU_CODE float OddFloat(double value) {
  const float nearest = static_cast<float>(value);
  const double near = static_cast<double>(nearest);
  const bool is_inexact = near != value && value == value;
  const bool is_beyond = (near < 0 ? -near : near) > (value < 0 ? -value : value);  // a step towards zero
  return BitCast<float>((BitCast<std::uint32_t>(nearest) - (is_beyond ? 1U : 0U)) | (is_inexact ? 1U : 0U));
}
template <>
LGPU_CODE HalfBits NarrowFromDouble<HalfBits>(double value) {
  return Narrow<HalfBits>(OddFloat(value));
}
template <>
LGPU_CODE BFloat16Bits NarrowFromDouble<BFloat16Bits>(double value) {
  return Narrow<BFloat16Bits>(OddFloat(value));
}

/// 16 bytes of elements, which travel in one access where they are aligned.
template <typename T>
struct Pack {
  static constexpr int kCount = 16 / static_cast<int>(sizeof(T));
  T values[kCount];
};
#ifdef __CUDACC__
using Words = uint4;
#else
struct alignas(16) Words {
  std::uint32_t word[4];
};
#endif
template <typename T>
LGPU_CODE Pack<T> LoadPack(const void* aligned, std::uint64_t pack) {
  const Words words = static_cast<const Words*>(aligned)[pack];
  return BitCast<Pack<T>>(words);
}
template <typename T>
LGPU_CODE void StorePack(void* aligned, std::uint64_t pack, const Pack<T>& values) {
  static_cast<Words*>(aligned)[pack] = BitCast<Words>(values);
}

/// This many loads of a thread are on their way before the first is used.
constexpr int kInFlight = 4;
/// Loads words[u] from `at(u)`. The compiler would load each one right before its use, and wait for it there.
template <typename At>
LGPU_CODE void LoadTogether(Words (&words)[kInFlight], At at) {
  for (int u = 0; u < kInFlight; ++u) words[u] = *at(u);
#ifdef __CUDACC__
#define LGPU_ALL(of) "+r"(of.x), "+r"(of.y), "+r"(of.z), "+r"(of.w)
  asm volatile("" : LGPU_ALL(words[0]), LGPU_ALL(words[1]), LGPU_ALL(words[2]), LGPU_ALL(words[3]));
#undef LGPU_ALL
#endif
}

/// How the elements of a launch are split into packs: `head` elements before the first aligned address,
/// `packs`, and the rest. All pointers lie alike to 16 bytes, or everything is head.
struct Packing {
  std::uint64_t elements;
  std::uint64_t head;
  std::uint64_t packs;
};

/// Calls `one(i)` for this thread's single elements, and `many(offset, pack)` for its packs: elements from
/// `offset` on, at pack number `pack` after the head.
template <typename T, typename One, typename Many>
LGPU_CODE void ForElements(const Packing& p, Thread t, One one, Many many) {
  constexpr std::uint64_t kCount = Pack<T>::kCount;
  for (std::uint64_t i = t.first; i < p.packs; i += t.stride) many(i);
  for (std::uint64_t i = t.first; i < p.head; i += t.stride) one(i);
  for (std::uint64_t i = p.head + p.packs * kCount + t.first; i < p.elements; i += t.stride) one(i);
}

}  // namespace lgpu::code

#endif  // LGPU_KERNELS_BODIES_NUMBERS_H_
