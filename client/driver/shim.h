#ifndef LGPU_CLIENT_DRIVER_SHIM_H_
#define LGPU_CLIENT_DRIVER_SHIM_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "client/driver/allocations.h"
#include "client/driver/green_contexts.h"
#include "client/driver/kernel_heaps.h"
#include "client/driver/lease_session.h"
#include "client/driver/pools.h"
#include "client/driver/real_driver.h"

namespace lgpu::shim {

/// A GraphBook sums an instantiated graph's memory nodes by device: the bytes that its first launch reserves.
struct GraphBook {
  struct Part {
    Device device = 0;
    std::uint64_t bytes = 0;
  };
  std::vector<Part> parts;
  bool is_charged = false;
};

/// The bytes that the driver has reserved for the graphs of a device; nothing: it does not tell.
std::optional<std::uint64_t> GraphReserved(std::uint64_t device);

/// A Shim is the state of the shim in one process. A forked child begins a new one. It is never destroyed:
/// programs call the driver until their last instruction.
class Shim {
 public:
  /// Null: this process has no lease, or LGPU_SHIM=off. The driver's answers are passed on then.
  static Shim* Get() {
    Shim* const known = the_shim_.load(std::memory_order_acquire);
    return known != nullptr ? known : Make();
  }
  /// The same, but null also before the first Get.
  static Shim* Known() { return the_shim_.load(); }

  /// The lease's card of a device of the driver's, or kNoCard.
  int CardOf(Device device);
  /// The same of the calling thread's current context, and that context. Nothing: the thread has none.
  struct Place {
    int card;
    Context context;  // which memory that is made now belongs to
    Era era;          // before the caller's next call to the driver
  };
  std::optional<Place> Current();

  /// Runs `allocate`, which was charged. Where the driver has no memory after all, the charge is given back
  /// and taken once more, which waits for the card, and `allocate` runs once more. `charge` is empty after a
  /// failure.
  template <typename Allocate>
  Result AllocateCharged(std::optional<Charge>& charge, const char* call, Allocate allocate);
  /// Charges before `allocate` runs, adds the allocation under the key that `key` returns after it, and gives
  /// the charge back where the driver refuses. `free`: of memory whose key is its address; it is called where
  /// the address shows that more is needed than was charged, and that is refused. Null: the key is a handle.
  template <typename Allocate, typename Key>
  Result ChargeAround(const Place& place, std::uint64_t bytes, ChargeKind kind, const char* call,
                      Allocate allocate, Key key, Result (*free)(DevicePtr) = nullptr);
  /// Takes the allocation of `key` out, calls `free`, and gives its charge back where that succeeds.
  template <typename Free>
  Result UnchargeAround(std::uint64_t key, Free free);
  std::optional<Charge> Take(int card, std::uint64_t bytes, ChargeKind kind, const char* call);
  /// The allocation that the driver made at `key`. One that was there before is gone, and is given back.
  void Keep(std::uint64_t key, Allocation&& allocation);
  static Era CurrentEra() { return the_era_.load(std::memory_order_acquire); }
  /// To be called before a call that may end a context; the era that is over.
  static Era EndEra() { return the_era_.fetch_add(1, std::memory_order_acq_rel); }
  /// A context has ended after the era `last`.
  void ForgetContext(const void* context, Era last);
  /// A context's references by cuCtxAttach, beside that of its maker.
  void Attached(Context context);
  /// After a cuCtxDetach: whether that reference was the context's last.
  bool WasLastDetach(Context context);
  void GiveBack(const Allocation& allocation);
  /// These references of handles' memory are gone.
  void Drop(const Handles::References& taken);
  /// Uncharges memory that pools gave back. To be called before figures are told.
  void SettlePools();
  /// To be called before `bytes` are charged: where the allowance and the lease seem to have no room for
  /// them, the process's own pools give their unused memory back first.
  void MakeRoom(int card, std::uint64_t bytes) {
    if (!session.IsInAllowance(card, RoundUp(bytes, kBlock))) LookForRoom(card, bytes);
  }
  /// Trims the process's pools on the card. True: some of their memory is uncharged now.
  bool TrimPools(int card);

  LeaseSession session;
  Charges charges{session};
  Allocations allocations;
  Handles handles;
  Pools pools;
  Pools graph_pools;  // by device
  GreenContexts greens;
  KernelHeaps heaps{[this](std::uint64_t bytes) { session.NoteKernelHeap(bytes); }};

  std::mutex graphs_mutex;
  std::unordered_map<void*, GraphBook> graphs;  // by executable graph; those with memory nodes alone
  std::atomic<bool> has_graphs{false};

 private:
  explicit Shim(LeaseSession::Options options);
  void LookForRoom(int card, std::uint64_t bytes);
  static Shim* Make();
  static void ForgetParent();

  static inline std::atomic<Shim*> the_shim_{nullptr};
  // Of all Shims of the program: a new one's threads may know a place of the one before.
  static inline std::atomic<Era> the_era_{1};

  std::mutex attached_mutex_;
  std::unordered_map<Context, int> attached_;

  static constexpr int kUnknown = -2;
  static constexpr std::size_t kMaxDevices = 128;
  std::array<std::atomic<int>, kMaxDevices> cards_;
};

template <typename Allocate>
Result Shim::AllocateCharged(std::optional<Charge>& charge, const char* call, Allocate allocate) {
  Result result = allocate();
  if (result == kOutOfMemory) {
    charge = charges.TakeAgain(*charge, call);
    if (!charge) return kOutOfMemory;
    result = allocate();
    if (result == kOutOfMemory) charges.GiveUp(*std::exchange(charge, std::nullopt), call);
  }
  if (result != kSuccess && charge) charges.GiveBack(*std::exchange(charge, std::nullopt));
  return result;
}

template <typename Allocate, typename Key>
Result Shim::ChargeAround(const Place& place, std::uint64_t bytes, ChargeKind kind, const char* call,
                          Allocate allocate, Key key, Result (*free)(DevicePtr)) {
  std::optional<Charge> charge = Take(place.card, bytes, kind, call);
  if (!charge) return kOutOfMemory;
  const Result result = AllocateCharged(charge, call, allocate);
  if (!charge) return result;
  const std::uint64_t made = key();
  if (free != nullptr && !charges.Place(*charge, made, call)) {
    (void)CallReal(free, made);
    charges.GiveBack(*charge);
    return kOutOfMemory;
  }
  if (const auto gone = allocations.Add(made, *charge, place.context, place.era)) GiveBack(*gone);
  return result;
}

template <typename Free>
Result Shim::UnchargeAround(std::uint64_t key, Free free) {
  std::optional<Allocation> allocation = allocations.Remove(key);
  const Result result = free();
  if (!allocation) return result;
  if (result == kSuccess) {
    GiveBack(*allocation);
  } else {
    Keep(key, *std::move(allocation));
  }
  return result;
}

}  // namespace lgpu::shim

#endif  // LGPU_CLIENT_DRIVER_SHIM_H_
