#ifndef LGPU_TESTS_SUPPORT_LEDGER_MODEL_H_
#define LGPU_TESTS_SUPPORT_LEDGER_MODEL_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "allocator/ledger.h"
#include "lgpu/bytes.h"

namespace lgpu::testing {

/// A LedgerModel is a model of a Ledger and its owner without sums: a list of all memory, each piece with its
/// owner. It answers every question by walking the list. The invariants of allocator/ledger.h alone decide
/// what may be granted.
struct LedgerModel {
  enum class State {
    kGranted,
    kLeaving,   // on its way back
    kSpare,     // of a preallocated device, in no session's hands
    kMade,      // of a preallocated device: charged, and no chunk yet
    kPromised,  // granted to a waiter that has not fetched it yet
  };
  struct Piece {
    LogicalId device;
    std::uint64_t session = 0;  // 0: none
    ChunkId chunk;              // none for spare and promised memory
    Bytes bytes;
    State state = State::kGranted;
    bool asked = false;  // kLeaving: the backend was asked to free it, and did not confirm
  };
  struct Device {
    int card = 0;
    Bytes limit, guarantee;
    bool preallocate = false;
    bool removed = false;
  };
  struct Card {
    Bytes total, reserve;
  };

  Bytes unit;
  std::vector<Card> cards;
  std::map<LogicalId, Device> devices;
  std::vector<Piece> pieces;

  template <typename Wanted>
  Bytes Sum(Wanted wanted) const {
    Bytes sum;
    for (const Piece& piece : pieces) {
      if (wanted(piece)) sum += piece.bytes;
    }
    return sum;
  }
  Bytes In(LogicalId device, State state) const {
    return Sum([&](const Piece& piece) { return piece.device == device && piece.state == state; });
  }
  Bytes Held(LogicalId device) const {
    return Sum([&](const Piece& piece) { return piece.device == device; });
  }
  Bytes HeldBy(std::uint64_t session) const {
    return Sum([&](const Piece& piece) { return piece.session == session; });
  }
  Bytes HeldOn(int card) const {
    return Sum([&](const Piece& piece) { return devices.at(piece.device).card == card; });
  }
  /// On its way back.
  Bytes LeavingOn(int card) const {
    return Sum([&](const Piece& piece) {
      return devices.at(piece.device).card == card && piece.state == State::kLeaving;
    });
  }
  Bytes Limit(LogicalId device) const { return RoundUp(devices.at(device).limit, unit); }
  Bytes Guarantee(LogicalId device) const { return RoundUp(devices.at(device).guarantee, unit); }
  Bytes Promised(int card) const {
    Bytes sum = cards.at(static_cast<std::size_t>(card)).reserve;
    for (const auto& [id, device] : devices) {
      if (device.card == card) sum += std::max(Guarantee(id), Held(id));
    }
    return sum;
  }
  Bytes Total(int card) const { return cards.at(static_cast<std::size_t>(card)).total; }
  Bytes Free(int card) const { return SaturatingSub(Total(card), Promised(card)); }

  bool InLimit(LogicalId device, Bytes more) const { return Held(device) + more <= Limit(device); }
  bool InGuarantee(LogicalId device, Bytes more) const { return Held(device) + more <= Guarantee(device); }
  bool InCard(LogicalId device, Bytes more) const {
    const int card = devices.at(device).card;
    return Promised(card) + Need(device, more) <= Total(card);
  }
  /// Whether the invariants allow it now.
  bool Allows(LogicalId device, Bytes more) const { return InLimit(device, more) && InCard(device, more); }
  /// How much of the card's free memory it would take.
  Bytes Need(LogicalId device, Bytes more) const {
    const Bytes before = std::max(Guarantee(device), Held(device));
    return std::max(Guarantee(device), Held(device) + more) - before;
  }
  /// Whether its limit would allow it if all that is leaving were back.
  bool CanEverBeInLimit(LogicalId device, Bytes more) const {
    return Held(device) - In(device, State::kLeaving) + more <= Limit(device);
  }
  /// Whether the card would have room if, besides, other devices held no more than their guarantees.
  bool CanEverBeInCard(LogicalId device, Bytes more) const {
    const int card = devices.at(device).card;
    Bytes sum = cards.at(static_cast<std::size_t>(card)).reserve;
    for (const auto& [id, other] : devices) {
      if (other.card == card && id != device) sum += Guarantee(id);
    }
    const Bytes own = Held(device) - In(device, State::kLeaving) + more;
    return sum + std::max(Guarantee(device), own) <= Total(card);
  }
  /// The answer to a new device, or with `device` to a resize of that device.
  absl::StatusCode SizeAnswer(const Device& wanted, std::optional<LogicalId> device = std::nullopt) const {
    const Card& card = cards.at(static_cast<std::size_t>(wanted.card));
    const Bytes most = card.total - card.reserve;
    const Bytes guarantee = RoundUp(wanted.guarantee, unit);
    if (wanted.limit.is_zero() || wanted.guarantee > wanted.limit || wanted.limit > most ||
        guarantee > most) {
      return absl::StatusCode::kInvalidArgument;
    }
    const Bytes held = device ? Held(*device) : Bytes();
    const Bytes before = device ? std::max(Guarantee(*device), held) : Bytes();
    const Bytes after = std::max(guarantee, held);
    const bool fits = after <= before || Promised(wanted.card) - before + after <= card.total;
    return fits ? absl::StatusCode::kOk : absl::StatusCode::kResourceExhausted;
  }
};

}  // namespace lgpu::testing

#endif  // LGPU_TESTS_SUPPORT_LEDGER_MODEL_H_
