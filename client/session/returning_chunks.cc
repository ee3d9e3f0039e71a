#include "client/session/returning_chunks.h"

#include <cstddef>
#include <tuple>
#include <utility>

#include "proto/wire/channel.h"

namespace lgpu {

void ReturningChunks::Leave(std::span<const ChunkId> chunks) {
  for (const ChunkId chunk : chunks) rows_.try_emplace(chunk.value);
}

void ReturningChunks::Settle(std::span<const ChunkId> chunks) {
  for (const ChunkId chunk : chunks) {
    const auto row = rows_.find(chunk.value);
    if (row == rows_.end()) continue;
    if (row->second.state == State::kLeaving || row->second.state == State::kUnattested) rows_.erase(row);
  }
}

std::vector<ChunkId> ReturningChunks::StillToReturn(std::uint64_t device, std::span<const ChunkId> chunks,
                                                    bool is_away) {
  std::vector<ChunkId> part;
  for (const ChunkId chunk : chunks) {
    const auto row = rows_.find(chunk.value);
    if (row != rows_.end() && row->second.state == State::kUnattested) continue;
    if (is_away) {
      rows_[chunk.value] = {.state = State::kOwed, .device = device};
    } else {
      part.push_back(chunk);
    }
  }
  return part;
}

void ReturningChunks::Put(const Batch& batch, State state) {
  for (const std::uint64_t chunk : batch.chunks) {
    Row& row = rows_[chunk];
    if (row.state == State::kUnattested) continue;
    row = {.state = state, .device = batch.device, .grant = batch.grant};
  }
}

void ReturningChunks::Postpone(const Batch& batch) { Put(batch, State::kUnsent); }

ReturningChunks::Batch ReturningChunks::BatchOf(const wire::Grant& grant) {
  Batch batch{.grant = grant.grant_id, .device = grant.device_id, .chunks = {}};
  for (const wire::Chunk& chunk : grant.chunks) batch.chunks.push_back(chunk.id);
  return batch;
}

void ReturningChunks::AddUnwanted(const wire::Grant& grant) {
  Put(BatchOf(grant), State::kUnwanted);
  has_unwanted_ = true;
}

std::vector<ReturningChunks::Batch> ReturningChunks::Take(State state) {
  std::vector<Batch> batches;
  if (state == State::kUnwanted && !has_unwanted_) return batches;
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::size_t> open;  // by grant and device
  for (auto row = rows_.begin(); row != rows_.end();) {
    const auto& [chunk, entry] = *row;
    if (entry.state != state) {
      ++row;
      continue;
    }
    const auto [place, is_new] = open.try_emplace({entry.grant, entry.device}, batches.size());
    if (is_new || batches[place->second].chunks.size() == wire::Protocol::kMaxReturnChunks) {
      place->second = batches.size();
      batches.push_back({.grant = entry.grant, .device = entry.device, .chunks = {}});
    }
    batches[place->second].chunks.push_back(chunk);
    row = rows_.erase(row);
  }
  if (state == State::kUnwanted) has_unwanted_ = false;
  return batches;
}

std::set<std::uint64_t> ReturningChunks::Unattested() const {
  std::set<std::uint64_t> chunks;
  for (const auto& [chunk, row] : rows_) {
    if (row.state == State::kUnattested) chunks.insert(chunk);
  }
  return chunks;
}

void ReturningChunks::LeaveOutOfAttestation() {
  for (auto row = rows_.begin(); row != rows_.end();) {
    if (row->second.state == State::kLeaving) row->second.state = State::kUnattested;
    row = row->second.state == State::kOwed ? rows_.erase(row) : std::next(row);
  }
}

std::vector<ReturningChunks::Batch> ReturningChunks::GoToNextDaemon() {
  (void)Take(State::kUnsent);
  (void)Take(State::kUnwanted);
  return Take(State::kOwed);
}

}  // namespace lgpu
