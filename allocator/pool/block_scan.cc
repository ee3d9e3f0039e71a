#include "allocator/pool/block_scan.h"

#include <array>
#include <memory>
#include <utility>
#include <vector>

#include "allocator/pool/block_changes.h"
#include "allocator/pool/pool_state.h"

namespace lgpu {
namespace {

// This many scattered nodes are read within some hundred microseconds.
constexpr std::uint64_t kFewChanges = 4096;
// Each round has fewer changes than the one before, unless threads change blocks faster than they are read.
constexpr int kMostRounds = 16;

template <typename Blocks>
void CopyIfBlock(const NodeTable& nodes, std::uint32_t index, Blocks& into) {
  const Node& node = nodes[index];
  const Node::State state = node.state();
  if (Node::IsBlock(state)) into.push_back({node.offset, node.size, node.behind, node.before, index, state});
}

/// The pool notes changes during the life of this object.
class Noting {
 public:
  Noting(const PoolState& state, BlockChanges& changes) : state_(state) { Into(&changes); }
  ~Noting() { Into(nullptr); }
  Noting(const Noting&) = delete;
  Noting& operator=(const Noting&) = delete;

 private:
  void Into(BlockChanges* changes) {
    const MutexLock lock(state_.mutex);
    state_.block_changes = changes;
  }
  const PoolState& state_;
};

/// The blocks of a pool while a scan runs: `early` is from the first pass over all nodes, `late` from the
/// nodes that have changed since.
struct Scanned {
  PageArray<BlockCopy> early;
  PageArray<BlockCopy> late;
  std::unique_ptr<BlockChanges> stale;  // nodes whose copy in `early` is not true any more

  /// `changes`: since `late` was read.
  void Forget(const BlockChanges& changes) {
    late.EraseIf([&changes](const BlockCopy& block) { return changes.Has(block.index); });
    stale->Include(changes);
  }
};

}  // namespace

PageArray<BlockCopy> ScanBlocks(const PoolState& state, absl::FunctionRef<void()> at_that_moment) {
  const MutexLock one_at_a_time(state.scan_mutex);
  Scanned scanned;
  auto changes = std::make_unique<BlockChanges>(state.nodes.end());
  scanned.stale = std::make_unique<BlockChanges>(changes->end());
  std::unique_ptr<BlockChanges> next;  // before `noting`: the state points at it until that ends
  const Noting noting(state, *changes);
  for (std::uint32_t index = 1; index < changes->end(); ++index) {
    CopyIfBlock(state.nodes, index, scanned.early);
  }
  std::vector<BlockCopy> last(kFewChanges);  // touched: no page fault under the lock
  for (int round = 1;; ++round) {
    last.clear();
    next = std::make_unique<BlockChanges>(state.nodes.end());
    bool done = false;
    {
      const MutexLock lock(state.mutex);
      done = changes->CountBelow(state.nodes.end()) <= kFewChanges || round == kMostRounds;
      state.block_changes = done ? nullptr : next.get();
      if (done) {
        changes->EachBelow(state.nodes.end(),
                           [&](std::uint32_t index) { CopyIfBlock(state.nodes, index, last); });
        at_that_moment();
      }
    }
    scanned.Forget(*changes);
    if (done) break;
    changes->EachBelow(next->end(),
                       [&](std::uint32_t index) { CopyIfBlock(state.nodes, index, scanned.late); });
    changes = std::move(next);
  }
  scanned.early.EraseIf([&scanned](const BlockCopy& block) { return scanned.stale->Has(block.index); });
  for (const BlockCopy& block : scanned.late) scanned.early.push_back(block);
  for (const BlockCopy& block : last) scanned.early.push_back(block);
  return std::move(scanned.early);
}

// By 11 bits of the offset at a time, from the low ones up: a sort by comparisons takes ten times as long.
void SortByOffset(PageArray<BlockCopy>& blocks) {
  constexpr unsigned kBits = 11;
  constexpr std::uint32_t kMask = (std::uint32_t{1} << kBits) - 1;
  struct Key {
    std::uint32_t offset;
    std::uint32_t place;
  };
  PageArray<Key> keys, sorted;
  keys.Reserve(blocks.size());
  sorted.Reserve(blocks.size());
  for (std::uint32_t place = 0; place < blocks.size(); ++place) {
    keys.push_back({blocks[place].offset, place});
    sorted.push_back({});
  }
  for (unsigned shift = 0; shift < 32; shift += kBits) {
    std::array<std::uint32_t, kMask + 1> begin{};
    for (const Key& key : keys) ++begin[key.offset >> shift & kMask];
    std::uint32_t before = 0;
    for (std::uint32_t& count : begin) before += std::exchange(count, before);
    for (const Key& key : keys) sorted[begin[key.offset >> shift & kMask]++] = key;
    keys.swap(sorted);
  }
  PageArray<BlockCopy> in_order;
  in_order.Reserve(blocks.size());
  for (const Key& key : keys) in_order.push_back(blocks[key.place]);
  blocks = std::move(in_order);
}

}  // namespace lgpu
