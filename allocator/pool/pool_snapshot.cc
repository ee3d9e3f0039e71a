// What a pool shows of itself.

#include <algorithm>
#include <ctime>
#include <utility>

#include "absl/strings/str_cat.h"
#include "allocator/pool/pool_impl.h"
#include "lgpu/status.h"

namespace lgpu {
namespace {

// Block ages need no better than the kernel's tick, which is much cheaper to read.
std::uint32_t TickMilliseconds() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return static_cast<std::uint32_t>(now.tv_sec * 1000 + now.tv_nsec / 1'000'000);
}

BlockState StateOf(Node::State state) {
  switch (state) {
    case Node::kCached:
      return BlockState::kCached;
    case Node::kFenced:
      return BlockState::kFenced;
    default:
      return BlockState::kLive;
  }
}

bool HoldsMore(const MemoryOwner& a, const MemoryOwner& b) {
  return a.bytes != b.bytes ? a.bytes > b.bytes : a.op < b.op;
}

}  // namespace

std::uint32_t Pool::Impl::CoarseMilliseconds() { return TickMilliseconds(); }

// Touched here, so that nobody waits for that under the lock.
std::vector<Pool::Impl::EntryCopy> Pool::Impl::RoomForEntries() const {
  std::vector<EntryCopy> room(nodes_.end() + nodes_.end() / 16);
  room.clear();
  return room;
}

// What of an entry can change without the lock is only whether it is live or cached.
void Pool::Impl::CopyEntries(std::vector<EntryCopy>& copies) const {
  for (std::uint32_t index = 1; index < nodes_.end(); ++index) {
    const Node& node = nodes_[index];
    const Node::State state = node.state();
    if (Node::IsBlock(state)) {
      copies.push_back({node.offset, node.size, node.behind, node.before, state});
    }
  }
}

std::vector<MemoryOwner> Pool::Impl::OwnersOf(const std::vector<EntryCopy>& entries) const {
  std::unordered_map<std::uint32_t, MemoryOwner> by_op;
  for (const EntryCopy& entry : entries) {
    if (StateOf(entry.state) == BlockState::kLive) {
      MemoryOwner& owner = by_op[BlockEntry::OpOf(entry.about)];
      owner.bytes += Suballocator::kGranule * entry.size;
      ++owner.blocks;
    }
  }
  std::vector<MemoryOwner> owners;
  for (auto& [op, owner] : by_op) {
    owner.op = owners_.NameOf(op);
    owners.push_back(std::move(owner));
  }
  std::sort(owners.begin(), owners.end(), HoldsMore);
  return owners;
}

std::vector<MemoryOwner> Pool::Impl::LargestOwners(std::size_t n) const {
  if (epoch_.IsForked()) {
    return {};
  }
  std::vector<EntryCopy> entries = RoomForEntries();
  {
    MutexLock lock(mutex_);
    CopyEntries(entries);
  }
  std::vector<MemoryOwner> owners = OwnersOf(entries);
  owners.resize(std::min(owners.size(), n));
  return owners;
}

MemorySnapshot Pool::Impl::Snapshot() const {
  MemorySnapshot snapshot;
  if (epoch_.IsForked()) {
    return snapshot;
  }
  snapshot.device = options_.device;
  snapshot.lease = options_.lease;
  snapshot.reserved = reserved_;
  snapshot.granularity = granularity_;
  snapshot.stats = stats();
  std::vector<EntryCopy> entries = RoomForEntries();
  {
    MutexLock lock(mutex_);
    CopyEntries(entries);
    for (const auto& [offset, chunk] : mapped_) {
      if (!snapshot.mappings.empty() &&
          snapshot.mappings.back().offset + snapshot.mappings.back().bytes == offset) {
        snapshot.mappings.back().bytes += chunk.bytes;
      } else {
        snapshot.mappings.push_back({offset, chunk.bytes});
      }
    }
  }
  std::sort(entries.begin(), entries.end(),
            [](const EntryCopy& a, const EntryCopy& b) { return a.offset < b.offset; });
  std::unordered_map<std::uint32_t, std::string> names;
  const std::uint32_t now = TickMilliseconds();
  snapshot.blocks.reserve(entries.size());
  for (const EntryCopy& entry : entries) {
    const std::uint32_t op = BlockEntry::OpOf(entry.about);
    auto name = names.find(op);
    if (name == names.end()) {
      name = names.emplace(op, owners_.NameOf(op)).first;
    }
    const Bytes bytes = Suballocator::kGranule * entry.size;
    snapshot.blocks.push_back({.offset = Suballocator::kGranule * entry.offset,
                               .bytes = bytes,
                               .requested = bytes - Bytes(BlockEntry::PaddingOf(entry.about)),
                               .op = name->second,
                               .stream = BlockEntry::StreamOf(entry.about),
                               .age = std::chrono::milliseconds(now - entry.birth),
                               .state = StateOf(entry.state)});
  }
  snapshot.owners = OwnersOf(entries);
  return snapshot;
}

void Pool::Impl::RecordAllocate(std::byte* address, Bytes bytes, const AllocateOptions& options) const {
  if (TraceRecorder* const trace = trace_.load(std::memory_order_acquire)) {
    trace->Record(address != nullptr ? TraceRecorder::Action::kAllocate : TraceRecorder::Action::kFailure,
                  address, bytes, options.stream);
  }
}

void Pool::Impl::RecordFree(TraceRecorder& trace, const Block& block) const {
  if (LiveWord(block) != 0) {
    const std::uint32_t about = nodes_[block.node].behind;
    trace.Record(TraceRecorder::Action::kFree, block.address,
                 block.bytes - Bytes(BlockEntry::PaddingOf(about)), BlockEntry::StreamOf(about));
  }
}

absl::Status Pool::Impl::StartTrace(const std::string& path) {
  LGPU_RETURN_IF_ERROR(CheckAlive());
  LGPU_ASSIGN_OR_RETURN(std::unique_ptr<TraceRecorder> recorder, TraceRecorder::Open(path));
  TraceRecorder* previous = nullptr;
  {
    MutexLock lock(mutex_);
    recorders_.push_back(std::move(recorder));
    previous = trace_.exchange(recorders_.back().get(), std::memory_order_acq_rel);
  }
  return previous == nullptr ? absl::OkStatus() : previous->Finish();
}

absl::Status Pool::Impl::StopTrace() {
  LGPU_RETURN_IF_ERROR(CheckAlive());
  // The recorder stays: a thread may be about to use it.
  TraceRecorder* const recorder = trace_.exchange(nullptr, std::memory_order_acq_rel);
  return recorder == nullptr ? absl::OkStatus() : recorder->Finish();
}

}  // namespace lgpu
