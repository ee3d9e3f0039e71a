#ifndef LGPU_CLIENT_DRIVER_POOLS_H_
#define LGPU_CLIENT_DRIVER_POOLS_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <unordered_map>
#include <vector>

#include "client/driver/charges.h"

namespace lgpu::shim {

/// A PoolBook is the charge of one pool of stream-ordered memory. A pool reserves memory in pieces of its own
/// choice and keeps freed memory, so the charge is at least the requests, from before the driver is called,
/// and what the driver says that the pool has reserved, after each allocation (Cover).
struct PoolBook {
  // These never change.
  std::uint64_t pool = 0;            // the driver's handle
  int card = LeaseSession::kNoCard;  // kNoCard: of the host, or the daemon could not say
  Device device = kNoDevice;         // of the pool's memory; kNoDevice: not known
  bool is_host = false;              // memory of the host, or of another process: not charged
  bool is_import = false;            // of another process
  // The lock of Pools guards the rest.
  std::uint64_t used = 0;     // of live allocations
  std::uint64_t kept = 0;     // bytes that the driver may still have in use for graphs that are gone
  std::uint64_t charged = 0;  // whole blocks; at least `used` and `kept`
  unsigned frees = 0;
  std::uint64_t takes = 0;  // allocations counted so far
  unsigned attempts = 0;    // calls of the driver that run now
  std::uint64_t attempts_begun = 0;
  bool is_above = false;  // it had more than its charge when it was last asked: frees are under way
  bool is_exported = false;
  bool is_destroyed = false;
};

/// Pools charges stream-ordered memory: that of cuMemAllocAsync and the memory of graphs, which the driver
/// keeps as a pool for each device. Thread-safe.
class Pools {
 public:
  /// A figure of the pool as the driver tells it now; nothing: it does not.
  using Figure = std::optional<std::uint64_t> (*)(std::uint64_t pool);
  struct Calls {
    Figure reserved = nullptr;
    Figure in_use = nullptr;  // of a pool with memory that no call of the program frees; else null
    void (*trim)(std::uint64_t pool) = nullptr;  // gives all unused memory back to the device
  };

  /// `session` outlives it.
  Pools(LeaseSession& session, ChargeKind kind, const Calls& calls)
      : session_(session), kind_(kind), calls_(calls) {}

  /// The book of a pool of `device`, made at its first use, and anew while its card was not known.
  std::shared_ptr<PoolBook> Of(std::uint64_t pool, Device device, int card);
  /// The book of a pool that was used before; else null.
  std::shared_ptr<PoolBook> Find(std::uint64_t pool);
  /// The driver made the pool. `is_host`: of the host's memory, which is not charged.
  void Made(std::uint64_t pool, Device device, int card, bool is_host);
  /// It is another process's, which has its charge.
  void Imported(std::uint64_t pool);
  /// Another process may have it from now on. Its card where that is new and the card is known, else kNoCard.
  int SetExported(std::uint64_t pool);

  /// Counts an allocation of `bytes` of the pool: `call` is about to make it. At least `floor` is charged for
  /// the pool then. False: refused.
  bool Take(PoolBook& pool, std::uint64_t bytes, const char* call, std::uint64_t floor = 0);
  /// The same where the pool's charge has the room already, and no daemon is needed.
  bool TakeWithin(PoolBook& pool, std::uint64_t bytes);
  /// The driver has allocated: charges what the pool has reserved beyond its charge. False: refused. Unless
  /// `may_refuse` the daemon is not asked where the lease seems to have no room.
  bool Cover(PoolBook& pool, const char* call, bool may_refuse);
  /// The driver refused memory that was taken and given back: takes it again when the card has the memory.
  bool TakeAgain(PoolBook& pool, std::uint64_t bytes, const char* call);
  /// The driver refused it a second time, and it was given back.
  void TellRefused(const PoolBook& pool, std::uint64_t bytes, const char* call);
  /// It was freed to the pool.
  void GiveBack(PoolBook& pool, std::uint64_t bytes);
  /// A graph is gone that may have left memory in use: memory that the driver has in use stays charged until
  /// the driver's figure is lower.
  void KeepInUse(PoolBook& pool);
  /// The driver gave memory of the pool back to the device, or may have: uncharges memory that the pool no
  /// longer has.
  void Settle(PoolBook& pool);
  void SettleAll();
  /// Gives the pool's unused memory back to the device, as far as the driver can.
  void Trim(PoolBook& pool);
  /// The same of all pools of the card that have some. True: the charges are less by it.
  bool TrimAll(int card);
  /// Runs `destroy`, which destroys the pool: nothing asks for its figures meanwhile. Memory that it reserved
  /// around live allocations goes with the last of them. `was_import`: it was another process's.
  template <typename Destroy>
  Result DestroyAround(std::uint64_t pool, Destroy destroy, bool& was_import) {
    const std::unique_lock lock(lifetimes_);
    TrimUsed(pool);  // the driver tells no figure of it later
    const Result result = destroy();
    was_import = result == kSuccess && Destroyed(pool);
    return result;
  }
  /// The card of a known pool, or kNoCard.
  int CardOf(std::uint64_t pool);
  /// More than any card has; sums of it do not overflow.
  static constexpr std::uint64_t kLargest = std::uint64_t{1} << 60;

  /// An Attempt is one allocation from a pool while the driver is called for it.
  class Attempt {
   public:
    Attempt(Pools& pools, PoolBook& pool);
    ~Attempt();
    Attempt(const Attempt&) = delete;
    Attempt& operator=(const Attempt&) = delete;
    /// No other allocation from the pool ran beside it: memory that the pool reserved meanwhile is its own.
    bool WasAlone() const;

   private:
    Pools& pools_;
    PoolBook& pool_;
    bool began_alone_ = false;
    std::uint64_t number_ = 0;
  };

 private:
  bool Destroyed(std::uint64_t pool);
  /// Trims a pool that has live allocations.
  void TrimUsed(std::uint64_t pool);
  /// The books that are charged more than their live allocations. Callers hold `lifetimes_` while they ask
  /// the driver of them.
  std::vector<std::shared_ptr<PoolBook>> WithUnused();
  /// What the pool has reserved beyond its charge.
  std::uint64_t Uncovered(PoolBook& pool);
  /// `reserved`: the pool's figure, read after `takes` allocations were counted; live allocations stay
  /// charged. False: more allocations were counted since, and the pool may have more by now.
  bool LowerTo(PoolBook& pool, std::uint64_t reserved, std::optional<std::uint64_t> takes = {});

  LeaseSession& session_;
  const ChargeKind kind_;
  const Calls calls_;
  std::shared_mutex lifetimes_;  // held alone while a pool is destroyed, shared while others are asked
  std::mutex covering_;          // held while growth of a pool is charged
  std::mutex mutex_;             // guards the books
  std::unordered_map<std::uint64_t, std::shared_ptr<PoolBook>> books_;
};

}  // namespace lgpu::shim

#endif  // LGPU_CLIENT_DRIVER_POOLS_H_
