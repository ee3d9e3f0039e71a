#ifndef LGPU_KERNELS_CPU_WIDE_H_
#define LGPU_KERNELS_CPU_WIDE_H_

// Registers of 32 bytes, for functions marked LGPU_WIDE. Flags for whole files would also mark their inline
// functions, which other files may use on processors without these instructions.

#include <cstddef>
#include <cstdint>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#define LGPU_WIDE __attribute__((target("avx2,f16c")))
#define LGPU_WIDE_INLINE __attribute__((target("avx2,f16c"), always_inline)) inline
#endif

namespace lgpu::cpu {

/// Whether functions marked LGPU_WIDE may be called; found out at the first call.
inline bool HasWide() {
#if defined(__x86_64__)
  static const bool has = [] {
    unsigned a = 0;
    unsigned b = 0;
    unsigned c = 0;
    unsigned d = 0;
    return __builtin_cpu_supports("avx2") && __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
  }();
  return has;
#else
  return false;
#endif
}

#if defined(__x86_64__)
/// For loops that read and write past the caches, where the processor would not read far enough ahead.
LGPU_WIDE_INLINE void FetchAhead(const void* from) {
  _mm_prefetch(static_cast<const char*>(from) + 2048, _MM_HINT_T0);
}

/// Sixteen of bfloat16 as floats: those of even and of odd place, which takes no shuffle.
struct SplitLanes {
  __m256 even, odd;
};
LGPU_WIDE_INLINE SplitLanes WidenSplit(__m256i values) {
  const __m256i upper = _mm256_set1_epi32(static_cast<int>(0xffff0000));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(values, 16)),
          _mm256_castsi256_ps(_mm256_and_si256(values, upper))};
}

/// Bits of floats rounded to nearest even at bit 16; below it lies rubbish. Wrong for NaN.
LGPU_WIDE_INLINE __m256i RoundUpperBits(__m256 value) {
  const __m256i bits = _mm256_castps_si256(value);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  return _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
}
/// The same where there may be NaN, which stays NaN.
LGPU_WIDE_INLINE __m256i RoundUpperBitsOfAny(__m256 value) {
  const __m256i quiet = _mm256_or_si256(_mm256_castps_si256(value), _mm256_set1_epi32(0x400000));
  const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
  return _mm256_blendv_epi8(RoundUpperBits(value), quiet, is_nan);
}
/// NaN is rare enough for a branch.
LGPU_WIDE_INLINE bool HasNan(__m256 a, __m256 b) {
  return __builtin_expect(_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_UNORD_Q)) != 0, 0);
}

/// Sixteen floats as bfloat16, rounded to nearest even; NaN stays NaN.
LGPU_WIDE_INLINE __m256i NarrowSplit(SplitLanes value) {
  const bool nan = HasNan(value.even, value.odd);
  const __m256i even = nan ? RoundUpperBitsOfAny(value.even) : RoundUpperBits(value.even);
  const __m256i odd = nan ? RoundUpperBitsOfAny(value.odd) : RoundUpperBits(value.odd);
  return _mm256_blend_epi16(_mm256_srli_epi32(even, 16), odd, 0xaa);
}
LGPU_WIDE_INLINE __m256i NarrowLanes(__m256 low, __m256 high) {
  const bool nan = HasNan(low, high);
  const __m256i a = _mm256_srli_epi32(nan ? RoundUpperBitsOfAny(low) : RoundUpperBits(low), 16);
  const __m256i b = _mm256_srli_epi32(nan ? RoundUpperBitsOfAny(high) : RoundUpperBits(high), 16);
  return _mm256_permute4x64_epi64(_mm256_packus_epi32(a, b), 0xd8);
}

/// Eight of bfloat16 as floats.
LGPU_WIDE_INLINE __m256 WidenLanes(__m128i values) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(values), 16));
}
#endif

/// An output that no cache could hold is written past them: nothing of it is read before. Its address is
/// aligned.
inline bool WritesPastCaches(const void* to, std::size_t bytes) {
  constexpr std::size_t kLarge = std::size_t{8} << 20;
  return bytes >= kLarge && reinterpret_cast<std::uintptr_t>(to) % 32 == 0;
}

}  // namespace lgpu::cpu

#endif  // LGPU_KERNELS_CPU_WIDE_H_
