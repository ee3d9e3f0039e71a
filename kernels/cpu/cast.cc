#include "kernels/cpu/cast.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/bodies/cast.h"
#include "kernels/cpu/cast_lanes.h"
#include "kernels/cpu/convert_blocks.h"
#include "kernels/cpu/wide.h"
#include "kernels/launchers/common_launch.h"

namespace lgpu::cpu {

namespace {

constexpr std::int64_t kBlock = 512;  // elements; they stay in the first-level cache

template <typename T>
inline constexpr bool kIsNarrow = code::IsNarrow<T>::kValue;

struct ConvertElement {
  template <typename To, typename From>
  static To Of(From value) {
    return code::Convert<To>(value);
  }
};
/// Ready for WriteBlock of half or bfloat16.
struct OddElement {
  template <typename To, typename From>
  static To Of(From value) {
    return code::OddFloat(value);
  }
};

template <typename Each, typename From, typename To>
void CastEach(const From* __restrict from, To* __restrict to, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) to[i] = Each::template Of<To>(from[i]);
}
// The same loop with wider registers: its calls are inlined.
#if defined(__x86_64__)
template <typename Each, typename From, typename To>
LGPU_WIDE __attribute__((flatten)) void CastEachWide(const From* __restrict from, To* __restrict to,
                                                     std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) to[i] = Each::template Of<To>(from[i]);
}
#else
template <typename Each, typename From, typename To>
void CastEachWide(const From* from, To* to, std::int64_t n) {
  CastEach<Each>(from, to, n);
}
#endif
template <typename Each, typename From, typename To>
void CastAny(const From* from, To* to, std::int64_t n) {
  HasWide() ? CastEachWide<Each>(from, to, n) : CastEach<Each>(from, to, n);
}

const Half* Stored(const code::HalfBits* values) { return reinterpret_cast<const Half*>(values); }
const BFloat16* Stored(const code::BFloat16Bits* values) { return reinterpret_cast<const BFloat16*>(values); }
Half* Stored(code::HalfBits* values) { return reinterpret_cast<Half*>(values); }
BFloat16* Stored(code::BFloat16Bits* values) { return reinterpret_cast<BFloat16*>(values); }

/// At most a block. Half and bfloat16 go through float.
template <typename From, typename To>
void CastBlock(const From* from, To* to, std::int64_t n) {
  if constexpr (std::is_same_v<From, To>) {
    std::copy_n(from, n, to);
  } else if constexpr (kIsNarrow<From>) {
    alignas(32) float wide[kBlock];
    WidenBlock(Stored(from), wide, n);
    if constexpr (kIsNarrow<To>) NarrowBlock(wide, Stored(to), n);
    if constexpr (!kIsNarrow<To>) CastAny<ConvertElement>(wide, to, n);
  } else if constexpr (kIsNarrow<To>) {
    alignas(32) float odd[kBlock];
    CastAny<OddElement>(from, odd, n);
    NarrowBlock(odd, Stored(to), n);
  } else {
    CastAny<ConvertElement>(from, to, n);
  }
}

template <typename From, typename To>
void CastByBlocks(const From* from, To* to, std::int64_t elements) {
  const bool past_caches = HasWide() && WritesPastCaches(to, static_cast<std::size_t>(elements) * sizeof(To));
  alignas(32) To block[kBlock];
  for (std::int64_t offset = 0; offset < elements; offset += kBlock) {
    const std::int64_t n = std::min(kBlock, elements - offset);
    CastBlock(from + offset, past_caches ? block : to + offset, n);
    if (past_caches) CopyPastCaches(block, to + offset, static_cast<std::size_t>(n) * sizeof(To));
  }
  if (past_caches) FencePastCaches();
}

template <typename From, typename To>
void Cast(const void* parameters) {
  const auto& p = *static_cast<const code::CastParameters*>(parameters);
  const auto* const from = static_cast<const From*>(p.input);
  auto* const to = static_cast<To*>(p.output);
  const auto elements = static_cast<std::int64_t>(p.packing.elements);
  if constexpr (std::is_same_v<From, float> && kIsNarrow<To>) {
    NarrowBlock(from, Stored(to), elements);
  } else if constexpr (std::is_same_v<To, float> && kIsNarrow<From>) {
    WidenBlock(Stored(from), to, elements);
  } else {
    const std::int64_t done = CastLanes(from, to, elements);
    CastByBlocks(from + done, to + done, elements - done);
  }
}

}  // namespace

void (*CastFunction(DType from, DType to))(const void*) {
  return ForSignedType(from, [to]<typename From>() {
    return ForSignedType(to, []<typename To>() -> void (*)(const void*) { return Cast<From, To>; });
  });
}

}  // namespace lgpu::cpu
