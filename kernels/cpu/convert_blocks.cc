#include "kernels/cpu/convert_blocks.h"

#include <cstddef>
#include <cstring>

#include "kernels/cpu/convert.h"
#include "kernels/cpu/wide.h"

namespace lgpu::cpu {

namespace {

template <typename T>
void WidenEach(const T* __restrict from, float* __restrict to, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) to[i] = Widen(from[i]);
}
void NarrowEach(const float* __restrict from, Half* __restrict to, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) to[i] = NarrowToHalf(from[i]);
}
void NarrowEach(const float* __restrict from, BFloat16* __restrict to, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) to[i] = NarrowToBFloat16(from[i]);
}

#if defined(__x86_64__)

constexpr std::int64_t kLanes = 8;

const __m128i* Narrow(const void* from) { return static_cast<const __m128i*>(from); }
__m128i* Narrow(void* to) { return static_cast<__m128i*>(to); }
__m256i* Whole(void* to) { return static_cast<__m256i*>(to); }

LGPU_WIDE_INLINE __m256 Load(const Half* from) { return _mm256_cvtph_ps(_mm_loadu_si128(Narrow(from))); }
LGPU_WIDE_INLINE __m256 Load(const BFloat16* from) { return WidenLanes(_mm_loadu_si128(Narrow(from))); }

template <typename T, bool stream>
LGPU_WIDE std::int64_t WidenWith(const T* from, float* to, std::int64_t n) {
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    if constexpr (stream) FetchAhead(from + i);
    if constexpr (stream) _mm256_stream_ps(to + i, Load(from + i));
    if constexpr (!stream) _mm256_storeu_ps(to + i, Load(from + i));
  }
  if constexpr (stream) _mm_sfence();
  return i;
}
template <bool stream>
LGPU_WIDE std::int64_t NarrowWith(const float* from, Half* to, std::int64_t n) {
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    if constexpr (stream) FetchAhead(from + i);
    const __m128i rounded = _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT);
    if constexpr (stream) _mm_stream_si128(Narrow(to + i), rounded);
    if constexpr (!stream) _mm_storeu_si128(Narrow(to + i), rounded);
  }
  if constexpr (stream) _mm_sfence();
  return i;
}
template <bool stream>
LGPU_WIDE std::int64_t NarrowWith(const float* from, BFloat16* to, std::int64_t n) {
  std::int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {  // a line of the output
    __m256i rounded[2];
    for (std::int64_t k = 0; k < 2; ++k) {
      const float* const some = from + i + 2 * k * kLanes;
      if constexpr (stream) FetchAhead(some);
      rounded[k] = NarrowLanes(_mm256_loadu_ps(some), _mm256_loadu_ps(some + kLanes));
    }
    for (std::int64_t k = 0; k < 2; ++k) {
      if constexpr (stream) _mm256_stream_si256(Whole(to + i + 2 * k * kLanes), rounded[k]);
      if constexpr (!stream) _mm256_storeu_si256(Whole(to + i + 2 * k * kLanes), rounded[k]);
    }
  }
  if constexpr (stream) _mm_sfence();
  return i;
}
template <typename T>
std::int64_t WidenWide(const T* from, float* to, std::int64_t n) {
  const bool stream = WritesPastCaches(to, static_cast<std::size_t>(n) * sizeof(float));
  return stream ? WidenWith<T, true>(from, to, n) : WidenWith<T, false>(from, to, n);
}
template <typename T>
std::int64_t NarrowWide(const float* from, T* to, std::int64_t n) {
  const bool stream = WritesPastCaches(to, static_cast<std::size_t>(n) * sizeof(T));
  return stream ? NarrowWith<true>(from, to, n) : NarrowWith<false>(from, to, n);
}

LGPU_WIDE void Stream(const std::byte* from, std::byte* to, std::size_t bytes) {
  std::size_t i = 0;
  for (; i + 32 <= bytes; i += 32) {
    const __m256i value = _mm256_load_si256(static_cast<const __m256i*>(static_cast<const void*>(from + i)));
    _mm256_stream_si256(static_cast<__m256i*>(static_cast<void*>(to + i)), value);
  }
  std::memcpy(to + i, from + i, bytes - i);
}

void Fence() { _mm_sfence(); }

#else

void Fence() {}
void Stream(const std::byte* from, std::byte* to, std::size_t bytes) { std::memcpy(to, from, bytes); }
template <typename From, typename To>
std::int64_t WidenWide(const From*, To*, std::int64_t) {
  return 0;
}
template <typename From, typename To>
std::int64_t NarrowWide(const From*, To*, std::int64_t) {
  return 0;
}

#endif

template <typename T>
void WidenAny(const T* from, float* to, std::int64_t n) {
  const std::int64_t done = HasWide() ? WidenWide(from, to, n) : 0;
  WidenEach(from + done, to + done, n - done);
}
template <typename T>
void NarrowAny(const float* from, T* to, std::int64_t n) {
  const std::int64_t done = HasWide() ? NarrowWide(from, to, n) : 0;
  NarrowEach(from + done, to + done, n - done);
}

}  // namespace

void CopyPastCaches(const void* from, void* to, std::size_t bytes) {
  Stream(static_cast<const std::byte*>(from), static_cast<std::byte*>(to), bytes);
}

void FencePastCaches() { Fence(); }

void WidenBlock(const Half* from, float* to, std::int64_t n) { WidenAny(from, to, n); }
void WidenBlock(const BFloat16* from, float* to, std::int64_t n) { WidenAny(from, to, n); }
void NarrowBlock(const float* from, Half* to, std::int64_t n) { NarrowAny(from, to, n); }
void NarrowBlock(const float* from, BFloat16* to, std::int64_t n) { NarrowAny(from, to, n); }

}  // namespace lgpu::cpu
