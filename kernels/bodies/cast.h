#ifndef LGPU_KERNELS_BODIES_CAST_H_
#define LGPU_KERNELS_BODIES_CAST_H_

#include <type_traits>

#include "kernels/bodies/numbers.h"

namespace lgpu::code {

// Conversions of one element, without branches, so that loops over them can be vectorised. Whole numbers have
// their sign here. The rules:
//   to a floating type      nearest, ties to even, rounded once; overflow to infinity; NaN stays NaN
//   floating to whole       towards zero; NaN gives 0; out of range gives the nearest end of the range
//   whole to narrower whole the low bits (modulo 2^32)

LGPU_CODE float OddFloat(float value) { return value; }
LGPU_CODE float OddFloat(std::int32_t value) { return OddFloat(static_cast<double>(value)); }
LGPU_CODE float OddFloat(std::int64_t value) {
  // Cuts off the bits that double may not hold, to odd as well: double still has more bits than float.
  constexpr int kCut = 24;
  constexpr std::int64_t kLow = (std::int64_t{1} << kCut) - 1;
  const std::int64_t odd = (value & ~kLow) | (std::int64_t{(value & kLow) != 0} << kCut);
  const bool fits = value < std::int64_t{1} << 52 && value > -(std::int64_t{1} << 52);
  return OddFloat(static_cast<double>(fits ? value : odd));
}

template <typename To, typename From>
LGPU_CODE To Saturate(From value) {
  constexpr std::uint64_t kSign = std::uint64_t{1} << (8 * sizeof(To) - 1);
  constexpr From kEnd = static_cast<From>(kSign);  // exact
  constexpr To kMost = static_cast<To>(kSign - 1);
  const bool too_large = value >= kEnd;
  const From known = value == value ? value : From{0};
  const From above = known >= -kEnd ? known : -kEnd;
  const To whole = static_cast<To>(too_large ? From{0} : above);
  return too_large ? kMost : whole;
}

template <typename T>
struct IsNarrow {
  static constexpr bool kValue = std::is_same_v<T, HalfBits> || std::is_same_v<T, BFloat16Bits>;
};

template <typename To, typename From>
LGPU_CODE To Convert(From value) {
  if constexpr (std::is_same_v<To, From>) {
    return value;
  } else if constexpr (IsNarrow<From>::kValue) {
    return Convert<To>(Widen(value));
  } else if constexpr (IsNarrow<To>::kValue) {
    return Narrow<To>(OddFloat(value));
  } else if constexpr (std::is_integral_v<To> && std::is_floating_point_v<From>) {
    return Saturate<To>(value);
  } else {
    return static_cast<To>(value);
  }
}

enum class CastType : std::int32_t { kHalf, kBFloat16, kFloat, kDouble, kInt32, kInt64 };

/// output[i] = input[i], converted. `packing` is in packs of CastPack elements; its heads bring both tensors
/// to an aligned address.
struct CastParameters {
  void* output;
  const void* input;
  Packing packing;
  CastType to;
};

/// This many elements travel together: 16 bytes of the wider type.
template <typename From, typename To>
struct CastPack {
  static constexpr int kCount = 16 / static_cast<int>(sizeof(From) > sizeof(To) ? sizeof(From) : sizeof(To));
};

template <int bytes>
struct alignas(bytes) Chunk {
  std::uint32_t word[bytes / 4];
};
#ifdef __CUDACC__
template <int bytes>
struct ChunkOf;
template <>
struct ChunkOf<4> {
  using Type = std::uint32_t;
};
template <>
struct ChunkOf<8> {
  using Type = uint2;
};
template <>
struct ChunkOf<16> {
  using Type = uint4;
};
#else
template <int bytes>
struct ChunkOf {
  using Type = Chunk<bytes>;
};
#endif

/// Loads `at(u)` for each u before any is used, as LoadTogether in numbers.h.
template <typename Read, typename At>
LGPU_CODE void LoadSeveral(Read (&loaded)[kInFlight], At at) {
  for (int u = 0; u < kInFlight; ++u) loaded[u] = *at(u);
#ifdef __CUDACC__
#define LGPU_PAIR(of) "+r"(of.x), "+r"(of.y)
#define LGPU_ALL(of) LGPU_PAIR(of), "+r"(of.z), "+r"(of.w)
  if constexpr (sizeof(Read) == 4) {
    asm volatile("" : "+r"(loaded[0]), "+r"(loaded[1]), "+r"(loaded[2]), "+r"(loaded[3]));
  } else if constexpr (sizeof(Read) == 8) {
    asm volatile("" : LGPU_PAIR(loaded[0]), LGPU_PAIR(loaded[1]), LGPU_PAIR(loaded[2]), LGPU_PAIR(loaded[3]));
  } else {
    asm volatile("" : LGPU_ALL(loaded[0]), LGPU_ALL(loaded[1]), LGPU_ALL(loaded[2]), LGPU_ALL(loaded[3]));
  }
#undef LGPU_ALL
#undef LGPU_PAIR
#endif
}

template <typename From, typename To>
LGPU_CODE void Cast(const CastParameters& p, Thread t) {
  constexpr int kCount = CastPack<From, To>::kCount;
  using Read = typename ChunkOf<kCount* static_cast<int>(sizeof(From))>::Type;
  using Written = typename ChunkOf<kCount* static_cast<int>(sizeof(To))>::Type;
  struct Elements {
    From values[kCount];
  };
  struct Converted {
    To values[kCount];
  };
  const From* const input = static_cast<const From*>(p.input);
  To* const output = static_cast<To*>(p.output);
  const void* const aligned_input = input + p.packing.head;
  void* const aligned_output = output + p.packing.head;
  const Read* const packs = static_cast<const Read*>(aligned_input);
  // Loaded first: nvcc makes single bytes of a load that is converted in place.
  const auto convert = [aligned_output](std::uint64_t pack, const Read& loaded) {
    const auto elements = BitCast<Elements>(loaded);
    Converted converted;
    for (int j = 0; j < kCount; ++j) converted.values[j] = Convert<To>(elements.values[j]);
    static_cast<Written*>(aligned_output)[pack] = BitCast<Written>(converted);
  };
  std::uint64_t pack = t.first;
  for (; pack + (kInFlight - 1) * t.stride < p.packing.packs; pack += kInFlight * t.stride) {
    Read loaded[kInFlight];
    LoadSeveral(loaded, [&](int u) { return packs + pack + u * t.stride; });
    for (int u = 0; u < kInFlight; ++u) convert(pack + u * t.stride, loaded[u]);
  }
  for (; pack < p.packing.packs; pack += t.stride) {
    const Read loaded = packs[pack];
    convert(pack, loaded);
  }
  for (std::uint64_t i = t.first; i < p.packing.head; i += t.stride) output[i] = Convert<To>(input[i]);
  for (std::uint64_t i = p.packing.head + p.packing.packs * kCount + t.first; i < p.packing.elements;
       i += t.stride) {
    output[i] = Convert<To>(input[i]);
  }
}

/// To the type that `p` names.
template <typename From>
LGPU_CODE void CastFrom(const CastParameters& p, Thread t) {
  switch (p.to) {
    case CastType::kHalf:
      return Cast<From, HalfBits>(p, t);
    case CastType::kBFloat16:
      return Cast<From, BFloat16Bits>(p, t);
    case CastType::kFloat:
      return Cast<From, float>(p, t);
    case CastType::kDouble:
      return Cast<From, double>(p, t);
    case CastType::kInt32:
      return Cast<From, std::int32_t>(p, t);
    case CastType::kInt64:
      return Cast<From, std::int64_t>(p, t);
  }
}

}  // namespace lgpu::code

#endif  // LGPU_KERNELS_BODIES_CAST_H_
