#ifndef LGPU_KERNELS_BODIES_MEMORY_H_
#define LGPU_KERNELS_BODIES_MEMORY_H_

#include "kernels/bodies/numbers.h"
#include "kernels/cuda/kernel_parameters.h"

namespace lgpu::code {

/// Bytes before the first address that is aligned to 16; at most `bytes`.
LGPU_CODE std::uint64_t BytesToAlignment(const void* address, std::uint64_t bytes) {
  const std::uint64_t head = (16 - reinterpret_cast<std::uintptr_t>(address) % 16) % 16;
  return head < bytes ? head : bytes;
}

LGPU_CODE void Fill(const FillParameters& p, Thread t) {
  struct Same {
    std::uint32_t word[4];
  };
  const std::uint32_t word = p.value * 0x01010101U;
  const Words words = BitCast<Words>(Same{{word, word, word, word}});
  const std::uint64_t head = BytesToAlignment(p.to, p.count);
  const std::uint64_t packs = (p.count - head) / sizeof(Words);
  Words* const wide = reinterpret_cast<Words*>(p.to + head);
  for (std::uint64_t i = t.first; i < packs; i += t.stride) wide[i] = words;
  for (std::uint64_t i = t.first; i < head; i += t.stride) p.to[i] = p.value;
  for (std::uint64_t i = head + packs * sizeof(Words) + t.first; i < p.count; i += t.stride) {
    p.to[i] = p.value;
  }
}

LGPU_CODE void Copy(const CopyParameters& p, Thread t) {
  const bool alike =
      (reinterpret_cast<std::uintptr_t>(p.to) ^ reinterpret_cast<std::uintptr_t>(p.from)) % sizeof(Words) ==
      0;
  const std::uint64_t head = alike ? BytesToAlignment(p.to, p.bytes) : p.bytes;
  const std::uint64_t packs = (p.bytes - head) / sizeof(Words);
  Words* const to = reinterpret_cast<Words*>(p.to + head);
  const Words* const from = reinterpret_cast<const Words*>(p.from + head);
  std::uint64_t i = t.first;
  for (; i + (kInFlight - 1) * t.stride < packs; i += kInFlight * t.stride) {
    Words loaded[kInFlight];
    LoadTogether(loaded, [&](int u) { return from + i + u * t.stride; });
    for (int u = 0; u < kInFlight; ++u) to[i + u * t.stride] = loaded[u];
  }
  for (; i < packs; i += t.stride) to[i] = from[i];
  for (std::uint64_t j = t.first; j < head; j += t.stride) p.to[j] = p.from[j];
  for (std::uint64_t j = head + packs * sizeof(Words) + t.first; j < p.bytes; j += t.stride) {
    p.to[j] = p.from[j];
  }
}

}  // namespace lgpu::code

#endif  // LGPU_KERNELS_BODIES_MEMORY_H_
