#ifndef LGPU_KERNELS_CPU_CONVERT_BLOCKS_H_
#define LGPU_KERNELS_CPU_CONVERT_BLOCKS_H_

#include <cstddef>
#include <cstdint>

#include "lgpu/dtype.h"

namespace lgpu::cpu {

// Many conversions at once, by the rules of convert.h; with the instructions for it where the processor has
// them, found out at the first call. Only the bits of a NaN may differ. The ranges do not overlap.
void WidenBlock(const Half* from, float* to, std::int64_t n);
void WidenBlock(const BFloat16* from, float* to, std::int64_t n);
void NarrowBlock(const float* from, Half* to, std::int64_t n);
void NarrowBlock(const float* from, BFloat16* to, std::int64_t n);

/// Needs 32-byte alignment and HasWide(). FencePastCaches follows the last copy, before other threads read.
void CopyPastCaches(const void* from, void* to, std::size_t bytes);
void FencePastCaches();

}  // namespace lgpu::cpu

#endif  // LGPU_KERNELS_CPU_CONVERT_BLOCKS_H_
