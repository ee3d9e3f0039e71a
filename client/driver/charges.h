#ifndef LGPU_CLIENT_DRIVER_CHARGES_H_
#define LGPU_CLIENT_DRIVER_CHARGES_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <mutex>
#include <optional>

#include "client/driver/address_table.h"
#include "client/driver/cuda_abi.h"
#include "client/driver/lease_session.h"
#include "client/driver/light_locks.h"

namespace lgpu::shim {

/// The driver's unit of device memory.
inline constexpr std::uint64_t kBlock = std::uint64_t{2} << 20;
/// Requests below this size share blocks.
inline constexpr std::uint64_t kSmall = std::uint64_t{1} << 20;
inline constexpr std::uint64_t RoundUp(std::uint64_t bytes, std::uint64_t unit) {
  return bytes > ~std::uint64_t{0} - unit ? bytes : (bytes + unit - 1) / unit * unit;
}

/// On an overflow the largest number, which the driver refuses as well.
inline constexpr std::uint64_t Product(std::uint64_t a, std::uint64_t b) {
  return b != 0 && a > ~std::uint64_t{0} / b ? ~std::uint64_t{0} : a * b;
}

/// A Charge is the card, the bytes and the kind that one allocation was charged with.
struct Charge {
  int card = LeaseSession::kNoCard;
  std::uint64_t bytes = 0;
  ChargeKind kind{};          // kSmall: a part of a shared block
  std::uint64_t address = 0;  // of a small one whose place in the driver's blocks is known
};

/// Charges rounds requests, sums small ones into shared blocks of 2 MiB, and charges both to the lease. The
/// driver's addresses tell how many blocks the small ones really lie in: sizes that do not fill a block, and
/// blocks that are empty but for one request, count whole.
///
/// Thread-safe.
class Charges {
 public:
  /// `session` outlives it.
  explicit Charges(LeaseSession& session) : session_(session) {}

  /// Counts an allocation of `bytes` that `call` is about to make. Nothing: refused.
  std::optional<Charge> Take(int card, std::uint64_t bytes, ChargeKind kind, const char* call);
  /// The driver made it at `address`: a small one may have begun another block, which is charged now. False:
  /// refused; the caller frees the memory and gives the charge back.
  bool Place(Charge& charge, std::uint64_t address, const char* call);
  void GiveBack(const Charge& charge);
  /// The driver refused memory that was charged: gives the charge back and takes it again, when the card has
  /// the memory. Nothing: refused.
  std::optional<Charge> TakeAgain(const Charge& charge, const char* call);
  /// The driver refused it a second time: gives the charge back, and the daemon makes an event of it.
  void GiveUp(const Charge& charge, const char* call);

 private:
  /// The small requests of a card. The lock of the card's charges guards them.
  struct SmallBlocks {
    std::uint64_t used = 0;           // of all
    std::uint64_t placed = 0;         // of those whose address is known
    AddressTable<unsigned> requests;  // that lie in a block, by block
    std::uint64_t charged = 0;        // whole blocks
    /// What has to be charged with `more` bytes that have no place yet.
    std::uint64_t Needed(std::uint64_t more = 0) const {
      return std::max(RoundUp(used + more, kBlock),
                      requests.size() * kBlock + RoundUp(used - placed, kBlock));
    }
    bool IsCovered(std::uint64_t more = 0) const { return Needed(more) <= charged; }
    void Enter(const Charge& charge);
    void Leave(const Charge& charge);
  };
  using Lock = std::unique_lock<LightMutex>;
  /// Charges blocks until they are as many as are needed. `lock`: of the card's charges. False: refused.
  bool Cover(SmallBlocks& small, Lock& lock, int card, std::uint64_t more, const char* call);
  bool TakeSmall(int card, std::uint64_t bytes, const char* call);
  void GiveBackSmall(const Charge& charge);

  LeaseSession& session_;
  std::array<SmallBlocks, LeaseSession::kMaxCards> small_;
};

}  // namespace lgpu::shim

#endif  // LGPU_CLIENT_DRIVER_CHARGES_H_
