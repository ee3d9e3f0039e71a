#ifndef LGPU_ALLOCATOR_BROKER_BROKER_H_
#define LGPU_ALLOCATOR_BROKER_BROKER_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "allocator/broker/allowance.h"
#include "allocator/broker/grant_log.h"
#include "allocator/broker/ids.h"
#include "allocator/broker/trim_order.h"
#include "allocator/broker/waker.h"
#include "allocator/device/device_memory.h"
#include "allocator/ledger.h"
#include "lgpu/bytes.h"
#include "lgpu/id.h"
#include "lgpu/region_source.h"

namespace lgpu {

/// A card that the broker may use.
struct BrokerCard {
  int index = 0;           // as people count them
  int backend_device = 0;  // in DeviceMemory::devices()
  PhysicalDevice device;
  /// For driver memory that lies in no chunk: charged per process from its start. Where the driver lists
  /// processes it is charged while a process has memory of the card and is not listed yet.
  Bytes overhead_allowance{};
  bool lists_processes = false;
  /// What a program may have beside its charges and chunks and 64 MiB without a word; 0: nothing watches.
  Bytes watched_overhead{};
};

struct BrokerParts;
class CardObserver;
class LeaseSuspensions;
class Reservations;
class SessionReleases;
class SessionRestore;
class SessionTrims;

/// A Broker grants the memory of cards to sessions: it keeps the Ledger and the table of all chunks, and
/// makes and frees chunks through the backend. lgpud runs one for all processes of the machine, a `local`
/// context one for itself.
///
/// A chunk is GRANTED to a session; RETURNING from Return until the backend confirms that it is free;
/// DRAINING from the death of its session until then; or SPARE: made for a preallocated device and granted to
/// no session. A chunk is granted once: in place of one that comes back, a preallocated device gets a new
/// one.
///
/// Thread-safe. No lock is held over a call of the backend, of the log's Commit or of a Waker. Several
/// threads may call for one session; the calls that end it (StartDraining, RemoveSession) come after all
/// others, and one thread attests.
class Broker {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  struct Options {
    std::vector<BrokerCard> cards;
    Bytes reserve = {};                             // of every card; never granted
    std::shared_ptr<Waker> unconfirmed_waker = {};  // woken when RetryUnconfirmed has work
    std::shared_ptr<Waker> tick_waker = {};         // woken when Tick is due earlier than it said
    std::shared_ptr<Waker> preempt_waker = {};  // woken when releases() has orders for leases, of no session
    /// Chunks go to other processes, which may keep memory that they returned: real cards are asked whether
    /// they have it back. False: all sessions are of this process.
    bool leaves_process = true;
    /// The longest turn of a request in its card's queue (CardQueue).
    std::chrono::milliseconds max_drain = std::chrono::seconds(2);
    /// A request waits at most so long for memory that idle leases are asked to give up; 0: none is asked.
    std::chrono::milliseconds give_way_wait = std::chrono::seconds(60);
    /// A lease that gives way at work works at least so long first (GivingWay).
    std::chrono::milliseconds min_run = std::chrono::seconds(10);
    std::function<TimePoint()> clock = std::chrono::steady_clock::now;  // monotonic
  };

  /// `backend` and `log` outlive the broker. A grant is in `log` before Grow or Continue return it; a grant
  /// that cannot be logged is refused with the log's error. INVALID_ARGUMENT if a card is smaller than the
  /// reserve.
  static absl::StatusOr<std::unique_ptr<Broker>> Create(DeviceMemory& backend, GrantLog& log,
                                                        const Options& options);
  /// Memory that sessions hold outlives the broker: the broker of the next process restores it from the log.
  ~Broker();
  Broker(const Broker&) = delete;
  Broker& operator=(const Broker&) = delete;

  struct SessionSpec {
    std::int64_t pid = 0;
    /// Woken when a request that waited has its answer, when trims() has news, and when memory of the session
    /// becomes free later than in the call that returned it.
    std::shared_ptr<Waker> waker = {};
    bool trims = false;         // the session can be asked for idle memory
    bool waits_longer = false;  // its program takes notice when a request may wait longer than it asked for
    bool runs_release = false;  // it runs the release hook of its lease
    bool suspends_itself = false;  // its program can move what its chunks hold, and give them back
  };

  // Its parts for single purposes; they live as long as the broker.
  SessionRestore& restore() const;        // takes over what an earlier broker granted, before any other call
  CardObserver& observer() const;         // reads the reports of real cards
  SessionTrims& trims() const;            // asks sessions for idle memory
  SessionReleases& releases() const;      // asks leases to give way
  Reservations& reservations() const;     // queues leases that wait to be made
  LeaseSuspensions& suspensions() const;  // accounts for leases that are suspended

  // Cards.
  /// A request that waits for memory of a card.
  struct Queued {
    WaiterId id;
    std::string lease_name = {};
    std::string device_name = {};  // empty: a lease that is being made
    std::string owner = {};
    std::int64_t pid = 0;   // 0: unknown
    std::string what = {};  // the driver call of a charge; empty: chunks
    Bytes asked = {};
    TimePoint since;
    int turns = 0;                            // that are over
    std::optional<TimePoint> turn_ends = {};  // it has its turn
    bool waits_for_kept = false;              // the card has enough, but keeps it for a lease that gave way
  };
  struct CardInfo {
    CardId id;
    BrokerCard card;
    Ledger::CardView view;
    Bytes draining;                                           // leaving, of all its logical devices
    Bytes kept = {};                                          // for a lease that gave way, of what is free
    std::vector<Queued> queue = {};                           // in the order in which they are served
    bool observed = false;                                    // the driver tells what is used
    std::vector<DeviceMemory::ProcessMemory> outsiders = {};  // processes without a session on it
  };
  std::vector<CardInfo> Cards() const;
  /// The largest limit of a growing device on the card.
  static Bytes WholeCard(const CardInfo& card);
  /// Spreads the devices of a lease over cards: `candidates` with the one that has the most room first. Room
  /// is what is free and not kept, less what is `planned` there for this lease; of cards with the same room
  /// the earlier one stays first.
  static std::vector<const CardInfo*> ByRoom(std::vector<const CardInfo*> candidates,
                                             const std::map<CardId, Bytes>& planned);

  // Requests. One that waits has its place in a queue, and its answer comes once: its waker is woken, and
  // TakeAnswer has it.
  /// What a granted charge adds to the program's words, as soon as it is in the log.
  struct Lent {
    SessionId session;
    CardId card;
    Bytes bytes;
    Bytes refill;
    Bytes keep;
    std::shared_ptr<Allowances> allowances;
    std::size_t index = 0;
  };
  struct Answer {
    absl::Status status = {};           // OK: it has what it asked for, or it waits
    std::optional<WaiterId> wait = {};  // TakeAnswer has the answer later
    std::vector<Chunk> chunks = {};     // granted to the session
    std::optional<Lent> lent = {};      // of a charge that was granted
    LogicalId device = {};              // that was made or resized
    bool ahead = false;                 // as in the request
  };
  /// The answer of a request that waited, when its waker was woken; none: it waits still. Makes chunks for it
  /// on the caller's thread. FAILED_PRECONDITION: the session has ended.
  std::optional<Answer> TakeAnswer(WaiterId request);
  /// The program has given a request up: it waits no more, and TakeAnswer has CANCELLED next, or what it was
  /// given meanwhile. Nothing happens where it is over.
  void Withdraw(WaiterId request);
  /// Does what time alone brings about for requests that wait, and says when it is to be called again; none:
  /// when `tick_waker` is woken. One thread calls it: then, and as soon as it is woken.
  std::optional<TimePoint> Tick();

  // Logical devices.
  /// Whether a lease with growing devices may be suspended for others.
  enum class Preemptible {
    kNever,
    kIdle,    // while it is idle
    kAlways,  // at work, too, after a while
  };
  struct DeviceSpec {
    CardId card;
    Bytes limit;
    Bytes guarantee = {};      // preallocate: ignored, the limit is guaranteed
    bool preallocate = false;  // all chunks exist from the start and stay with the lease
    LeaseKey lease;
    // For refusals.
    std::string device_name = {};  // "/device:GPU:0"
    std::string lease_name = {};   // "": a `local` context, which has no leases
    std::string owner = {};
    WaiterId room = {};  // what is set aside there is used first
    Preemptible preemptible = Preemptible::kNever;
  };
  /// How long a request for a guarantee waits, and only for memory that is idle or on its way back, and for
  /// turns of other requests.
  struct Patience {
    TimePoint deadline = {};            // as it is: not at all
    std::shared_ptr<Waker> waker = {};  // woken when a request that waited has its answer
  };
  /// Sets the guarantee aside and, for preallocate, makes all chunks; nothing stays behind on an error.
  /// INVALID_ARGUMENT: a size that can never be; RESOURCE_EXHAUSTED with a Refusal.
  Answer AddDevice(const DeviceSpec& spec, const Patience& patience);
  /// As above; does not wait.
  absl::StatusOr<LogicalId> AddDevice(const DeviceSpec& spec);
  /// Errors as AddDevice; on an error nothing changes. A size that CheckSize accepts and whose guarantee is
  /// not above the present one is never refused. A preallocated device guarantees its limit. For a higher
  /// limit it makes the chunks that it lacks, and waits for its own memory that is on its way back:
  /// UNAVAILABLE if that takes longer. One call for a device at a time, and none after RemoveDevice.
  Answer ResizeDevice(LogicalId device, Bytes limit, Bytes guarantee, const Patience& patience);
  /// As above; does not wait.
  absl::Status ResizeDevice(LogicalId device, Bytes limit, Bytes guarantee);
  /// INVALID_ARGUMENT: ResizeDevice refuses this size at any time.
  absl::Status CheckSize(LogicalId device, Bytes limit, Bytes guarantee) const;
  /// The device's lease has ended. Sessions that hold memory of it are draining or give it back, and none
  /// waits for some. Spare chunks, which no session ever had, are freed at once. The guarantee ends, so the
  /// card has all that is leaving as soon as it is confirmed free. The device is gone with the last of its
  /// memory. Calling it again does nothing.
  void RemoveDevice(LogicalId device);
  struct DeviceInfo {
    Bytes limit;
    Bytes guarantee;
    Bytes held;
    Bytes leaving;  // part of held: returning or draining
    Bytes missing;  // of a preallocated device: guaranteed, and no chunk is there for it
    Bytes charged;  // part of held: lent to programs for memory that lies in no chunk
    CardId card;
    Bytes card_free;
  };
  std::optional<DeviceInfo> Find(LogicalId device) const;
  /// When programs of a device's lease last used a GPU; nothing: not known. Refusals tell it, and GivingWay
  /// asks leases by it.
  struct LastUse {
    LogicalId device;
    std::optional<TimePoint> at;
    /// Its lease may be asked to give way when it has been idle for so long; 0: as GivingWay decides.
    std::chrono::milliseconds idle_after{};
  };
  void NoteLastUses(const std::vector<LastUse>& uses);

  // Sessions.
  void AddSession(SessionId session, SessionSpec spec);
  /// Gives the session the right to the devices of a lease, and charges what its process takes beside chunks,
  /// as far as there is room.
  void AttachSession(SessionId session, LeaseKey lease);
  /// The session holds nothing.
  void RemoveSession(SessionId session);
  Bytes Held(SessionId session) const;

  /// Makes the chunks that a preallocated device lacks; OK where it lacks none, or cannot have them now.
  absl::Status MakeMissing(LogicalId device);

  // Growing.
  struct GrowSpec {
    SessionId session;
    LogicalId device;
    Bytes at_least;
    Bytes wanted;
    TimePoint asked_at;  // now
    TimePoint deadline;
    bool ahead = false;  // of need: a refusal is not counted and gives no reason
  };
  /// Grants at least `at_least`, or says that the request waits, or why it is refused.
  Answer Grow(const GrowSpec& spec);

  // Charging: memory that a program takes from the driver itself. It is held memory of its session, of all
  // logical devices that the lease has on the card together.
  /// The session's program shares these words; to be called before its first ChargeCard, and after it came
  /// back. The session is not asked for idle memory from here on.
  void ShareAllowances(SessionId session, std::shared_ptr<Allowances> allowances);
  struct ChargeSpec {
    SessionId session;
    std::string card_uuid;
    Bytes bytes;
    std::string what;  // the call, for the refusal
    TimePoint asked_at;
    /// Of waiting for the card. For room under the limit a charge waits a tenth of a second at most.
    TimePoint deadline;
    /// How often the driver refused this memory after a charge of it, which was given back. From 1 on the
    /// card's report is read first; from 2 on nothing is charged, and the answer is a refusal.
    std::uint32_t driver_refusals = 0;
  };
  /// As Grow, without chunks. NOT_FOUND: the lease has nothing of the card.
  Answer ChargeCard(const ChargeSpec& spec);
  /// The program gave the bytes back to the driver. More than it has counts as all.
  absl::Status Uncharge(SessionId session, const std::string& card_uuid, Bytes bytes);
  struct Charged {
    std::string card_uuid;
    std::size_t index = 0;  // of the card in its lease
    Bytes lent;             // counted as held
    Bytes used;             // as far as it is known: without what is free in the program's word
  };
  std::vector<Charged> ChargesOf(SessionId session) const;
  /// Of what a draining session has charged of each card, no more than this is still in use. Empty: no
  /// process has any.
  void LowerCharges(SessionId session, const std::map<std::string, Bytes>& by_card);

  /// A granted chunk as the backend knows it, for a session of this process. NOT_FOUND if it is not the
  /// session's.
  absl::StatusOr<MemoryHandle> MemoryOf(SessionId session, ChunkId chunk) const;
  /// A descriptor of a granted chunk, for its session. NOT_FOUND if it is not the session's; the
  /// backend's errors.
  absl::StatusOr<ExportedFd> Export(SessionId session, ChunkId chunk);
  /// The error that a client gets for a failed Export: a refusal where descriptors ran out.
  absl::Status ExplainExport(LogicalId device, Bytes asked, const absl::Status& status) const;

  // Giving back.
  /// Takes back all of the chunks, or none: INVALID_ARGUMENT for one that is not granted to the session or
  /// not of this device. A chunk that the backend does not confirm at once stays held until it does.
  absl::Status Return(SessionId session, LogicalId device, std::span<const ChunkId> chunks);
  /// Returns all chunks of the session and drops its waiting requests.
  void ReturnAll(SessionId session);
  /// The session is lost: its requests leave the queues, its chunks are draining.
  void StartDraining(SessionId session);
  /// Frees the draining chunks of sessions whose processes are gone or had their time. Returns those of the
  /// sessions that hold nothing any more.
  std::vector<SessionId> FinishDraining(const std::vector<SessionId>& sessions);
  /// Asks the backend again about chunks that it did not confirm; true when none is left. False at once while
  /// another thread asks.
  bool RetryUnconfirmed();

  /// Requests of the lease, also those that wait, are refused from here on, or not any more.
  void SetStopped(LeaseKey lease, bool is_stopped);

  /// Requests for guarantees do not wait any more.
  void StopWaiting();

  struct Counters {
    std::uint64_t grants = 0;
    std::uint64_t refusals = 0;
    std::uint64_t returns = 0;
    std::uint64_t charges = 0;  // by ChargeCard; most bytes are charged without a call
    std::uint64_t trims = 0;    // orders to give back idle memory
    std::uint64_t trims_ignored = 0;
  };
  Counters counters() const;
  /// The ledger's invariants, and that the table of chunks agrees with the ledger.
  absl::Status CheckInvariants() const;

 private:
  explicit Broker(std::unique_ptr<BrokerParts> parts);

  const std::unique_ptr<BrokerParts> parts_;
};

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_BROKER_BROKER_H_
