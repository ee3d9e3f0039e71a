#ifndef LGPU_ALLOCATOR_BLOCK_TABLE_H_
#define LGPU_ALLOCATOR_BLOCK_TABLE_H_

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace lgpu {

/// A BlockTable has an entry for every slot of a pool's sub-allocator: what the pool must know of a block
/// without its lock, so that a front cache serves small blocks and wrong frees are noticed there.
///
/// Entries never move. `word` holds the generation and the state; whoever changes the state of a small block
/// with one compare-and-exchange is the one that freed it. The other fields are written by the one who makes
/// a block live, before `word`; a reader with a stale handle sees some old or new value, never a torn one.
/// The entry of a large block is only written where it is freed: its sub-allocator's node tells all of it.
///
/// Extend under the pool's lock; all else from any thread.
class BlockTable {
 public:
  enum State : std::uint32_t {
    kVacant = 0,
    kLive = 1,
    kShared = 2,  // live, and used on other streams than its own
    kCached = 3,
    kFenced = 4,
  };
  struct Entry {
    std::atomic<std::uint32_t> word{0};
    std::atomic<std::uint32_t> offset{0};  // in granules, as size
    std::atomic<std::uint32_t> size{0};
    std::atomic<std::uint32_t> about{0};  // padding, stream, op
    std::atomic<std::uint32_t> birth{0};  // milliseconds of the pool's clock
    std::atomic<std::uint32_t> lives{0};  // of small blocks: the last generation

    State state() const { return StateOf(word.load(std::memory_order_acquire)); }
    std::uint32_t padding() const { return PaddingOf(about.load(std::memory_order_relaxed)); }
    std::uint32_t stream() const { return StreamOf(about.load(std::memory_order_relaxed)); }
    std::uint32_t op() const { return OpOf(about.load(std::memory_order_relaxed)); }
  };
  static std::uint32_t Word(std::uint32_t generation, State state) { return generation << 3 | state; }
  static State StateOf(std::uint32_t word) { return static_cast<State>(word & 7); }
  static std::uint32_t GenerationOf(std::uint32_t word) { return word >> 3; }
  static constexpr std::uint32_t kGenerations = std::uint32_t{1} << 29;  // then they start again
  static std::uint32_t About(std::uint32_t padding, std::uint32_t stream, std::uint32_t op) {
    return padding | stream << 9 | op << 15;
  }

  static std::uint32_t PaddingOf(std::uint32_t about) { return about & 0x1ff; }
  static std::uint32_t StreamOf(std::uint32_t about) { return (about >> 9) & 0x3f; }
  static std::uint32_t OpOf(std::uint32_t about) { return about >> 15; }

  /// One past the largest index. Index 0 is no entry.
  std::uint32_t end() const { return end_.load(std::memory_order_acquire); }
  bool Has(std::uint32_t index) const { return index != 0 && index < end(); }
  Entry& at(std::uint32_t index) const {
    const std::uint32_t shifted = index + kFirst;
    const auto segment = static_cast<std::uint32_t>(std::bit_width(shifted)) - kFirstWidth;
    return starts_[segment].load(std::memory_order_relaxed)[shifted - (kFirst << segment)];
  }

  /// Makes sure that there is an entry for `index`.
  void Extend(std::uint32_t index) {
    if (index >= end()) {
      MakeUpTo(index);
    }
  }

 private:
  // Segment n holds kFirst << n entries: none is ever copied, and a few pointers lead to all.
  static constexpr std::uint32_t kFirst = 1024;
  static constexpr std::uint32_t kFirstWidth = 11;
  static constexpr std::uint32_t kSegments = 20;

  void MakeUpTo(std::uint32_t index);

  std::atomic<std::uint32_t> end_{1};
  std::array<std::atomic<Entry*>, kSegments> starts_{};
  std::array<std::unique_ptr<std::byte[]>, kSegments> segments_;
};

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_BLOCK_TABLE_H_
