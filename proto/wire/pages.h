#ifndef LGPU_PROTO_WIRE_PAGES_H_
#define LGPU_PROTO_WIRE_PAGES_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>

#include "base/plain_status.h"
#include "base/unique_fd.h"
#include "proto/wire/mapping.h"
#include "proto/wire/placement_ring.h"

namespace lgpu {

/// The two shared pages of a session. Both are memfds, sealed so that neither side can shrink or
/// grow them under the other, and made of lock-free atomics only.

/// The daemon writes, the client reads. `epoch` is odd while the daemon writes and rises by two; a reader
/// takes its copy again if it changed meanwhile.
struct StatsPage {
  static constexpr std::uint64_t kMagic = 0x3153'5550'474cULL;  // "LGPUS1"
  static constexpr int kMaxDevices = 64;
  struct Device {
    std::atomic<std::uint64_t> id;  // LogicalDevice.id; 0: unused
    std::atomic<std::uint64_t> limit;
    std::atomic<std::uint64_t> guarantee;
    std::atomic<std::uint64_t> held;       // of the logical device, all sessions
    std::atomic<std::uint64_t> card_free;  // of its card
    /// Part of what is held on its card: lent to other sessions of the lease for charges, and not in use.
    std::atomic<std::uint64_t> unused_by_others;
    std::array<std::atomic<std::uint64_t>, 2> reserved;
  };
  std::atomic<std::uint64_t> magic;
  std::atomic<std::uint64_t> epoch;
  std::atomic<std::uint64_t> device_count;
  /// Rises by one each second, beside the epoch: the daemon's clock, for `last_use`. 0: this daemon has none.
  std::atomic<std::uint64_t> tick;
  std::array<std::atomic<std::uint64_t>, 4> reserved;
  std::array<Device, kMaxDevices> devices;
};
static_assert(std::is_standard_layout_v<StatsPage>);

/// The charges of one card of the lease, for a client that takes memory from the driver itself
/// (docs/protocol.md, Charging). Cards are numbered as the lease's logical devices first name them.
struct CardCharges {
  static constexpr std::size_t kKinds = 13;
  std::atomic<std::uint64_t> free;  // both sides write: bytes lent and not in use
  std::atomic<std::uint64_t> keep;  // the daemon writes: the client gives back free bytes beyond this
  std::array<std::atomic<std::uint64_t>, kKinds>
      by_kind;  // the client writes: bytes in use, by ChargeKind - 1
  /// The client writes: bytes in use that another process may have opened (IPC, exported handles and pools).
  std::atomic<std::uint64_t> exported;
};
/// The charges of all cards of the lease.
struct SharedCharges {
  static constexpr std::size_t kMaxCards = 64;
  std::array<CardCharges, kMaxCards> cards;
};
static_assert(std::is_standard_layout_v<SharedCharges>);

/// The client writes, the daemon reads and believes nothing. The daemon writes `charges` too.
struct ClientPage {
  static constexpr std::uint64_t kMagic = 0x3143'5550'474cULL;  // "LGPUC1"
  static constexpr int kMaxDevices = StatsPage::kMaxDevices;
  static constexpr int kMaxOps = 128;
  static constexpr int kOpNameBytes = 32;
  static constexpr std::uint64_t kNoUse = 1;  // in `last_use`: this session never uses a GPU; no tick
  struct Device {                             // by GPU index in the lease
    std::atomic<std::uint64_t> used;
    std::atomic<std::uint64_t> peak_used;
    std::atomic<std::uint64_t> requested;
    std::atomic<std::uint64_t> largest_free_block;
    std::atomic<std::uint64_t> live_blocks;
    std::atomic<std::uint64_t> allocations;
    std::atomic<std::uint64_t> refusals;
    std::atomic<std::uint64_t> ops;
  };
  /// Letters, digits and '_', padded with zeros; written before `op_count` covers it.
  struct OpName {
    std::array<std::atomic<std::uint64_t>, kOpNameBytes / 8> words;
  };
  std::atomic<std::uint64_t> magic;
  std::atomic<std::uint64_t> op_count;
  std::atomic<std::uint64_t> context_lost;  // not 0: the program can use its GPUs no more
  std::atomic<std::uint64_t> imports;       // how much memory of other processes it has open, in pieces
  std::atomic<std::uint64_t> exiting;       // not 0: the program ends by itself, and sends no Close
  /// The tick in which the program last submitted work to a GPU or waited for some, or joined. 0: it does not
  /// tell.
  std::atomic<std::uint64_t> last_use;
  std::atomic<std::uint64_t> kernel_heap;  // bytes that the program has set for malloc in kernels
  std::array<std::atomic<std::uint64_t>, 1> reserved;
  std::array<Device, kMaxDevices> devices;
  std::array<OpName, kMaxOps> op_names;
  PlacementRing ring;
  /// A page of a session of an older version ends here.
  std::array<std::atomic<std::uint64_t>, 488> reserved_before_charges;
  SharedCharges charges;
};
static_assert(std::is_standard_layout_v<ClientPage>);
/// `charges` has memory pages of its own: the daemon can write to no other part of a client page.
inline constexpr std::size_t kChargesOffset = sizeof(ClientPage) - sizeof(SharedCharges);
static_assert(kChargesOffset % 4096 == 0 && sizeof(SharedCharges) % 4096 == 0);
inline constexpr std::size_t kClientPageBytesWithoutCharges =
    kChargesOffset - 488 * sizeof(std::atomic<std::uint64_t>);

/// Writes the name of op `index` (< kMaxOps) and raises op_count over it. Callers hold a lock of their own.
void SetOpName(ClientPage& page, int index, std::string_view name);
/// The name of op `index`; "?" for an index or a name that is not sensible. For hostile pages.
std::string GetOpName(const ClientPage& page, int index);

/// A SharedPage is one such page, created or received, mapped into this process; a const Page is mapped
/// read-only. It owns its mapping and its descriptor. The mapping is not inherited by a forked child.
template <typename Page>
class SharedPage {
 public:
  SharedPage() = default;
  Page* get() const { return static_cast<Page*>(mapping_.get()); }
  Page* operator->() const { return get(); }
  Page& operator*() const { return *get(); }
  explicit operator bool() const { return mapping_ != nullptr; }
  int fd() const { return fd_.get(); }
  /// The mapping stays: for a daemon that has sent the descriptor away and wants its number back.
  void CloseFd() { fd_.Reset(); }

 private:
  friend class SharedPages;
  std::shared_ptr<void> mapping_;
  UniqueFd fd_;
};

/// Makes and opens the pages. `map` maps them: MapWithLibc in the driver's shim, MapWithBoost elsewhere.
class SharedPages {
 public:
  /// The daemon's: mapped writable, then sealed SHRINK|GROW|FUTURE_WRITE|SEAL, so that the client can only
  /// read. Named "lgpu-stats".
  static PlainResult<SharedPage<StatsPage>> CreateStatsPage(MapMemory map);
  /// The daemon's: sealed SHRINK|GROW|SEAL; mapped read-only by the daemon, which writes nothing but the
  /// magic, before it is mapped. Named "lgpu-client". `bytes`: sizeof(ClientPage), or
  /// kClientPageBytesWithoutCharges; `charges` must not be touched then.
  static PlainResult<SharedPage<const ClientPage>> CreateClientPage(MapMemory map,
                                                                    std::size_t bytes = sizeof(ClientPage));
  /// The daemon's second mapping of a client page: of `charges` alone, writable. INVALID_ARGUMENT for a page
  /// without charges. Other errors are the system's.
  static PlainResult<SharedPage<SharedCharges>> MapCharges(MapMemory map,
                                                           const SharedPage<const ClientPage>& page);
  /// The client's ends, from the descriptors of Welcome. INVALID_ARGUMENT if size, seals or magic do not fit.
  /// A client page of a daemon of an older version has no `charges`: they must not be touched.
  static PlainResult<SharedPage<const StatsPage>> OpenStatsPage(MapMemory map, UniqueFd fd);
  static PlainResult<SharedPage<ClientPage>> OpenClientPage(MapMemory map, UniqueFd fd);

  /// After the daemon was restarted: puts the page of the new one at the addresses of the old one, so that
  /// every reference to it stays good. Changes that other threads make to counts in a client page meanwhile
  /// are kept; a record that they put into its ring may be lost. `charges` are those of the fresh page.
  /// Errors as above; nothing changes then.
  static PlainStatus ReplaceStatsPage(MapMemory map, SharedPage<const StatsPage>& page, UniqueFd fd);
  static PlainStatus ReplaceClientPage(MapMemory map, SharedPage<ClientPage>& page, UniqueFd fd);
};

}  // namespace lgpu

#endif  // LGPU_PROTO_WIRE_PAGES_H_
