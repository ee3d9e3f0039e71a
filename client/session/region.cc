#include "client/session/region.h"

#include <sys/resource.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "base/check.h"
#include "client/session/fork_guard.h"
#include "lgpu/status.h"

namespace lgpu {
namespace {

std::string ChunkText(ChunkId id) { return "chunk " + std::to_string(id.value); }

// Zero where the product has more than 63 bits.
Bytes Times(Bytes unit, std::uint64_t times) {
  return unit.count() > (~std::uint64_t{0} >> 1) / times ? Bytes() : unit * times;
}

// True unless RLIMIT_AS limits the addresses of this process.
bool HasManyAddresses() {
  rlimit most = {};
  return ::getrlimit(RLIMIT_AS, &most) == 0 && most.rlim_cur == RLIM_INFINITY;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Region>> Region::Reserve(DeviceMemory& backend, int device, Bytes granularity,
                                                        Bytes limit) {
  const Bytes unit = std::max(RoundUp(limit, granularity), granularity);
  const Bytes card = RoundUp(backend.devices()[static_cast<std::size_t>(device)].total, granularity);
  absl::Status last;
  for (const Bytes bytes : {std::max(Times(unit, 8), HasManyAddresses() ? Times(card, 4) : Bytes()),
                            Times(unit, 8), Times(unit, 4)}) {
    if (bytes.is_zero()) continue;
    absl::StatusOr<std::byte*> base = backend.Reserve(device, bytes);
    if (base.ok()) return std::unique_ptr<Region>(new Region(backend, device, granularity, *base, bytes));
    last = base.status();
  }
  return last.ok() ? absl::InvalidArgumentError("a memory limit of " + FormatBytes(limit) +
                                                " is more than there are addresses; ask for less")
                   : last;
}

Region::~Region() {
  if (IsForked()) return;  // not mapped in a child, where other memory may lie at these addresses
  for (const Held& held : TakeAll()) (void)backend_.Release(held.memory);
  (void)backend_.Unreserve(base_, reserved_);
}

absl::Status Region::Add(const Held& held) {
  MutexLock lock(mutex_);
  if (!chunks_.try_emplace(held.chunk.id, Entry{held}).second) {
    return absl::AlreadyExistsError(ChunkText(held.chunk.id) + " was granted twice");
  }
  return absl::OkStatus();
}

absl::StatusOr<Region::Entry*> Region::Find(ChunkId id) {
  const auto found = chunks_.find(id);
  if (found == chunks_.end()) return absl::NotFoundError(ChunkText(id) + " is none of this region's");
  if (found->second.state == State::kBusy) {
    return absl::FailedPreconditionError(ChunkText(id) + " is being moved, or is named twice");
  }
  return &found->second;
}

absl::StatusOr<Region::Move> Region::ClaimPlace(const ChunkPlacement& placement) {
  LGPU_ASSIGN_OR_RETURN(Entry * entry, Find(placement.id));
  const Bytes bytes = entry->held.chunk.bytes;
  const Bytes offset = placement.offset;
  if (offset.count() % granularity_.count() != 0 || offset > reserved_ || bytes > reserved_ - offset) {
    return absl::InvalidArgumentError(ChunkText(placement.id) + " of " + FormatBytes(bytes) +
                                      " cannot lie at offset " + std::to_string(offset.count()) +
                                      " of a region of " + FormatBytes(reserved_));
  }
  if (entry->state != State::kUnmapped) {
    return absl::FailedPreconditionError(ChunkText(placement.id) + " is mapped already");
  }
  const auto after = places_.lower_bound(offset);
  const bool hits_next = after != places_.end() && after->first < offset + bytes;
  const bool hits_previous =
      after != places_.begin() && std::prev(after)->first + std::prev(after)->second > offset;
  if (hits_next || hits_previous) {
    return absl::FailedPreconditionError("another chunk lies at offset " + std::to_string(offset.count()) +
                                         " of the region, where " + ChunkText(placement.id) + " was to go");
  }
  places_.emplace_hint(after, offset, bytes);
  entry->state = State::kBusy;
  entry->offset = offset;
  return Move{placement.id, entry->held.memory, offset, bytes};
}

void Region::Settle(std::span<const Move> moves, State state) {
  MutexLock lock(mutex_);
  for (const Move& move : moves) {
    chunks_.at(move.id).state = state;
    if (state != State::kMapped) places_.erase(move.offset);
  }
}

absl::Status Region::MapAll(std::span<const Move> moves) {
  std::size_t mapped = 0;
  absl::Status status;
  for (; mapped < moves.size() && status.ok(); mapped += status.ok() ? 1 : 0) {
    status = backend_.Map(base_ + moves[mapped].offset.count(), moves[mapped].memory);
  }
  for (std::size_t first = 0; first < mapped && status.ok();) {
    std::size_t end = first + 1;
    Bytes run = moves[first].bytes;
    while (end < moves.size() && moves[end].offset == moves[first].offset + run) run += moves[end++].bytes;
    status = backend_.SetAccess(base_ + moves[first].offset.count(), run);
    first = end;
  }
  if (!status.ok()) {
    for (const Move& move : moves.first(mapped)) (void)backend_.Unmap(base_ + move.offset.count());
  }
  return status;
}

absl::Status Region::Map(std::span<const ChunkPlacement> placements) {
  if (IsForked()) return ForkedError();
  std::vector<Move> moves;
  moves.reserve(placements.size());
  absl::Status status;
  {
    MutexLock lock(mutex_);
    for (const ChunkPlacement& placement : placements) {
      absl::StatusOr<Move> move = ClaimPlace(placement);
      if (!move.ok()) {
        status = move.status();
        break;
      }
      moves.push_back(*move);
    }
  }
  std::sort(moves.begin(), moves.end(), [](const Move& a, const Move& b) { return a.offset < b.offset; });
  if (status.ok()) status = MapAll(moves);
  Settle(moves, status.ok() ? State::kMapped : State::kUnmapped);
  return status;
}

absl::Status Region::Unmap(std::span<const ChunkId> chunks) {
  if (IsForked()) return ForkedError();
  std::vector<Move> moves;
  moves.reserve(chunks.size());
  absl::Status status;
  {
    MutexLock lock(mutex_);
    for (const ChunkId id : chunks) {
      absl::StatusOr<Entry*> entry = Find(id);
      if (entry.ok() && (*entry)->state != State::kMapped) {
        entry = absl::FailedPreconditionError(ChunkText(id) + " is not mapped");
      }
      if (!entry.ok()) {
        status = entry.status();
        break;
      }
      (*entry)->state = State::kBusy;
      moves.push_back({id, (*entry)->held.memory, (*entry)->offset, (*entry)->held.chunk.bytes});
    }
  }
  if (!status.ok()) {
    Settle(moves, State::kMapped);
    return status;
  }
  std::sort(moves.begin(), moves.end(), [](const Move& a, const Move& b) { return a.offset < b.offset; });
  std::size_t done = 0;
  for (; done < moves.size() && status.ok(); done += status.ok() ? 1 : 0) {
    status = backend_.Unmap(base_ + moves[done].offset.count());
  }
  // The chunks still have their contents: mapping them again undoes the unmapping.
  const std::span<const Move> taken(moves.data(), done);
  const bool undone = !status.ok() && MapAll(taken).ok();
  Settle(taken, undone ? State::kMapped : State::kUnmapped);
  Settle(std::span<const Move>(moves).subspan(done), State::kMapped);
  return status;
}

absl::StatusOr<std::vector<Region::Held>> Region::Take(std::span<const ChunkId> chunks) {
  if (IsForked()) return ForkedError();
  std::vector<Held> taken;
  taken.reserve(chunks.size());
  MutexLock lock(mutex_);
  for (const ChunkId id : chunks) {
    absl::StatusOr<Entry*> entry = Find(id);
    if (entry.ok() && (*entry)->state != State::kUnmapped) {
      entry = absl::FailedPreconditionError(ChunkText(id) + " is mapped; unmap it before it is returned");
    }
    if (!entry.ok()) {
      for (const Held& held : taken) chunks_.emplace(held.chunk.id, Entry{held});
      return entry.status();
    }
    taken.push_back((*entry)->held);
    chunks_.erase(id);
  }
  return taken;
}

std::vector<Region::Held> Region::All() {
  std::vector<Held> all;
  MutexLock lock(mutex_);
  all.reserve(chunks_.size());
  for (const auto& [id, entry] : chunks_) all.push_back(entry.held);
  return all;
}

std::vector<Region::Held> Region::TakeAll() {
  std::unordered_map<ChunkId, Entry> chunks;
  {
    MutexLock lock(mutex_);
    chunks.swap(chunks_);
    places_.clear();
  }
  std::vector<Held> taken;
  taken.reserve(chunks.size());
  for (const auto& [id, entry] : chunks) {
    LGPU_CHECK(entry.state != State::kBusy);
    if (entry.state == State::kMapped) (void)backend_.Unmap(base_ + entry.offset.count());
    taken.push_back(entry.held);
  }
  std::sort(taken.begin(), taken.end(), [](const Held& a, const Held& b) { return a.chunk.id < b.chunk.id; });
  return taken;
}

}  // namespace lgpu
