#ifndef LGPU_ALLOCATOR_BROKER_CARD_WATCH_H_
#define LGPU_ALLOCATOR_BROKER_CARD_WATCH_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "allocator/device/device_memory.h"
#include "lgpu/bytes.h"

namespace lgpu {

/// What a card reports at one moment. Absent where the backend cannot tell (no NVML): then returns are taken
/// on trust.
struct CardReport {
  Bytes free;
  std::vector<DeviceMemory::ProcessMemory> processes;

  /// Calls the backend: no lock is held.
  static std::optional<CardReport> Take(DeviceMemory& backend, int device);
};

/// A CardWatch tells how much of the memory that programs returned is free again on a card. The driver has no
/// call for that, and a program that kept a mapping keeps the memory. The watch compares the card's free
/// memory now with its free memory before the first of the returned chunks was dropped. A context that
/// another program makes meanwhile is not mistaken for kept memory. Pure arithmetic. Not thread-safe.
class CardWatch {
 public:
  /// `chunks`: all of lgpu's memory on the card that is not coming back; `coming`: that which is, all of it
  /// there still.
  CardWatch(const CardReport& report, Bytes chunks, Bytes coming);

  /// How much of `coming` is back. `suspects`: the processes that gave it back; what others use besides their
  /// chunks may have changed, and is none of it.
  Bytes Back(const CardReport& report, Bytes chunks, Bytes coming,
             const std::set<std::int64_t>& suspects) const;

  /// How much of `amount` a card's free memory has risen by.
  static Bytes Risen(const CardReport& before, const CardReport& after, Bytes amount);

 private:
  // What is used outside of lgpu's chunks, less a constant: the card's total.
  static std::int64_t Outside(const CardReport& report, Bytes chunks);

  const std::int64_t outside_;
  std::map<std::int64_t, Bytes> processes_;
};

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_BROKER_CARD_WATCH_H_
