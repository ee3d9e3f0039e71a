#ifndef LGPU_ID_H_
#define LGPU_ID_H_

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>

namespace lgpu {

/// An Id is a number that names one thing of one kind; ids of different kinds do not mix.
/// `Tag` is an incomplete type that only tells the kinds apart. Zero names nothing.
template <typename Tag>
struct Id {
  std::uint64_t value = 0;

  constexpr explicit operator bool() const { return value != 0; }
  friend constexpr auto operator<=>(const Id&, const Id&) = default;

  template <typename H>
  friend H AbslHashValue(H state, const Id& id) {
    return H::combine(std::move(state), id.value);
  }
};

/// One physical allocation of a multiple of the granularity; unique within its daemon's life.
using ChunkId = Id<struct ChunkTag>;

}  // namespace lgpu

template <typename Tag>
struct std::hash<lgpu::Id<Tag>> {
  std::size_t operator()(const lgpu::Id<Tag>& id) const noexcept {
    return std::hash<std::uint64_t>{}(id.value);
  }
};

#endif  // LGPU_ID_H_
