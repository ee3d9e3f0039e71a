#ifndef LGPU_ALLOCATOR_NODE_TABLE_H_
#define LGPU_ALLOCATOR_NODE_TABLE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace lgpu {

/// A number that one thread writes while other threads may read it. Copies like a number.
class SharedNumber {
 public:
  constexpr SharedNumber(std::uint32_t value = 0) : value_(value) {}  // NOLINT: it is a number
  SharedNumber(const SharedNumber& other) : value_(other) {}
  SharedNumber& operator=(const SharedNumber& other) { return *this = std::uint32_t{other}; }
  SharedNumber& operator=(std::uint32_t value) {
    value_.store(value, std::memory_order_relaxed);
    return *this;
  }
  operator std::uint32_t() const { return value_.load(std::memory_order_relaxed); }  // NOLINT

 private:
  std::atomic<std::uint32_t> value_;
};

/// One range of a region, in half a cache line that also has a Pool's data for its blocks, so that freeing a
/// block that lay idle for long waits for one line only.
///
/// The thread that holds the lock of the table's owner writes all fields, with one exception: a block
/// (IsBlock) that is not in the sub-allocator's hands belongs to its holder. The thread that changes `word`
/// from kLive with one compare-and-exchange has freed the block; the holder of a cached block makes it live
/// again. All fields but `stamp` may be read by any thread at any time: a thread with a stale handle reads
/// some old or new value, and a generation that is not the handle's.
struct alignas(32) Node {
  enum State : std::uint32_t {
    kVacant,
    kFree,
    kUnmapped,
    kClaimed,
    kDetached,
    kRetired,
    // Blocks; the sub-allocator treats all four alike. Only a pool sets the last three.
    kLive = 8,
    kShared = 9,  // live, and used on other streams than its own
    kCached = 10,
    kFenced = 11,
  };
  static constexpr std::uint32_t kStateBits = 4;
  static constexpr std::uint32_t kGenerations = std::uint32_t{1} << (32 - kStateBits);
  static std::uint32_t Word(std::uint32_t generation, State state) {
    return generation << kStateBits | state;
  }
  static State StateOf(std::uint32_t word) {
    return static_cast<State>(word & ((std::uint32_t{1} << kStateBits) - 1));
  }
  static std::uint32_t GenerationOf(std::uint32_t word) { return word >> kStateBits; }
  static bool IsBlock(State state) { return (state & kLive) != 0; }

  std::atomic<std::uint32_t> word{0};  // how often it had a name, and its state
  SharedNumber offset;                 // in granules, as size
  SharedNumber size;
  SharedNumber previous;  // by address; 0: none
  SharedNumber next;
  SharedNumber before;      // free or unmapped: in its class; a block: the owner's, as `behind`
  SharedNumber behind;      // vacant: the next vacant one
  std::uint32_t stamp = 0;  // a block: whether it may lie in a large chunk

  Node() = default;
  Node(const Node& other) { *this = other; }
  Node& operator=(const Node& other) {
    word.store(other.word.load(std::memory_order_relaxed), std::memory_order_relaxed);
    offset = other.offset;
    size = other.size;
    previous = other.previous;
    next = other.next;
    before = other.before;
    behind = other.behind;
    stamp = other.stamp;
    return *this;
  }

  State state() const { return StateOf(word.load(std::memory_order_relaxed)); }
  std::uint32_t generation() const { return GenerationOf(word.load(std::memory_order_relaxed)); }
  void Set(std::uint32_t generation, State state) {
    word.store(Word(generation, state), std::memory_order_relaxed);
  }
  void set_state(State state) { Set(generation(), state); }
  bool is_block() const { return IsBlock(state()); }
  std::uint64_t end() const { return std::uint64_t{offset} + size; }
};
static_assert(sizeof(Node) == 32);

/// A NodeTable is an array of nodes that never moves: it reserves addresses for all nodes that there may be,
/// and the beginning of them has memory. So it grows without a copy, which would be a pause. Other threads
/// read it without the lock of the thread that extends it, from a cache line that seldom changes. Slot 0
/// always exists and is no range: lists end in it.
class alignas(64) NodeTable {
 public:
  /// Reserves addresses for `most` nodes, or for as many as it can get; aborts if that is less than a few
  /// thousand.
  explicit NodeTable(std::uint64_t most);
  ~NodeTable();
  NodeTable(const NodeTable&) = delete;
  NodeTable& operator=(const NodeTable&) = delete;

  Node* data() const { return nodes_; }
  Node& operator[](std::uint32_t index) const { return nodes_[index]; }
  /// Freeing the block in a slot soon writes to the nodes beside it.
  void PrefetchNeighbours(std::uint32_t index) const {
    __builtin_prefetch(&nodes_[nodes_[index].previous], 1);
    __builtin_prefetch(&nodes_[nodes_[index].next], 1);
  }
  std::uint64_t most() const { return most_; }
  /// One past the last slot.
  std::uint32_t end() const { return end_.load(std::memory_order_acquire); }
  bool Has(std::uint32_t index) const { return index != 0 && index < end(); }

  /// A new slot at the end.
  std::uint32_t Add() {
    const std::uint32_t index = end_.load(std::memory_order_relaxed);
    if (index == committed_) Commit();
    std::construct_at(&nodes_[index]);
    end_.store(index + 1, std::memory_order_release);
    return index;
  }

 private:
  void Commit();

  Node* nodes_ = nullptr;
  std::uint64_t most_ = 0;
  std::uint64_t committed_ = 0;
  std::atomic<std::uint32_t> end_{0};
};

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_NODE_TABLE_H_
