#include "client/driver/pools.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace lgpu::shim {
namespace {

// A pool is settled at one free in so many, when this much of it or more is charged and not used.
constexpr unsigned kFreesBetween = 16;
constexpr std::uint64_t kWorthwhile = std::uint64_t{32} << 20;
// The driver's figure is asked for so often while other threads allocate.
constexpr int kSettleTries = 4;

}  // namespace

std::shared_ptr<PoolBook> Pools::Of(std::uint64_t pool, Device device, int card) {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<PoolBook>& book = books_[pool];
  if (book == nullptr) {
    book = std::make_shared<PoolBook>(PoolBook{.pool = pool, .card = card, .device = device});
  } else if (book->card == LeaseSession::kNoCard && card != LeaseSession::kNoCard && !book->is_host) {
    // Nothing was charged for it yet.
    PoolBook known = *book;
    known.card = card;
    known.device = device;
    book = std::make_shared<PoolBook>(known);
  }
  return book;
}

std::shared_ptr<PoolBook> Pools::Find(std::uint64_t pool) {
  const std::lock_guard lock(mutex_);
  const auto found = books_.find(pool);
  return found == books_.end() ? nullptr : found->second;
}

void Pools::Made(std::uint64_t pool, Device device, int card, bool is_host) {
  const std::lock_guard lock(mutex_);
  books_.insert_or_assign(pool, std::make_shared<PoolBook>(PoolBook{
                                    .pool = pool, .card = card, .device = device, .is_host = is_host}));
}

void Pools::Imported(std::uint64_t pool) {
  const std::lock_guard lock(mutex_);
  books_.insert_or_assign(
      pool, std::make_shared<PoolBook>(PoolBook{.pool = pool, .is_host = true, .is_import = true}));
}

int Pools::SetExported(std::uint64_t pool) {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<PoolBook>& book = books_[pool];
  if (book == nullptr) book = std::make_shared<PoolBook>(PoolBook{.pool = pool});
  return std::exchange(book->is_exported, true) ? LeaseSession::kNoCard : book->card;
}

bool Pools::Take(PoolBook& pool, std::uint64_t bytes, const char* call, std::uint64_t floor) {
  if (pool.is_host) return true;
  if (bytes > kLargest || floor > kLargest) return false;
  std::unique_lock lock(mutex_);
  const auto needed = [&] { return std::max(pool.used + pool.kept + bytes, floor); };
  while (needed() > pool.charged) {
    const std::uint64_t missing = RoundUp(needed() - pool.charged, kBlock);
    lock.unlock();
    const bool is_granted = session_.Charge(pool.card, missing, kind_, call);
    lock.lock();
    if (is_granted) pool.charged += missing;
    // Another thread may have made room meanwhile.
    if (!is_granted && needed() > pool.charged) return false;
  }
  pool.used += bytes;
  ++pool.takes;
  return true;
}

bool Pools::TakeWithin(PoolBook& pool, std::uint64_t bytes) {
  if (pool.is_host) return true;
  const std::lock_guard lock(mutex_);
  if (bytes > kLargest || pool.used + pool.kept + bytes > pool.charged) return false;
  pool.used += bytes;
  ++pool.takes;
  return true;
}

std::uint64_t Pools::Uncovered(PoolBook& pool) {
  const std::optional<std::uint64_t> reserved = calls_.reserved(pool.pool);
  const std::lock_guard lock(mutex_);
  const std::uint64_t needed = RoundUp(reserved.value_or(0), kBlock);
  pool.is_above = needed > pool.charged;
  return pool.is_above ? needed - pool.charged : 0;
}

bool Pools::Cover(PoolBook& pool, const char* call, bool may_refuse) {
  if (pool.is_host || Uncovered(pool) == 0) return true;
  const std::lock_guard one_at_a_time(covering_);
  const std::uint64_t missing = Uncovered(pool);
  if (missing == 0) return true;
  if (!may_refuse && !session_.SeemsFree(pool.card, missing)) return false;
  if (!session_.Charge(pool.card, missing, kind_, call)) return false;
  const std::lock_guard lock(mutex_);
  pool.charged += missing;
  pool.is_above = false;
  return true;
}

Pools::Attempt::Attempt(Pools& pools, PoolBook& pool) : pools_(pools), pool_(pool) {
  const std::lock_guard lock(pools_.mutex_);
  began_alone_ = pool_.attempts++ == 0;
  number_ = ++pool_.attempts_begun;
}

Pools::Attempt::~Attempt() {
  const std::lock_guard lock(pools_.mutex_);
  --pool_.attempts;
}

bool Pools::Attempt::WasAlone() const {
  const std::lock_guard lock(pools_.mutex_);
  return began_alone_ && pool_.attempts_begun == number_;
}

bool Pools::TakeAgain(PoolBook& pool, std::uint64_t bytes, const char* call) {
  Settle(pool);
  const std::uint64_t charged = RoundUp(bytes, kBlock);
  if (!session_.Charge(pool.card, charged, kind_, call, 1)) return false;
  const std::lock_guard lock(mutex_);
  pool.charged += charged;
  pool.used += bytes;
  ++pool.takes;
  return true;
}

void Pools::TellRefused(const PoolBook& pool, std::uint64_t bytes, const char* call) {
  session_.TellRefused(pool.card, RoundUp(bytes, kBlock), kind_, call);
}

void Pools::GiveBack(PoolBook& pool, std::uint64_t bytes) {
  bool is_time = false, is_over = false;
  {
    const std::lock_guard lock(mutex_);
    pool.used -= std::min(pool.used, bytes);
    is_over = pool.is_destroyed && pool.used == 0;
    if (!pool.is_destroyed) {
      is_time = ++pool.frees % kFreesBetween == 0 && pool.charged - pool.used >= kWorthwhile;
    }
  }
  if (is_over) {
    LowerTo(pool, 0);
  } else if (is_time) {
    Settle(pool);
  }
}

void Pools::KeepInUse(PoolBook& pool) {
  const std::optional<std::uint64_t> in_use = calls_.in_use(pool.pool);
  const std::lock_guard lock(mutex_);
  pool.kept = in_use ? std::min(*in_use, pool.charged) : pool.charged;
}

void Pools::Settle(PoolBook& pool) {
  if (calls_.in_use != nullptr) {
    if (const std::optional<std::uint64_t> in_use = calls_.in_use(pool.pool)) {
      const std::lock_guard lock(mutex_);
      pool.kept = std::min(pool.kept, *in_use);
    }
  }
  for (int i = 0; i < kSettleTries; ++i) {
    std::uint64_t takes = 0;
    {
      const std::lock_guard lock(mutex_);
      takes = pool.takes;
    }
    const std::optional<std::uint64_t> reserved = calls_.reserved(pool.pool);
    if (!reserved || LowerTo(pool, *reserved, takes)) return;
  }
}

std::vector<std::shared_ptr<PoolBook>> Pools::WithUnused() {
  std::vector<std::shared_ptr<PoolBook>> books;
  const std::lock_guard lock(mutex_);
  for (const auto& [handle, book] : books_) {
    if (book->is_above || book->charged > RoundUp(book->used, kBlock)) books.push_back(book);
  }
  return books;
}

void Pools::SettleAll() {
  const std::shared_lock lifetimes(lifetimes_);
  for (const std::shared_ptr<PoolBook>& book : WithUnused()) Settle(*book);
}

void Pools::Trim(PoolBook& pool) {
  calls_.trim(pool.pool);
  Settle(pool);
}

bool Pools::TrimAll(int card) {
  const std::shared_lock lifetimes(lifetimes_);
  bool is_less = false;
  for (const std::shared_ptr<PoolBook>& book : WithUnused()) {
    if (book->card != card) continue;
    const auto charged = [&] {
      const std::lock_guard lock(mutex_);
      return book->charged;
    };
    const std::uint64_t before = charged();
    Trim(*book);
    is_less |= charged() < before;
  }
  return is_less;
}

bool Pools::LowerTo(PoolBook& pool, std::uint64_t reserved, std::optional<std::uint64_t> takes) {
  std::uint64_t unused = 0;
  {
    const std::lock_guard lock(mutex_);
    if (takes && *takes != pool.takes) return false;
    pool.is_above = RoundUp(reserved, kBlock) > pool.charged;
    const std::uint64_t needed = RoundUp(std::max(pool.used + pool.kept, reserved), kBlock);
    if (pool.charged > needed) unused = pool.charged - needed;
    pool.charged -= unused;
  }
  session_.Uncharge(pool.card, unused, kind_);
  return true;
}

int Pools::CardOf(std::uint64_t pool) {
  const std::lock_guard lock(mutex_);
  const auto found = books_.find(pool);
  return found == books_.end() ? LeaseSession::kNoCard : found->second->card;
}

void Pools::TrimUsed(std::uint64_t pool) {
  const std::shared_ptr<PoolBook> book = Find(pool);
  if (book == nullptr || book->is_host) return;
  {
    const std::lock_guard lock(mutex_);
    if (book->used == 0) return;
  }
  Trim(*book);
}

bool Pools::Destroyed(std::uint64_t pool) {
  std::shared_ptr<PoolBook> book;
  bool is_used = false;
  {
    const std::lock_guard lock(mutex_);
    const auto found = books_.find(pool);
    if (found == books_.end()) return false;
    book = found->second;
    book->is_destroyed = true;
    is_used = book->used > 0;
    books_.erase(found);
  }
  if (!is_used) LowerTo(*book, 0);
  return book->is_import;
}

}  // namespace lgpu::shim
