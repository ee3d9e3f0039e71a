#include "kernels/cpu/add_n_wide.h"

#include "kernels/cpu/wide.h"

namespace lgpu::cpu {

#if defined(__x86_64__)

namespace {

/// How elements of a type fill a register; half and bfloat16 are floats there.
struct FloatLanes {
  using Element = float;
  using Register = __m256;
  static constexpr std::int64_t kCount = 8;
  LGPU_WIDE_INLINE static Register Load(const Element* from) { return _mm256_loadu_ps(from); }
  LGPU_WIDE_INLINE static Register Add(Register a, Register b) { return _mm256_add_ps(a, b); }
  LGPU_WIDE_INLINE static void Store(Element* to, Register value) { _mm256_storeu_ps(to, value); }
  LGPU_WIDE_INLINE static void Stream(Element* to, Register value) { _mm256_stream_ps(to, value); }
};

struct DoubleLanes {
  using Element = double;
  using Register = __m256d;
  static constexpr std::int64_t kCount = 4;
  LGPU_WIDE_INLINE static Register Load(const Element* from) { return _mm256_loadu_pd(from); }
  LGPU_WIDE_INLINE static Register Add(Register a, Register b) { return _mm256_add_pd(a, b); }
  LGPU_WIDE_INLINE static void Store(Element* to, Register value) { _mm256_storeu_pd(to, value); }
  LGPU_WIDE_INLINE static void Stream(Element* to, Register value) { _mm256_stream_pd(to, value); }
};

const __m256i* Whole(const void* from) { return static_cast<const __m256i*>(from); }
__m256i* Whole(void* to) { return static_cast<__m256i*>(to); }
const __m128i* Narrow(const void* from) { return static_cast<const __m128i*>(from); }
__m128i* Narrow(void* to) { return static_cast<__m128i*>(to); }

template <typename T>
struct WholeLanes {
  using Element = T;
  using Register = __m256i;
  static constexpr std::int64_t kCount = 32 / sizeof(T);
  LGPU_WIDE_INLINE static Register Load(const Element* from) { return _mm256_loadu_si256(Whole(from)); }
  LGPU_WIDE_INLINE static Register Add(Register a, Register b) {
    return sizeof(T) == 4 ? _mm256_add_epi32(a, b) : _mm256_add_epi64(a, b);
  }
  LGPU_WIDE_INLINE static void Store(Element* to, Register value) { _mm256_storeu_si256(Whole(to), value); }
  LGPU_WIDE_INLINE static void Stream(Element* to, Register value) { _mm256_stream_si256(Whole(to), value); }
};

struct HalfLanes {
  using Element = Half;
  using Register = __m256;
  static constexpr std::int64_t kCount = 8;
  LGPU_WIDE_INLINE static Register Load(const Element* from) {
    return _mm256_cvtph_ps(_mm_loadu_si128(Narrow(from)));
  }
  LGPU_WIDE_INLINE static Register Add(Register a, Register b) { return _mm256_add_ps(a, b); }
  LGPU_WIDE_INLINE static void Store(Element* to, Register value) {
    _mm_storeu_si128(Narrow(to), _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT));
  }
  LGPU_WIDE_INLINE static void Stream(Element* to, Register value) {
    _mm_stream_si128(Narrow(to), _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT));
  }
};

struct BFloat16Lanes {
  using Element = BFloat16;
  using Register = SplitLanes;
  static constexpr std::int64_t kCount = 16;
  LGPU_WIDE_INLINE static Register Load(const Element* from) {
    return WidenSplit(_mm256_loadu_si256(Whole(from)));
  }
  LGPU_WIDE_INLINE static Register Add(Register a, Register b) {
    return {_mm256_add_ps(a.even, b.even), _mm256_add_ps(a.odd, b.odd)};
  }
  LGPU_WIDE_INLINE static void Store(Element* to, Register value) {
    _mm256_storeu_si256(Whole(to), NarrowSplit(value));
  }
  LGPU_WIDE_INLINE static void Stream(Element* to, Register value) {
    _mm256_stream_si256(Whole(to), NarrowSplit(value));
  }
};

// Inputs beyond the caches are read one line of each at a time, which is as fast as they can be read; in the
// caches longer steps have less to count.
template <typename Lanes, bool stream>
LGPU_WIDE std::int64_t Sum(const KernelArguments& args) {
  using Element = typename Lanes::Element;
  constexpr std::int64_t kLine = 64 / sizeof(Element);
  constexpr std::int64_t kStep = stream ? kLine : sizeof(Element) == 2 ? kLine : 4 * kLine;
  constexpr std::int64_t kRegisters = kStep / Lanes::kCount;
  constexpr std::size_t kAhead = 1024;  // bytes; more inputs than the processor follows by itself
  auto* const output = reinterpret_cast<Element*>(args.output);
  std::int64_t i = 0;
  for (; i + kStep <= args.elements; i += kStep) {
    typename Lanes::Register sum[kRegisters];
    const auto* const first = args.accumulate ? output : reinterpret_cast<const Element*>(args.inputs[0]);
    for (int r = 0; r < kRegisters; ++r) sum[r] = Lanes::Load(first + i + r * Lanes::kCount);
    for (std::int32_t k = args.accumulate ? 0 : 1; k < args.input_count; ++k) {
      const auto* const input = reinterpret_cast<const Element*>(args.inputs[k]) + i;
      for (std::size_t line = 0; line < kStep * sizeof(Element); line += 64) {
        _mm_prefetch(reinterpret_cast<const char*>(input) + line + kAhead, _MM_HINT_T0);
      }
      for (int r = 0; r < kRegisters; ++r) {
        sum[r] = Lanes::Add(sum[r], Lanes::Load(input + r * Lanes::kCount));
      }
    }
    for (int r = 0; r < kRegisters; ++r) {
      Element* const to = output + i + r * Lanes::kCount;
      if constexpr (stream) Lanes::Stream(to, sum[r]);
      if constexpr (!stream) Lanes::Store(to, sum[r]);
    }
  }
  if constexpr (stream) _mm_sfence();
  return i;
}

template <typename Lanes>
std::int64_t SumWide(const KernelArguments& args) {
  const std::size_t bytes = static_cast<std::size_t>(args.elements) * sizeof(typename Lanes::Element);
  return WritesPastCaches(args.output, bytes) ? Sum<Lanes, true>(args) : Sum<Lanes, false>(args);
}

}  // namespace

std::int64_t AddWide(const KernelArguments& args, DType dtype) {
  if (!HasWide()) return 0;
  switch (dtype) {
    case DType::kFloat32:
      return SumWide<FloatLanes>(args);
    case DType::kFloat64:
      return SumWide<DoubleLanes>(args);
    case DType::kInt32:
      return SumWide<WholeLanes<std::uint32_t>>(args);
    case DType::kInt64:
      return SumWide<WholeLanes<std::uint64_t>>(args);
    case DType::kFloat16:
      return SumWide<HalfLanes>(args);
    case DType::kBFloat16:
      return SumWide<BFloat16Lanes>(args);
    case DType::kInvalid:
      break;
  }
  return 0;
}

#else

std::int64_t AddWide(const KernelArguments&, DType) { return 0; }

#endif

}  // namespace lgpu::cpu
