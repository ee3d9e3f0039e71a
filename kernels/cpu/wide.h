#ifndef LGPU_KERNELS_CPU_WIDE_H_
#define LGPU_KERNELS_CPU_WIDE_H_

// Registers of 32 bytes, for functions marked LGPU_WIDE. Not by flags for whole files: inline functions there
// could be those that other files use as well, on processors without these instructions.

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
/// Eight of bfloat16 as float and back, rounded to nearest even; NaN stays NaN.
LGPU_WIDE_INLINE __m256 WidenLanes(__m128i values) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(values), 16));
}
LGPU_WIDE_INLINE __m128i NarrowLanes(__m256 value) {
  const __m256i bits = _mm256_castps_si256(value);
  const __m256i upper = _mm256_srli_epi32(bits, 16);
  const __m256i odd = _mm256_and_si256(upper, _mm256_set1_epi32(1));
  const __m256i up = _mm256_add_epi32(_mm256_set1_epi32(0x7fff), odd);
  const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, up), 16);
  const __m256i quiet = _mm256_or_si256(upper, _mm256_set1_epi32(0x40));
  const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
  const __m256i result = _mm256_blendv_epi8(rounded, quiet, is_nan);
  return _mm256_castsi256_si128(_mm256_permute4x64_epi64(_mm256_packus_epi32(result, result), 0x08));
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
