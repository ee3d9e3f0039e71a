#ifndef LGPU_PROTO_WIRE_PLACEMENT_RING_H_
#define LGPU_PROTO_WIRE_PLACEMENT_RING_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>

namespace lgpu {

/// The record of one executed op, made where its kernel is launched, or of one copy of a tensor (kCopy), made
/// where it was queued. Plain numbers, as they lie in shared memory: names are indices into the client page's
/// table of op names.
struct PlacementEntry {
  static constexpr std::uint16_t kNoDevice = 0xffff;    // no device was asked for
  static constexpr std::uint16_t kHostDevice = 0xfffe;  // the CPU
  std::uint16_t op = 0;                                 // index into ClientPage::op_names
  std::uint16_t dtype = 0;                              // lgpu::DType
  std::uint16_t requested = kNoDevice;  // GPU index, as the program counts, kHostDevice or kNoDevice
  std::uint16_t device = kHostDevice;   // where it ran; of a copy: its target
  std::uint16_t flags = 0;
  static constexpr std::uint16_t kSoftPlaced = 1;  // ran elsewhere than asked for
  static constexpr std::uint16_t kHasDeviceTime = 2;
  static constexpr std::uint16_t kCopy = 4;  // a copy from `source` to `device`, of output_bytes
  std::uint16_t source = 0;                  // of a copy, as `device`
  std::uint64_t output_bytes = 0;
  std::uint64_t submitted_unix_ns = 0;
  std::uint64_t host_ns = 0;
  std::uint64_t device_ns = 0;
  friend bool operator==(const PlacementEntry&, const PlacementEntry&) = default;
};

/// The ring in shared memory: many producers in one process, one reader in another. Producers never wait:
/// they overwrite records that the reader has not read within a lap. All words are lock-free atomics, so a
/// process killed at any instruction leaves nothing locked.
///
/// Slot `t % kSlots` belongs to ticket t. Its word 0 is 2t+1 while ticket t writes and 2t+2 when it is
/// written. A producer claims its slot by compare-and-swap from an older even value; a slot whose writer is
/// still at work, or that a later ticket has taken, is left alone and the new record is counted as dropped.
/// Words 1 to 6: op, dtype, requested and device, 16 bits each from the low end; flags and source, 16 bits
/// each; output_bytes; submitted_unix_ns; host_ns; device_ns. Word 7 is zero.
struct PlacementRing {
  static constexpr std::uint64_t kSlots = 8192;  // a power of two
  struct alignas(64) Slot {
    std::array<std::atomic<std::uint64_t>, 8> words;
  };
  alignas(64) std::atomic<std::uint64_t> head;  // next ticket
  /// Records that found their slot busy. For the client's own statistics: a reader passes their tickets and
  /// counts them in lost().
  alignas(64) std::atomic<std::uint64_t> dropped;
  Slot slots[kSlots];

  /// Thread-safe; no system call, no wait.
  void Push(const PlacementEntry& entry);
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
static_assert(sizeof(PlacementRing::Slot) == 64);

/// A PlacementRingReader reads a ring whose writer may be hostile: it bounds every step, copies a
/// slot before it looks at it, and keeps its cursor in private memory. One thread.
///
/// The reader waits for a ticket whose slot is not written yet, until the ring went once around; or
/// WriterIsGone; or two calls in turn found it unwritten while a later one was complete (its writer was
/// killed, or found the slot busy and dropped its record). So one dead slot costs one empty answer.
class PlacementRingReader {
 public:
  /// `ring` outlives the reader.
  explicit PlacementRingReader(const PlacementRing* ring) : ring_(ring) {}

  /// The next record, or nothing when there is none now. Records that were overwritten, or whose writer
  /// died, are skipped and counted in lost(). At most kSlots steps; a ring that is written without end is
  /// read without end, so callers bound how many records they take at a time.
  std::optional<PlacementEntry> Next();
  /// The writer is gone: a slot that is still being written will never be finished, skip it.
  void WriterIsGone() { writer_is_gone_ = true; }
  /// For a ring that had another reader: begins with its last lap; earlier records do not count as lost.
  void BeginWithLastLap();
  /// Records that were made but never read, as far as can be known. Read and lost records together are the
  /// tickets that the reader has passed.
  std::uint64_t lost() const { return lost_; }

 private:
  static constexpr std::uint64_t kNoTicket = ~std::uint64_t{0};

  bool GivesUpOnCursor(std::uint64_t head);
  void Skip(std::uint64_t count);

  const PlacementRing* ring_;
  std::uint64_t cursor_ = 0;  // the next ticket to read
  std::uint64_t lost_ = 0;
  std::uint64_t unwritten_ = kNoTicket;  // the ticket that the last call found unwritten
  bool writer_is_gone_ = false;
};

}  // namespace lgpu

#endif  // LGPU_PROTO_WIRE_PLACEMENT_RING_H_
