#include "proto/wire/placement_ring.h"

#include <algorithm>

namespace lgpu {
namespace {

// An honest client cannot make more records than this between two looks of the reader.
constexpr std::uint64_t kMaxBacklog = std::uint64_t{1} << 40;
// The reader looks this far beyond an unwritten slot for a finished one: about as many threads as may be in
// the middle of Push at one time.
constexpr std::uint64_t kLookAhead = 64;

constexpr std::uint64_t WritingMark(std::uint64_t ticket) { return 2 * ticket + 1; }
constexpr std::uint64_t WrittenMark(std::uint64_t ticket) { return 2 * ticket + 2; }

template <typename Ring>
auto& SlotOf(Ring& ring, std::uint64_t ticket) {
  return ring.slots[ticket % PlacementRing::kSlots];
}

constexpr bool IsLater(std::uint64_t mark, std::uint64_t than) {
  return static_cast<std::int64_t>(mark - than) > 0;
}

}  // namespace

void PlacementRing::Push(const PlacementEntry& entry) {
  const std::uint64_t ticket = head.fetch_add(1, std::memory_order_relaxed);
  auto& words = SlotOf(*this, ticket).words;
  std::uint64_t mark = words[0].load(std::memory_order_relaxed);
  if (mark % 2 != 0 || IsLater(mark, WrittenMark(ticket)) ||
      !words[0].compare_exchange_strong(mark, WritingMark(ticket), std::memory_order_acquire,
                                        std::memory_order_relaxed)) {
    dropped.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  // Releases, not a fence (which TSan does not know): a reader that sees one of these words also sees the
  // mark that was set before it, and so throws its copy away. On x86 they are plain moves.
  const auto store = [&words](int index, std::uint64_t value) {
    words[static_cast<std::size_t>(index)].store(value, std::memory_order_release);
  };
  store(1, std::uint64_t{entry.op} | std::uint64_t{entry.dtype} << 16 | std::uint64_t{entry.requested} << 32 |
               std::uint64_t{entry.device} << 48);
  store(2, std::uint64_t{entry.flags} | std::uint64_t{entry.source} << 16);
  store(3, entry.output_bytes);
  store(4, entry.submitted_unix_ns);
  store(5, entry.host_ns);
  store(6, entry.device_ns);
  words[0].store(WrittenMark(ticket), std::memory_order_release);
}

std::optional<PlacementEntry> PlacementRingReader::Next() {
  const std::uint64_t head = ring_->head.load(std::memory_order_acquire);
  // A head that went backwards makes the difference huge as well.
  const std::uint64_t backlog = head - cursor_;
  if (backlog > kMaxBacklog) return std::nullopt;
  if (backlog > PlacementRing::kSlots) Skip(backlog - PlacementRing::kSlots);
  while (cursor_ != head) {
    const auto& words = SlotOf(*ring_, cursor_).words;
    const std::uint64_t written = WrittenMark(cursor_);
    const std::uint64_t mark = words[0].load(std::memory_order_acquire);
    if (mark == written) {
      std::array<std::uint64_t, 8> copy;
      for (std::size_t i = 1; i < copy.size(); ++i) copy[i] = words[i].load(std::memory_order_acquire);
      if (words[0].load(std::memory_order_relaxed) == written) {
        ++cursor_;
        return PlacementEntry{.op = static_cast<std::uint16_t>(copy[1]),
                              .dtype = static_cast<std::uint16_t>(copy[1] >> 16),
                              .requested = static_cast<std::uint16_t>(copy[1] >> 32),
                              .device = static_cast<std::uint16_t>(copy[1] >> 48),
                              .flags = static_cast<std::uint16_t>(copy[2]),
                              .source = static_cast<std::uint16_t>(copy[2] >> 16),
                              .output_bytes = copy[3],
                              .submitted_unix_ns = copy[4],
                              .host_ns = copy[5],
                              .device_ns = copy[6]};
      }
    } else if (!IsLater(mark, written) && !writer_is_gone_ && !GivesUpOnCursor(head)) {
      return std::nullopt;
    }
    Skip(1);
  }
  return std::nullopt;
}

void PlacementRingReader::BeginWithLastLap() {
  const std::uint64_t head = ring_->head.load(std::memory_order_acquire);
  cursor_ = head - std::min(head, PlacementRing::kSlots);
}

bool PlacementRingReader::GivesUpOnCursor(std::uint64_t head) {
  if (unwritten_ != cursor_) {
    unwritten_ = cursor_;
    return false;
  }
  const std::uint64_t end = cursor_ + std::min(head - cursor_, kLookAhead);
  for (std::uint64_t later = cursor_ + 1; later < end; ++later) {
    if (SlotOf(*ring_, later).words[0].load(std::memory_order_relaxed) == WrittenMark(later)) return true;
  }
  return false;
}

void PlacementRingReader::Skip(std::uint64_t count) {
  cursor_ += count;
  lost_ += count;
}

}  // namespace lgpu
