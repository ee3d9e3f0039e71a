#include "allocator/node_table.h"

#include <sys/mman.h>

#include <algorithm>

#include "allocator/check.h"

namespace lgpu {
namespace {

constexpr std::uint64_t kFewest = 4096;
constexpr std::uint64_t kMost = std::uint64_t{1} << 31;
constexpr std::uint64_t kFirstStep = 4096;
constexpr std::uint64_t kLargestStep = std::uint64_t{1} << 21;
constexpr std::size_t kHugePage = std::size_t{2} << 20;

std::byte* Reserve(std::size_t bytes) {
  void* const mapping = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return mapping == MAP_FAILED ? nullptr : static_cast<std::byte*>(mapping);
}

}  // namespace

NodeTable::NodeTable(std::uint64_t most) : most_(std::clamp(most, kFewest, kMost)) {
  for (;; most_ /= 2) {
    LGPU_CHECK(most_ >= kFewest);
    mapped_bytes_ = most_ * sizeof(Node) + kHugePage;
    mapping_ = Reserve(mapped_bytes_);
    if (mapping_ != nullptr) {
      break;
    }
  }
  const auto address = reinterpret_cast<std::uintptr_t>(mapping_);
  nodes_ = reinterpret_cast<Node*>(mapping_ + (kHugePage - address % kHugePage) % kHugePage);
  Add();
}

NodeTable::~NodeTable() { LGPU_CHECK(munmap(mapping_, mapped_bytes_) == 0); }

// What nobody touched costs nothing, so the steps may be large.
void NodeTable::Commit() {
  LGPU_CHECK_OP(committed_, <, most_);
  const std::uint64_t step = std::min(std::clamp(committed_, kFirstStep, kLargestStep), most_ - committed_);
  std::byte* const start = reinterpret_cast<std::byte*>(nodes_ + committed_);
  const std::size_t bytes = step * sizeof(Node);
  LGPU_CHECK(mprotect(start, bytes, PROT_READ | PROT_WRITE) == 0);
  committed_ += step;
}

}  // namespace lgpu
