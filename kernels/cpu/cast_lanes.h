#ifndef LGPU_KERNELS_CPU_CAST_LANES_H_
#define LGPU_KERNELS_CPU_CAST_LANES_H_

// For cast.cc: conversions that have instructions of wide registers, from memory to memory without a block in
// between. Only the bits of a NaN differ from kernels/bodies/cast.h.

#include <cstdint>
#include <type_traits>

#include "kernels/bodies/cast.h"
#include "kernels/cpu/wide.h"

namespace lgpu::cpu {

#if defined(__x86_64__)

/// Eight elements of a type, in as many registers as they need.
struct EightDoubles {
  __m256d low, high;
};

LGPU_WIDE_INLINE const __m128i* Lanes128(const void* from) { return static_cast<const __m128i*>(from); }
LGPU_WIDE_INLINE const __m256i* Lanes256(const void* from) { return static_cast<const __m256i*>(from); }
LGPU_WIDE_INLINE __m256 LoadEight(const code::HalfBits* from) {
  return _mm256_cvtph_ps(_mm_loadu_si128(Lanes128(from)));
}
LGPU_WIDE_INLINE __m256 LoadEight(const code::BFloat16Bits* from) {
  return WidenLanes(_mm_loadu_si128(Lanes128(from)));
}
LGPU_WIDE_INLINE __m256 LoadEight(const float* from) { return _mm256_loadu_ps(from); }
LGPU_WIDE_INLINE EightDoubles LoadEight(const double* from) {
  return {_mm256_loadu_pd(from), _mm256_loadu_pd(from + 4)};
}
LGPU_WIDE_INLINE __m256i LoadEight(const std::int32_t* from) { return _mm256_loadu_si256(Lanes256(from)); }

struct EightInt64s {
  __m256i low, high;
};
LGPU_WIDE_INLINE EightInt64s LoadEight(const std::int64_t* from) {
  return {_mm256_loadu_si256(Lanes256(from)), _mm256_loadu_si256(Lanes256(from + 4))};
}

template <bool stream>
LGPU_WIDE_INLINE void StoreEight(float* to, __m256 value) {
  stream ? _mm256_stream_ps(to, value) : _mm256_storeu_ps(to, value);
}
template <bool stream>
LGPU_WIDE_INLINE void StoreEight(double* to, EightDoubles value) {
  stream ? _mm256_stream_pd(to, value.low) : _mm256_storeu_pd(to, value.low);
  stream ? _mm256_stream_pd(to + 4, value.high) : _mm256_storeu_pd(to + 4, value.high);
}
template <bool stream>
LGPU_WIDE_INLINE void StoreEight(std::int32_t* to, __m256i value) {
  auto* const lanes = static_cast<__m256i*>(static_cast<void*>(to));
  stream ? _mm256_stream_si256(lanes, value) : _mm256_storeu_si256(lanes, value);
}

template <typename To>
struct EightTo;
template <>
struct EightTo<float> {
  LGPU_WIDE_INLINE static __m256 From(__m256 value) { return value; }
  LGPU_WIDE_INLINE static __m256 From(__m256i value) { return _mm256_cvtepi32_ps(value); }
  LGPU_WIDE_INLINE static __m256 From(EightDoubles value) {
    return _mm256_set_m128(_mm256_cvtpd_ps(value.high), _mm256_cvtpd_ps(value.low));
  }
};
template <>
struct EightTo<double> {
  LGPU_WIDE_INLINE static EightDoubles From(__m256 value) {
    return {_mm256_cvtps_pd(_mm256_castps256_ps128(value)), _mm256_cvtps_pd(_mm256_extractf128_ps(value, 1))};
  }
  LGPU_WIDE_INLINE static EightDoubles From(__m256i value) {
    return {_mm256_cvtepi32_pd(_mm256_castsi256_si128(value)),
            _mm256_cvtepi32_pd(_mm256_extracti128_si256(value, 1))};
  }
};
// The instruction gives the least number for every value out of range.
template <>
struct EightTo<std::int32_t> {
  LGPU_WIDE_INLINE static __m256i From(__m256 value) {
    const __m256 large = _mm256_cmp_ps(value, _mm256_set1_ps(0x1p31F), _CMP_GE_OQ);
    const __m256 known = _mm256_cmp_ps(value, value, _CMP_ORD_Q);
    const __m256i whole = _mm256_xor_si256(_mm256_cvttps_epi32(value), _mm256_castps_si256(large));
    return _mm256_and_si256(whole, _mm256_castps_si256(known));
  }
  // Into range first, where every bound is a double: NaN goes to the second operand.
  LGPU_WIDE_INLINE static __m128i From(__m256d value) {
    const __m256d known = _mm256_and_pd(value, _mm256_cmp_pd(value, value, _CMP_ORD_Q));
    return _mm256_cvttpd_epi32(_mm256_min_pd(known, _mm256_set1_pd(2147483647.0)));
  }
  LGPU_WIDE_INLINE static __m256i From(EightDoubles value) {
    return _mm256_set_m128i(From(value.high), From(value.low));
  }
};

/// Masks of 8 bytes as masks of 4.
LGPU_WIDE_INLINE __m256i HalfMasks(__m256d low, __m256d high) {
  const __m256 mixed = _mm256_shuffle_ps(_mm256_castpd_ps(low), _mm256_castpd_ps(high), 0x88);
  return _mm256_permute4x64_epi64(_mm256_castps_si256(mixed), 0xd8);
}
LGPU_WIDE_INLINE __m256d IsLarger(__m256d a, __m256d b) {
  const __m256d sign = _mm256_set1_pd(-0.0);
  return _mm256_cmp_pd(_mm256_andnot_pd(sign, a), _mm256_andnot_pd(sign, b), _CMP_GT_OQ);
}

/// As floats from which a further rounding to half or bfloat16 gives what one rounding would have given.
LGPU_WIDE_INLINE __m256 OddOf(__m256 value) { return value; }
LGPU_WIDE_INLINE __m256 OddOf(EightDoubles value) {
  const __m256 nearest = EightTo<float>::From(value);
  const EightDoubles near = EightTo<double>::From(nearest);
  const __m256i inexact = HalfMasks(_mm256_cmp_pd(near.low, value.low, _CMP_NEQ_OQ),
                                    _mm256_cmp_pd(near.high, value.high, _CMP_NEQ_OQ));
  const __m256i beyond = HalfMasks(IsLarger(near.low, value.low), IsLarger(near.high, value.high));
  const __m256i bits = _mm256_add_epi32(_mm256_castps_si256(nearest), beyond);
  return _mm256_castsi256_ps(_mm256_or_si256(bits, _mm256_srli_epi32(inexact, 31)));
}
// Where float may not hold the number, the bits below 2^8 become one: at least 16 are left.
LGPU_WIDE_INLINE __m256 OddOf(__m256i value) {
  const __m256i low = _mm256_set1_epi32(0xff);
  const __m256i is_whole = _mm256_cmpeq_epi32(_mm256_and_si256(value, low), _mm256_setzero_si256());
  const __m256i last = _mm256_andnot_si256(is_whole, _mm256_set1_epi32(0x100));
  const __m256i odd = _mm256_or_si256(_mm256_andnot_si256(low, value), last);
  const __m256i fits = _mm256_cmpgt_epi32(_mm256_set1_epi32(1 << 24), _mm256_abs_epi32(value));
  const __m256i least = _mm256_cmpeq_epi32(value, _mm256_set1_epi32(INT32_MIN));  // has no size
  return _mm256_cvtepi32_ps(_mm256_blendv_epi8(odd, value, _mm256_andnot_si256(least, fits)));
}
/// Cuts off the bits that the scalar code cuts off, and converts to double, which is exact.
LGPU_WIDE_INLINE __m256d CutToDouble(__m256i value) {
  const __m256i low = _mm256_set1_epi64x((std::int64_t{1} << 24) - 1);
  const __m256i end = _mm256_set1_epi64x(std::int64_t{1} << 52);
  const __m256i fits =
      _mm256_and_si256(_mm256_cmpgt_epi64(end, value),
                       _mm256_cmpgt_epi64(value, _mm256_sub_epi64(_mm256_setzero_si256(), end)));
  const __m256i is_whole = _mm256_cmpeq_epi64(_mm256_and_si256(value, low), _mm256_setzero_si256());
  const __m256i last = _mm256_andnot_si256(is_whole, _mm256_set1_epi64x(std::int64_t{1} << 24));
  const __m256i odd = _mm256_or_si256(_mm256_andnot_si256(low, value), last);
  const __m256i cut = _mm256_blendv_epi8(odd, value, fits);
  // The upper and the lower bits as the last ones of doubles of a size that puts them into their place.
  const __m256i upper = _mm256_blend_epi16(_mm256_srai_epi32(cut, 16), _mm256_setzero_si256(), 0x33);
  const __m256d high =
      _mm256_castsi256_pd(_mm256_add_epi64(upper, _mm256_castpd_si256(_mm256_set1_pd(0x3p67))));
  const __m256d lower =
      _mm256_castsi256_pd(_mm256_blend_epi16(cut, _mm256_castpd_si256(_mm256_set1_pd(0x1p52)), 0x88));
  return _mm256_add_pd(_mm256_sub_pd(high, _mm256_set1_pd(0x3p67 + 0x1p52)), lower);
}
LGPU_WIDE_INLINE __m256 OddOf(EightInt64s value) {
  return OddOf(EightDoubles{CutToDouble(value.low), CutToDouble(value.high)});
}

template <>
struct EightTo<code::HalfBits> {
  template <typename Eight>
  LGPU_WIDE_INLINE static __m128i From(Eight value) {
    return _mm256_cvtps_ph(OddOf(value), _MM_FROUND_TO_NEAREST_INT);
  }
};
template <>
struct EightTo<code::BFloat16Bits> {
  template <typename Eight>
  LGPU_WIDE_INLINE static __m128i From(Eight value) {
    const __m256 odd = OddOf(value);
    return _mm256_castsi256_si128(NarrowLanes(odd, odd));
  }
};
template <bool stream, typename To>
LGPU_WIDE_INLINE void StoreEight(To* to, __m128i value) {
  auto* const lanes = static_cast<__m128i*>(static_cast<void*>(to));
  stream ? _mm_stream_si128(lanes, value) : _mm_storeu_si128(lanes, value);
}

// Not to and from int64, for which there are no instructions; but half and bfloat16 have few bits.
template <typename From, typename To>
inline constexpr bool kHasLanes = !std::is_same_v<From, To> && !std::is_same_v<To, std::int64_t> &&
                                  (!std::is_same_v<From, std::int64_t> || code::IsNarrow<To>::kValue);

template <bool stream, typename From, typename To>
LGPU_WIDE std::int64_t CastEights(const From* from, To* to, std::int64_t n) {
  std::int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    if constexpr (stream) {
      FetchAhead(from + i);
      if constexpr (sizeof(From) == 8) FetchAhead(from + i + 8);
    }
    StoreEight<stream>(to + i, EightTo<To>::From(LoadEight(from + i)));
    StoreEight<stream>(to + i + 8, EightTo<To>::From(LoadEight(from + i + 8)));
  }
  if constexpr (stream) _mm_sfence();
  return i;
}

#else

template <typename From, typename To>
inline constexpr bool kHasLanes = false;

#endif

/// Converts the first elements; the result is how many: 0 where the processor lacks the instructions.
template <typename From, typename To>
std::int64_t CastLanes(const From* from, To* to, std::int64_t n) {
  if constexpr (kHasLanes<From, To>) {
    if (!HasWide()) return 0;
    const bool stream = WritesPastCaches(to, static_cast<std::size_t>(n) * sizeof(To));
    return stream ? CastEights<true>(from, to, n) : CastEights<false>(from, to, n);
  } else {
    return 0;
  }
}

}  // namespace lgpu::cpu

#endif  // LGPU_KERNELS_CPU_CAST_LANES_H_
