#include "allocator/node_table.h"

#include <sys/mman.h>

#include <algorithm>

#include "base/check.h"

namespace lgpu {
namespace {

constexpr std::uint64_t kFewest = 4096;
constexpr std::uint64_t kMostNodes = std::uint64_t{1} << 31;
// Untouched pages cost nothing, so the steps may be large.
constexpr std::uint64_t kFirstStep = 4096;
constexpr std::uint64_t kMostCommitted = std::uint64_t{1} << 21;

}  // namespace

NodeTable::NodeTable(std::uint64_t most) : most_(std::clamp(most, kFewest, kMostNodes)) {
  void* mapping = MAP_FAILED;
  // Halves the number until this process may have addresses for it.
  for (most_ *= 2; mapping == MAP_FAILED;) {
    most_ /= 2;
    LGPU_CHECK_OP(most_, >=, kFewest);
    mapping =
        mmap(nullptr, most_ * sizeof(Node), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  }
  // Huge pages saved no time, and each cost a pause and unused memory. A kernel without them fails this call,
  // which changes nothing.
  madvise(mapping, most_ * sizeof(Node), MADV_NOHUGEPAGE);
  nodes_ = static_cast<Node*>(mapping);
  Add();
}

NodeTable::~NodeTable() { LGPU_CHECK(munmap(nodes_, most_ * sizeof(Node)) == 0); }

void NodeTable::Commit() {
  LGPU_CHECK_OP(committed_, <, most_);
  const std::uint64_t step = std::min(std::clamp(committed_, kFirstStep, kMostCommitted), most_ - committed_);
  LGPU_CHECK(mprotect(nodes_ + committed_, step * sizeof(Node), PROT_READ | PROT_WRITE) == 0);
  committed_ += step;
}

}  // namespace lgpu
