#ifndef LGPU_CLIENT_DRIVER_CHARGES_H_
#define LGPU_CLIENT_DRIVER_CHARGES_H_

#include <array>
#include <cstdint>
#include <mutex>
#include <optional>

#include "client/driver/cuda_abi.h"
#include "client/driver/lease_session.h"

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
  ChargeKind kind{};  // kSmall: a part of a shared block
};

/// Charges rounds requests, sums small ones into shared blocks of 2 MiB, and charges both to the lease.
/// Thread-safe.
class Charges {
 public:
  /// `session` outlives it.
  explicit Charges(LeaseSession& session) : session_(session) {}

  /// Counts an allocation of `bytes` that `call` is about to make. Nothing: refused.
  std::optional<Charge> Take(int card, std::uint64_t bytes, ChargeKind kind, const char* call);
  void GiveBack(const Charge& charge);
  /// The driver refused memory that was charged: gives the charge back and takes it again, when the card has
  /// the memory. Nothing: refused.
  std::optional<Charge> TakeAgain(const Charge& charge, const char* call);
  /// The driver refused it a second time: gives the charge back, and the daemon makes an event of it.
  void GiveUp(const Charge& charge, const char* call);

 private:
  struct SmallBlocks {
    std::mutex mutex;
    std::uint64_t used = 0;     // of all small requests
    std::uint64_t charged = 0;  // whole blocks
  };
  bool TakeSmall(int card, std::uint64_t bytes, const char* call);
  void GiveBackSmall(int card, std::uint64_t bytes);

  LeaseSession& session_;
  std::array<SmallBlocks, LeaseSession::kMaxCards> small_;
};

}  // namespace lgpu::shim

#endif  // LGPU_CLIENT_DRIVER_CHARGES_H_
