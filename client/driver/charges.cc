#include "client/driver/charges.h"

namespace lgpu::shim {
namespace {

// Of small requests: the driver's smallest piece of a block.
constexpr std::uint64_t kPiece = 512;

}  // namespace

std::optional<Charge> Charges::Take(int card, std::uint64_t bytes, ChargeKind kind, const char* call) {
  if (bytes < kSmall && card != LeaseSession::kNoCard) {
    const Charge charge{.card = card, .bytes = RoundUp(bytes, kPiece), .kind = ChargeKind::kSmall};
    if (!TakeSmall(card, charge.bytes, call)) return std::nullopt;
    return charge;
  }
  const Charge charge{.card = card, .bytes = RoundUp(bytes, kBlock), .kind = kind};
  if (!session_.Charge(card, charge.bytes, kind, call)) return std::nullopt;
  return charge;
}

void Charges::GiveBack(const Charge& charge) {
  if (charge.kind == ChargeKind::kSmall) {
    GiveBackSmall(charge);
  } else {
    session_.Uncharge(charge.card, charge.bytes, charge.kind);
  }
}

std::optional<Charge> Charges::TakeAgain(const Charge& charge, const char* call) {
  GiveBack(charge);
  const bool is_small = charge.kind == ChargeKind::kSmall;
  if (!session_.Charge(charge.card, is_small ? kBlock : charge.bytes, charge.kind, call, 1)) {
    return std::nullopt;
  }
  if (is_small) {
    SmallBlocks& small = small_[static_cast<std::size_t>(charge.card)];
    const Lock lock(session_.ChargesLock(charge.card));
    small.charged += kBlock;
    small.used += charge.bytes;
  }
  return charge;
}

void Charges::GiveUp(const Charge& charge, const char* call) {
  GiveBack(charge);
  session_.TellRefused(charge.card, charge.bytes, charge.kind, call);
}

void Charges::SmallBlocks::Enter(const Charge& charge) {
  placed += charge.bytes;
  const std::uint64_t last = (charge.address + charge.bytes - 1) / kBlock;
  for (std::uint64_t block = charge.address / kBlock; block <= last; ++block) ++*requests.Add(block).value;
}

void Charges::SmallBlocks::Leave(const Charge& charge) {
  placed -= charge.bytes;
  const std::uint64_t last = (charge.address + charge.bytes - 1) / kBlock;
  for (std::uint64_t block = charge.address / kBlock; block <= last; ++block) {
    unsigned* const count = requests.Find(block);
    if (--*count == 0) requests.Erase(count);
  }
}

bool Charges::Cover(SmallBlocks& small, Lock& lock, int card, std::uint64_t more, const char* call) {
  while (!small.IsCovered(more)) {
    if (session_.TakeFromAllowance(card, kBlock, ChargeKind::kSmall)) {
      small.charged += kBlock;
      continue;
    }
    // The lock is free while the daemon is asked: other threads may free meanwhile.
    lock.unlock();
    const bool is_granted = session_.Charge(card, kBlock, ChargeKind::kSmall, call);
    lock.lock();
    if (is_granted) small.charged += kBlock;
    // Another thread may have made room meanwhile.
    if (!is_granted && !small.IsCovered(more)) return false;
  }
  return true;
}

bool Charges::TakeSmall(int card, std::uint64_t bytes, const char* call) {
  SmallBlocks& small = small_[static_cast<std::size_t>(card)];
  Lock lock(session_.ChargesLock(card));
  if (!small.IsCovered(bytes) && !Cover(small, lock, card, bytes, call)) return false;
  small.used += bytes;
  return true;
}

bool Charges::Place(Charge& charge, std::uint64_t address, const char* call) {
  if (charge.kind != ChargeKind::kSmall) return true;
  charge.address = address;
  SmallBlocks& small = small_[static_cast<std::size_t>(charge.card)];
  Lock lock(session_.ChargesLock(charge.card));
  small.Enter(charge);
  return small.IsCovered() || Cover(small, lock, charge.card, 0, call);
}

void Charges::GiveBackSmall(const Charge& charge) {
  SmallBlocks& small = small_[static_cast<std::size_t>(charge.card)];
  LeaseSession::Excess excess;
  {
    const Lock lock(session_.ChargesLock(charge.card));
    if (charge.address != 0) small.Leave(charge);
    small.used -= charge.bytes;
    // One block stays, so that a program at the edge of a block does not charge at every request.
    const std::uint64_t kept = small.used == 0 ? 0 : small.Needed() + kBlock;
    if (small.charged > kept) {
      excess = session_.PutBack(charge.card, small.charged - kept, ChargeKind::kSmall);
      small.charged = kept;
    }
  }
  session_.TellExcess(charge.card, ChargeKind::kSmall, excess);
}

}  // namespace lgpu::shim
