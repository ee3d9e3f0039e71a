#include "client/driver/shim.h"

#include <pthread.h>
#include <unistd.h>

#include <string_view>
#include <utility>

#include "client/driver/environment.h"
#include "client/driver/use_notes.h"

namespace lgpu::shim {
namespace {

std::atomic<bool> is_looked_up{false};
std::atomic<bool> is_watching_forks{false};

std::optional<std::uint64_t> PoolReserved(std::uint64_t pool) {
  std::uint64_t bytes = 0;
  const Result result = CallReal(RealDriver::Get().cuMemPoolGetAttribute, reinterpret_cast<MemPool>(pool),
                                 kPoolReservedCurrent, static_cast<void*>(&bytes));
  if (result != kSuccess) return std::nullopt;
  return bytes;
}

void TrimPool(std::uint64_t pool) {
  (void)CallReal(RealDriver::Get().cuMemPoolTrimTo, reinterpret_cast<MemPool>(pool), std::size_t{0});
}
void TrimGraphs(std::uint64_t device) {
  (void)CallReal(RealDriver::Get().cuDeviceGraphMemTrim, static_cast<Device>(device));
}

std::optional<std::uint64_t> GraphFigure(std::uint64_t device, int attribute) {
  std::uint64_t bytes = 0;
  const Result result = CallReal(RealDriver::Get().cuDeviceGetGraphMemAttribute, static_cast<Device>(device),
                                 attribute, static_cast<void*>(&bytes));
  if (result != kSuccess) return std::nullopt;
  return bytes;
}
std::optional<std::uint64_t> GraphInUse(std::uint64_t device) {
  return GraphFigure(device, kGraphUsedCurrent);
}

/// Once in a program, its children included.
void SayThatNoLeaseIsNoted() {
  static std::atomic<bool> is_said{false};
  constexpr std::string_view kText =
      "lgpu: error: this program gets no GPU memory: it has a copy of lgpu's libcuda.so.1, and neither the "
      "copy "
      "nor LGPU_LEASE names a lease\n"
      "  try: lgpu run --isolate, which makes a copy that names one; or LGPU_LEASE of `lgpu env`\n";
  if (!is_said.exchange(true)) (void)!::write(STDERR_FILENO, kText.data(), kText.size());
}

// Runs at exit() and at main's end. The library is never unloaded earlier (-z nodelete).
[[gnu::destructor]] void NoteExit() {
  if (Shim* const shim = Shim::Known()) shim->session.NoteExit();
}

}  // namespace

std::optional<std::uint64_t> GraphReserved(std::uint64_t device) {
  return GraphFigure(device, kGraphReservedCurrent);
}

Shim::Shim(LeaseSession::Options options)
    : session(std::move(options)),
      pools(session, ChargeKind::kPool, {.reserved = PoolReserved, .trim = TrimPool}),
      graph_pools(session, ChargeKind::kGraph,
                  {.reserved = GraphReserved, .in_use = GraphInUse, .trim = TrimGraphs}) {
  for (std::atomic<int>& card : cards_) card.store(kUnknown);
}

Shim* Shim::Make() {
  if (is_looked_up.load(std::memory_order_acquire)) return the_shim_.load(std::memory_order_relaxed);
  // No lock and no guard: a fork in another thread would leave them held in the child.
  if (std::optional<LeaseSession::Options> options = OptionsFromEnvironment("libcuda shim " LGPU_VERSION)) {
    if (options->lease.empty()) SayThatNoLeaseIsNoted();
    if (kNotesUse) options->watch_tick = WatchTick;
    Shim* const made = new Shim(*std::move(options));
    Shim* none = nullptr;
    if (!the_shim_.compare_exchange_strong(none, made)) delete made;
    if (!is_watching_forks.exchange(true)) ::pthread_atfork(nullptr, nullptr, ForgetParent);
  }
  is_looked_up.store(true, std::memory_order_release);
  return the_shim_.load();
}

void Shim::ForgetParent() {
  // The parent's threads may have held its locks, so nothing of it is touched but the descriptor.
  if (Shim* const parent = the_shim_.exchange(nullptr)) parent->session.Abandon();
  is_looked_up.store(false);
}

int Shim::CardOf(Device device) {
  if (device < 0 || static_cast<std::size_t>(device) >= kMaxDevices) return LeaseSession::kNoCard;
  std::atomic<int>& known = cards_[static_cast<std::size_t>(device)];
  if (const int card = known.load(std::memory_order_relaxed); card != kUnknown) return card;
  const RealDriver& real = RealDriver::Get();
  Uuid uuid{};
  // The second version tells the instances of a MIG card apart.
  const auto get = real.cuDeviceGetUuid_v2 != nullptr ? real.cuDeviceGetUuid_v2 : real.cuDeviceGetUuid;
  if (CallReal(get, &uuid, device) != kSuccess || !session.Join()) return LeaseSession::kNoCard;
  const int card = session.CardOf(uuid.bytes);
  known.store(card, std::memory_order_relaxed);
  return card;
}

std::optional<Shim::Place> Shim::Current() {
  // One question to the driver in place of two: a thread allocates in one context mostly. The number of a
  // context that has ended may come again on another device.
  struct Known {
    Place place{.card = LeaseSession::kNoCard, .context = nullptr, .era = 0};
    Context current = nullptr;  // which the driver named
  };
  static thread_local Known known;
  const RealDriver& real = RealDriver::Get();
  Context context = nullptr;
  if (CallReal(real.cuCtxGetCurrent, &context) != kSuccess) return std::nullopt;
  const Era era = CurrentEra();
  if (known.place.era == era && known.current == context && context != nullptr) return known.place;
  Device device = 0;
  if (CallReal(real.cuCtxGetDevice, &device) != kSuccess) return std::nullopt;
  const Place place{.card = CardOf(device), .context = greens.OwnerOf(context), .era = era};
  if (place.card != LeaseSession::kNoCard) known = {.place = place, .current = context};
  return place;
}

void Shim::SettlePools() {
  pools.SettleAll();
  graph_pools.SettleAll();
}

bool Shim::TrimPools(int card) {
  const bool is_less = pools.TrimAll(card);
  return graph_pools.TrimAll(card) || is_less;
}

void Shim::LookForRoom(int card, std::uint64_t bytes) {
  SettlePools();
  if (!session.SeemsFree(card, RoundUp(bytes, kBlock))) TrimPools(card);
}

std::optional<Charge> Shim::Take(int card, std::uint64_t bytes, ChargeKind kind, const char* call) {
  MakeRoom(card, bytes);
  std::optional<Charge> charge = charges.Take(card, bytes, kind, call);
  if (!charge && TrimPools(card)) charge = charges.Take(card, bytes, kind, call);
  return charge;
}

void Shim::GiveBack(const Allocation& allocation) {
  if (allocation.opened > 0) {
    session.CountImports(~std::uint64_t{0});
    return;
  }
  if (allocation.is_exported) {
    session.CountExported(allocation.charge.card, std::uint64_t{0} - allocation.memory_bytes());
  }
  if (allocation.pool != nullptr) {
    pools.GiveBack(*allocation.pool, allocation.charge.bytes);
  } else {
    charges.GiveBack(allocation.charge);
  }
}

void Shim::Drop(const Handles::References& taken) {
  if (taken.empty()) return;
  const Handles::Dropped dropped = handles.Drop(taken);
  for (const Charge& charge : dropped.charges) charges.GiveBack(charge);
  if (dropped.imports > 0) session.CountImports(std::uint64_t{0} - dropped.imports);
}

void Shim::Attached(Context context) {
  const std::lock_guard lock(attached_mutex_);
  ++attached_[context];
}

bool Shim::WasLastDetach(Context context) {
  const std::lock_guard lock(attached_mutex_);
  const auto found = attached_.find(context);
  if (found == attached_.end()) return true;
  if (--found->second == 0) attached_.erase(found);
  return false;
}

void Shim::Keep(std::uint64_t key, Allocation&& allocation) {
  if (const auto gone = allocations.Add(key, std::move(allocation))) GiveBack(*gone);
}

void Shim::ForgetContext(const void* context, Era last) {
  if (context == nullptr) return;
  for (const Allocation& allocation : allocations.RemoveOfContext(context, last)) GiveBack(allocation);
  Drop(handles.TakeBindingsOfContext(context, last));
  heaps.Forget(context, last);
}

}  // namespace lgpu::shim
