#include "bench/peers/best_fit_coalescing.h"

#include <algorithm>
#include <bit>

namespace lgpu::bench {
namespace {

constexpr Bytes kUnit = 256_B;
constexpr Bytes kMostWaste = 128_MiB;
constexpr Bytes kBetweenRegions = 1_GiB;

}  // namespace

BestFitCoalescing::BestFitCoalescing(const ContenderOptions& options)
    : limit_(RoundDown(options.limit, kUnit)), chunks_(1), live_(options.slots) {}

std::size_t BestFitCoalescing::BinOf(Bytes bytes) {
  return std::min(kBins - 1, static_cast<std::size_t>(std::bit_width(bytes / kUnit)) - 1);
}

std::uint32_t BestFitCoalescing::NewChunk() {
  if (vacant_.empty()) {
    chunks_.emplace_back();
    return static_cast<std::uint32_t>(chunks_.size() - 1);
  }
  const std::uint32_t chunk = vacant_.back();
  vacant_.pop_back();
  chunks_[chunk] = {};
  return chunk;
}

bool BestFitCoalescing::Allocate(Slot slot, Bytes bytes) {
  const Bytes rounded = RoundUp(bytes, kUnit);
  std::uint32_t chunk = Find(rounded);
  if (chunk == 0 && AddRegion(rounded)) chunk = Find(rounded);
  if (chunk == 0) return false;
  const Bytes has = chunks_[chunk].bytes;
  if (has >= rounded * 2 || has - rounded >= kMostWaste) Split(chunk, rounded);
  chunks_[chunk].live = true;
  live_[slot] = chunk;
  return true;
}

// Takes the best fit out of its bin.
std::uint32_t BestFitCoalescing::Find(Bytes bytes) {
  for (std::size_t bin = BinOf(bytes); bin < kBins; ++bin) {
    // The original walks the bin from its smallest chunk on; only the first bin has any too small.
    for (auto key = bins_[bin].begin(); key != bins_[bin].end(); ++key) {
      if (key->bytes >= bytes) {
        const std::uint32_t chunk = key->chunk;
        bins_[bin].erase(key);
        return chunk;
      }
    }
  }
  return 0;
}

bool BestFitCoalescing::AddRegion(Bytes at_least) {
  const Bytes available = limit_ - held_;
  if (at_least > available) return false;
  const bool raised = at_least > next_region_;
  while (at_least > next_region_) next_region_ = next_region_ * 2;
  const Bytes bytes = std::min(next_region_, available);
  if (!raised) next_region_ = next_region_ * 2;
  const std::uint32_t chunk = NewChunk();
  chunks_[chunk].offset = next_address_;
  chunks_[chunk].bytes = bytes;
  next_address_ += bytes + kBetweenRegions;
  held_ += bytes;
  ++regions_;
  Insert(chunk);
  return true;
}

void BestFitCoalescing::Split(std::uint32_t chunk, Bytes bytes) {
  const std::uint32_t rest = NewChunk();
  Chunk& first = chunks_[chunk];
  chunks_[rest] = {.offset = first.offset + bytes,
                   .bytes = first.bytes - bytes,
                   .previous = chunk,
                   .next = first.next,
                   .live = false};
  if (first.next != 0) chunks_[first.next].previous = rest;
  first.next = rest;
  first.bytes = bytes;
  Insert(rest);
}

void BestFitCoalescing::Absorb(std::uint32_t chunk, std::uint32_t next) {
  chunks_[chunk].bytes += chunks_[next].bytes;
  chunks_[chunk].next = chunks_[next].next;
  if (chunks_[chunk].next != 0) chunks_[chunks_[chunk].next].previous = chunk;
  vacant_.push_back(next);
}

void BestFitCoalescing::Free(Slot slot) {
  std::uint32_t chunk = live_[slot];
  chunks_[chunk].live = false;
  if (const std::uint32_t next = chunks_[chunk].next; next != 0 && !chunks_[next].live) {
    Remove(next);
    Absorb(chunk, next);
  }
  if (const std::uint32_t previous = chunks_[chunk].previous; previous != 0 && !chunks_[previous].live) {
    Remove(previous);
    Absorb(previous, chunk);
    chunk = previous;
  }
  Insert(chunk);
}

}  // namespace lgpu::bench
