#ifndef LGPU_ALLOCATOR_BROKER_BROKER_H_
#define LGPU_ALLOCATOR_BROKER_BROKER_H_

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "allocator/broker/allowance.h"
#include "allocator/broker/card_queue.h"
#include "allocator/broker/card_watch.h"
#include "allocator/broker/grant_log.h"
#include "allocator/broker/ids.h"
#include "allocator/broker/trim_table.h"
#include "allocator/broker/waker.h"
#include "allocator/device/device_memory.h"
#include "allocator/ledger.h"
#include "base/mutex.h"
#include "base/unique_fd.h"
#include "lgpu/bytes.h"
#include "lgpu/id.h"
#include "lgpu/refusal.h"
#include "lgpu/region_source.h"

namespace lgpu {

/// A request for memory that waits.
using GrowId = WaiterId;

/// A card that the broker may use.
struct BrokerCard {
  int index = 0;           // as people count them
  int backend_device = 0;  // in DeviceMemory::devices()
  PhysicalDevice device;
  Bytes overhead_allowance{};  // charged per process, for driver memory that lies in no chunk
};

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
///
/// A header past the usual length: one lock guards the ledger, chunks, waiters and sessions together. Each
/// group of calls has a broker_*.cc of its own.
class Broker {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  struct Options {
    std::vector<BrokerCard> cards;
    Bytes reserve = {};                             // of every card; never granted
    std::shared_ptr<Waker> unconfirmed_waker = {};  // woken when RetryUnconfirmed has work
    /// Chunks go to other processes, which may keep memory that they returned: real cards are asked whether
    /// they have it back. False: all sessions are of this process.
    bool leaves_process = true;
    /// The longest turn of a request in its card's queue (CardQueue).
    std::chrono::milliseconds max_drain = std::chrono::seconds(2);
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
    /// Woken when Continue or TakeTrims has news, and when memory of the session becomes free later than in
    /// the call that returned it.
    std::shared_ptr<Waker> waker = {};
    bool trims = false;  // the session can be asked for idle memory
  };

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
  };
  struct CardInfo {
    CardId id;
    BrokerCard card;
    Ledger::CardView view;
    Bytes draining;                                           // leaving, of all its logical devices
    std::vector<Queued> queue = {};                           // in the order in which they are served
    bool observed = false;                                    // the driver tells what is used
    std::vector<DeviceMemory::ProcessMemory> outsiders = {};  // processes without a session on it
  };
  std::vector<CardInfo> Cards() const;
  std::size_t cards() const;
  /// The largest limit of a growing device on the card.
  static Bytes WholeCard(const CardInfo& card);
  /// Spreads the devices of a lease over cards: `candidates` with the one that has the most room first. Room
  /// is what is free, less what is `planned` there for this lease; of cards with the same room the earlier
  /// one stays first.
  static std::vector<const CardInfo*> ByRoom(std::vector<const CardInfo*> candidates,
                                             const std::map<CardId, Bytes>& planned);

  // Logical devices.
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
  };
  /// Sets the guarantee aside and, for preallocate, makes all chunks; nothing stays behind on an error.
  /// Waits until `deadline` only for memory that is on its way back. INVALID_ARGUMENT: a size that can never
  /// be; RESOURCE_EXHAUSTED with a Refusal.
  absl::StatusOr<LogicalId> AddDevice(const DeviceSpec& spec, TimePoint deadline);
  /// Errors as AddDevice; on an error nothing changes. A preallocated device guarantees its limit, and waits
  /// until `deadline` for its own memory that is on its way back. One call for a device at a time, and none
  /// after RemoveDevice.
  absl::Status ResizeDevice(LogicalId device, Bytes limit, Bytes guarantee, TimePoint deadline);
  /// No session may hold memory of it or wait for some. Spare chunks are freed; the device is gone when the
  /// last of them is.
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

  // Memory for a lease that waits to be made, in the queue of a card. No thread waits.
  struct RoomSpec {
    CardId card;
    Bytes bytes;  // above zero
    std::string lease_name = {};
    std::string owner = {};
    std::int64_t pid = 0;
  };
  /// Joins the queue. When its time comes, the bytes are set aside for AddDevice with this id.
  WaiterId QueueRoom(const RoomSpec& spec);
  struct RoomView {
    bool is_over = false;  // it waits no more: the bytes are set aside, or `status` is an error
    absl::Status status = {};
    // What it waits for, in words for every user; empty where that was told less than a second ago.
    std::string text = {};
    std::size_t place = 0;  // from 1
    std::size_t waiting = 0;
  };
  /// To be called often: it moves the queue on.
  RoomView LookAtRoom(WaiterId id);
  /// Leaves the queue. What was set aside and not used is free.
  void LeaveRoom(WaiterId id);

  // Sessions.
  void AddSession(SessionId session, SessionSpec spec);
  /// Gives the session the right to the devices of a lease, and charges what its process takes beside chunks,
  /// as far as there is room.
  void AttachSession(SessionId session, LeaseKey lease);
  /// The session holds nothing.
  void RemoveSession(SessionId session);
  Bytes Held(SessionId session) const;

  // After a restart, before any other call: the grants of an earlier broker, as its log has them. This
  // process has no reference to their memory; the session that holds a chunk brings a descriptor, or the
  // memory is known by its identity only.
  struct RestoredChunk {
    ChunkId id;
    LogicalId device;
    Bytes bytes;
    std::uint64_t identity = 0;
  };
  struct RestoredCharge {
    LogicalId device;
    Bytes bytes;
  };
  /// Errors as the ledger's RestoreLogical.
  absl::Status RestoreDevice(LogicalId device, const DeviceSpec& spec);
  /// Charges all chunks, also beyond the limits. INVALID_ARGUMENT for a device that is not there; then
  /// nothing is restored.
  absl::Status RestoreSession(SessionId session, std::int64_t pid, std::shared_ptr<Waker> waker,
                              LeaseKey lease, std::span<const RestoredChunk> chunks,
                              std::span<const RestoredCharge> charges = {});
  /// After the last session is restored.
  void ChargeRestoredOverhead();
  /// Ids up to these are never given out.
  void SkipIds(LogicalId device, ChunkId chunk);
  /// Makes the chunks that a preallocated device lacks; OK where it lacks none, or cannot have them now.
  absl::Status MakeMissing(LogicalId device);
  /// The process of a restored session is connected again.
  void StartAttesting(SessionId session, SessionSpec spec);
  /// The session says that it holds this chunk. `fd`: of the memory, where memory is known by descriptors; it
  /// is never mapped. INVALID_ARGUMENT if the log does not say the same.
  absl::Status Attest(SessionId session, LogicalId device, const Chunk& chunk, UniqueFd fd);
  /// The session says how much it has charged of a card. INVALID_ARGUMENT if that is more than the log says.
  absl::Status AttestCharge(SessionId session, const std::string& card_uuid, Bytes bytes);
  /// Chunks that the session did not attest start leaving; charges that it did not attest are over.
  void FinishAttesting(SessionId session);
  /// The session's connection is gone again. The memory that it holds stays charged.
  void GoAbsent(SessionId session);
  /// Memory of a card that processes without a session use, as observed.
  void SetForeign(CardId card, Bytes bytes);
  /// The identities of all chunks of a card that are known.
  std::vector<std::uint64_t> Identities(CardId card) const;

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
  struct GrowAnswer {
    absl::Status status;         // OK: `chunks` are granted, or it waits
    std::vector<Chunk> chunks;   // granted to the session
    std::optional<GrowId> wait;  // call Continue when woken, at the latest at `next_look`
    TimePoint next_look;
    bool ahead = false;             // as in the request
    std::optional<Lent> lent = {};  // of a charge that was granted
  };
  /// Grants at least `at_least`, or says that the request waits, or why it is refused.
  GrowAnswer Grow(const GrowSpec& spec);
  /// The state of a request that waits. The request is over when the answer does not wait.
  GrowAnswer Continue(GrowId grow);

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
    TimePoint
        deadline;  // of waiting for the card; for room under the limit a charge waits for kGrace at most
    /// How often the driver refused this memory after a charge of it, which was given back. From 1 on the
    /// card's report is read first; from 2 on nothing is charged, and the answer is a refusal.
    std::uint32_t driver_refusals = 0;
  };
  /// As Grow, without chunks; Continue goes on with one that waits. NOT_FOUND: the lease has nothing of the
  /// card.
  GrowAnswer ChargeCard(const ChargeSpec& spec);
  /// The program gave the bytes back to the driver. More than it has counts as all.
  absl::Status Uncharge(SessionId session, const std::string& card_uuid, Bytes bytes);
  struct Charged {
    std::string card_uuid;
    std::size_t index = 0;  // of the card in its lease
    Bytes lent;             // counted as held
    Bytes used;             // as far as it is known: without what is free in the program's word
  };
  std::vector<Charged> ChargesOf(SessionId session) const;
  /// No process of these sessions, which are draining, has the charged memory any more.
  void EndCharges(const std::vector<SessionId>& sessions);
  /// Those of the draining sessions whose process has more memory of a card, as its driver lists it, than
  /// what the process's other sessions account for. None where drivers list no processes.
  std::set<SessionId> StillListed(const std::vector<SessionId>& sessions);
  /// Of what a draining session has charged of each card, no more than this is still in use.
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

  // Trimming: memory that lies idle in one session, for requests of others that are short of it.
  /// New orders to return idle memory. Trimmed answers each of them.
  std::vector<TrimOrder> TakeTrims(SessionId session);
  /// The idle chunks have been returned. `pending`: more become idle when queued work ends. INVALID_ARGUMENT
  /// for an order that is not open.
  absl::Status Trimmed(SessionId session, TrimId trim, bool pending);
  /// A request of a person that the sessions of a lease give back what lies idle. It belongs to the caller.
  struct TrimRequest {
    struct Part {
      LogicalId device;
      TrimId order = {};      // none: another order is open, this one comes after it
      bool answered = false;  // at least once
      bool done = false;      // and nothing more becomes idle when queued work ends
    };
    struct Asked {
      SessionId session;
      Bytes returned_before = {};  // of the session's whole life
      Bytes returned = {};         // since it was asked
      std::vector<Part> parts = {};
    };
    std::vector<Asked> sessions = {};
    std::vector<SessionId> unasked = {};  // hold memory and cannot be asked: absent, draining, or too old
    Bytes allowances = {};                // taken back at once: lent for charges and not in use
    bool is_done = false;                 // all have answered
  };
  /// Asks every session that holds memory of these devices, which are of one lease. Preallocated devices are
  /// left out: their memory stays with the lease.
  TrimRequest StartTrim(std::span<const LogicalId> devices);
  /// Sees which answers have come, and asks again where more became idle. To be called now and then.
  void ContinueTrim(TrimRequest& request);
  /// Sessions that have not answered an order for TrimTable::kOverdue. A session is told of at most once in
  /// kTellIgnoredEvery. To be called about every half second.
  struct IgnoredTrim {
    SessionId session;
    Bytes asked;
    std::uint64_t ignored = 0;  // orders that this session ever ignored
  };
  std::vector<IgnoredTrim> TakeIgnoredTrims();
  struct TrimRecord {
    std::uint64_t ignored = 0;  // orders that it ever ignored
    bool ignores_now = false;   // one of them is open still
  };
  TrimRecord TrimsOf(SessionId session) const;
  /// Memory that a session returned and its card does not have after a grace: a process keeps it. It stays
  /// charged to the session, whose requests are refused meanwhile. Only of real cards that report their
  /// memory.
  Bytes UnreturnedBy(SessionId session) const;
  struct Unreturned {
    SessionId session;
    Bytes bytes;
  };
  /// The unreturned memory that was found since the last call.
  std::vector<Unreturned> TakeUnreturned();

  /// Reads the reports of real cards that have them: memory that a program uses beside chunks replaces its
  /// allowance; memory of unknown processes counts as foreign and lowers what may be granted. To be called
  /// about every second.
  void ObserveCards();
  /// A process that uses more of a card than what it has charged, was granted, and its overhead may be.
  struct Uncharged {
    std::int64_t pid = 0;
    int card_index = 0;
    Bytes beside;                        // what it has charged and was granted
    std::set<std::int64_t> listed = {};  // all processes on the card
  };
  /// Those of the last two readings: more than the card's overhead allowance and 64 MiB. None on cards
  /// without an allowance, where nothing is known of contexts, and on MIG instances, whose lists do not tell
  /// processes apart.
  std::vector<Uncharged> UnchargedUse() const;
  /// Requests of the lease are refused from here on, or not any more.
  void SetStopped(LeaseKey lease, bool is_stopped);
  /// Memory of the cards that processes use beside chunks, where it was measured; else their allowance.
  struct Overheads {
    std::map<SessionId, Bytes> of_session;  // of the session's process
    std::map<std::pair<LeaseKey, CardId>, Bytes> of_lease;
  };
  Overheads overheads() const;

  /// AddDevice and ResizeDevice do not wait any more.
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
  enum class ChunkState { kGranted, kReturning, kDraining, kSpare };
  struct ChunkEntry {
    LogicalId device;
    SessionId session;  // none: spare
    Bytes bytes;
    MemoryHandle memory;
    ChunkState state = ChunkState::kGranted;
    bool reference_gone = false;  // the backend dropped it but could not confirm
    std::uint64_t identity = 0;   // of the memory, as the backend knows it
    bool lost = false;            // an earlier daemon's: there is no reference to it here
    bool attested = false;        // its session said that it holds it
    bool unreturned = false;      // and that for longer than a driver takes
    bool made_again = false;      // leaving: the preallocated device gets an empty chunk in its place
    TimePoint leaving_since = {};
  };
  struct Device {
    DeviceSpec spec;
    Bytes charged;  // in the ledger, but no chunk yet
    // Of preallocated devices, by size, so that a pick looks only at what it takes. No set is empty.
    std::map<Bytes, std::set<ChunkId>, std::greater<>> spare;
    Bytes spare_bytes;
    Bytes coming_again;  // leaving, and made again as the limit allows
    std::map<SessionId, Bytes> held_by;
    std::deque<GrowId> limit_waiters;
    bool removed = false;
    Bytes lent;                  // charges of all sessions: part of what the ledger has granted, or leaving
    TimePoint last_charge = {};  // of a preallocated device: chunks are made again some time after
  };
  /// What a session has charged of a card.
  struct CardCharge {
    std::size_t index = 0;              // of the card in its lease
    Bytes lent;                         // to the program: what it has charged, and what is free in its word
    std::map<LogicalId, Bytes> held;    // in the ledger: `lent` in whole granules. No entry is zero
    std::map<LogicalId, Bytes> logged;  // the most that the log was told
    Bytes attested;                     // by a session that is coming back
    bool leaving = false;               // the session is draining
  };
  struct Session {
    std::int64_t pid = 0;
    std::shared_ptr<Waker> waker;
    std::shared_ptr<Allowances> allowances;  // none: no program shares them now
    std::map<CardId, CardCharge> charges;
    bool trims = false;
    bool trims_when_back = false;  // as soon as it has told what it holds
    LeaseKey lease;
    absl::flat_hash_set<ChunkId> chunks;
    Bytes held;
    Bytes returned;    // by Return, of growing devices, in all
    Bytes unreturned;  // part of held
    std::uint64_t trims_ignored = 0;
    TimePoint ignored_told = {};  // when TakeIgnoredTrims named it last
    std::set<CardId> on_cards;    // where its process's overhead is charged for it too
    std::set<GrowId> waiting;
  };
  // Of a process on a card: its sessions there share one context.
  struct Overhead {
    int sessions = 0;
    Bytes wanted;   // the allowance, and what was measured as soon as it is
    Bytes charged;  // as far as there was room
  };
  /// Of a request that is a charge.
  struct ChargeWish {
    CardId card;
    Bytes bytes;  // spec.at_least: in whole granules
    std::string what;
    TimePoint card_deadline;
    bool is_retry = false;  // the driver refused it: what the card reports as used may come back
  };
  struct Waiter {
    enum class Phase {
      kNew,
      kLimit,
      kCard,
      kBackend,
      kCharged,
      kTaken,
      kTooLarge,
      kMissing,
      kBallast,
      kRefused
    };
    GrowSpec spec;  // of a charge: `device` is the first that the lease has on the card
    std::optional<ChargeWish> charge = {};
    Phase phase = Phase::kNew;
    TimePoint retry_at;        // in kBackend
    TimePoint next_look;       // in kCard
    TrimTable::Need need;      // in kLimit, kCard
    bool in_grace = false;     // it would not wait, but for what lies idle
    Bytes charged;             // in kCharged; in kMissing: for spare chunks
    std::vector<Chunk> taken;  // in kTaken: spare chunks
    ChunkId too_large;  // in kTooLarge: a spare chunk, on its way back, for which small ones are to come
    std::vector<ChunkId> ballast = {};  // in kBallast: spare chunks, on their way back, for the charge
    absl::Status refusal;               // in kRefused
  };
  /// A guarantee that waits to be set aside.
  struct Room {
    CardId card;
    std::string user;
    Bytes bytes;
    TimePoint since;
    absl::FunctionRef<absl::Status()> attempt;  // called with the lock
    std::string lease_name = {};
    std::int64_t pid = 0;
    bool patient = false;  // it waits for holders too
    TrimTable::Need need = {};
    absl::Status status = {};
    bool over = false;  // it left the queue
  };
  /// A Room for which no thread waits.
  struct Ticket {
    std::function<absl::Status()> attempt;
    std::optional<Room> room;
    LogicalId set_aside;  // a device that no lease has, with the bytes as its guarantee
    TimePoint next_look = {}, next_text = {};
  };
  /// What a request in a card's queue waits for.
  struct Wish {
    Bytes need;              // of the card's free memory
    TrimTable::Need& trims;  // of the request
    LogicalId device;        // its own memory there is no help to it
    SessionId session;
    bool patient = false;  // it waits for holders, not only for memory that is idle or on its way back
  };
  /// Memory that requests in a card's queue may hope for.
  struct Reach {
    Bytes free;
    Bytes leaving;
    Bytes others;       // beyond guarantees, of holders that do not wait themselves
    bool idle = false;  // some sessions can be asked for idle memory
  };
  /// What has to be done for a request without the lock: chunks that are charged to be made, or the spare
  /// chunks to be filled up (`sizes` is empty).
  struct Making {
    std::vector<Bytes> sizes;
    int backend_device = 0;
  };
  using Wakes = std::vector<std::shared_ptr<Waker>>;
  struct RefusalCause {
    RefusalReason reason = RefusalReason::kUnspecified;
    Bytes asked = {};
    std::optional<std::chrono::milliseconds> waited = {};
    std::string detail = {};  // what the backend said
    int turns = 0;            // of the request in its card's queue
  };

  /// Even a request with timeout 0 waits this long for trims.
  static constexpr std::chrono::milliseconds kGrace{100};
  static constexpr std::chrono::seconds kTellIgnoredEvery{10};
  /// How often a request that waits is told its place.
  static constexpr std::chrono::seconds kTextEvery{1};
  /// While memory drains, a backend that had less than the ledger said is asked again this often.
  static constexpr std::chrono::milliseconds kBackendRetry{20};
  /// Spare chunks that made room for a charge are made again this long after the last one.
  static constexpr std::chrono::seconds kBallastRest{1};

  Broker(DeviceMemory& backend, GrantLog& log, const Options& options)
      : backend_(backend),
        log_(log),
        unconfirmed_waker_(options.unconfirmed_waker),
        leaves_process_(options.leaves_process),
        max_drain_(options.max_drain),
        now_(options.clock) {}
  static void WakeAll(const Wakes& wakes);

  // broker.cc: requests.
  absl::Status CheckGrow(const GrowSpec& spec) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Charge(GrowId id, Waiter& waiter, Wakes& wakes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ChargeLedger(GrowId id, Waiter& waiter, Wakes& wakes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TakeSpare(GrowId id, Waiter& waiter, Wakes& wakes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Spare chunks that are enough for the request are there or being made. It is served from them even with
  /// timeout 0.
  bool IsBeingMade(const Waiter& waiter) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::vector<ChunkId> PickSpare(const Device& device, Bytes at_least, Bytes wanted, Bytes room) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Refuse(Waiter& waiter, RefusalCause cause) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void LeaveQueues(GrowId id, Waiter& waiter) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DropWaiters(SessionId session, Wakes& wakes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static bool IsQueued(const Waiter& waiter);
  /// Waits for the backend, and may not ask it again yet.
  static bool IsPutOff(const Waiter& waiter, TimePoint now);
  void Forget(GrowId id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// From here on it waits: queues, deadlocks and the end of its session find it.
  void Park(GrowId id, Waiter waiter) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// A request that waits looks again for others' idle memory, if it is time to.
  void LookForIdle(GrowId id, Waiter& waiter, Wakes& wakes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Charges it, or lets it wait, and says what is to do about it.
  std::optional<Making> Place(GrowId id, Waiter& mine, GrowAnswer& answer, Wakes& wakes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Takes a parked request out if it waits no more; else says in `answer` how long it does.
  bool TakeIfSettled(GrowId id, Waiter& mine, GrowAnswer& answer, Wakes& wakes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// The deadline of a request in a queue has passed.
  void RefuseLate(GrowId id, Waiter& waiter) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// When the session of a request in a queue is to call Continue.
  TimePoint NextLook(GrowId id, const Waiter& waiter, TimePoint now) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// The answer of a request that does not wait, or what has to be made for it.
  std::optional<Making> Conclude(Waiter& mine, GrowAnswer& answer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // broker_charges.cc.
  /// The logical devices of a lease on a card, in their order.
  std::vector<LogicalId> DevicesOn(LeaseKey lease, CardId card) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Of the card among those of the lease, as its devices name them first.
  std::size_t IndexOf(LeaseKey lease, CardId card) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<Waiter> CheckCharge(const ChargeSpec& spec) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Ledger::Split SplitOf(const Waiter& waiter) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// How much of the card's free memory the request would take.
  Bytes NeedOf(const Waiter& waiter) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ChargeSplit(GrowId id, Waiter& waiter, Wakes& wakes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// The session has the bytes from here on, in `parts`.
  void Book(SessionId session, CardId card, Bytes bytes,
            const std::vector<std::pair<LogicalId, Bytes>>& parts) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Gives granules back to the ledger that `lent` needs no more; whether there were some.
  bool FitCharge(SessionId id, Session& session, CardId card) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DropHeld(SessionId id, Session& session, LogicalId device, Bytes bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Ends what is beyond `rest` of a charge that is leaving.
  void EndCharge(SessionId id, Session& session, CardId card, Bytes rest)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void LogCharge(SessionId id, CardCharge& charge) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// What programs have not used of what was lent to them, on a card, of one lease or (none) of all; whether
  /// the ledger has granules back.
  bool TakeAllowances(CardId card, LeaseKey lease) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool TakeAllowance(SessionId id, Session& session, CardId card) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// A granted charge: what is to be added to the program's words.
  Lent Lend(const Waiter& waiter) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Bytes AllowanceOf(LeaseKey lease, CardId card) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void UnchargeLocked(SessionId session, CardId card, Bytes bytes, Wakes& wakes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  GrowAnswer LoggedCharge(GrowAnswer answer);
  void StartLeavingCharges(Session& session, std::set<CardId>& touched) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Spare chunks of preallocated devices that make room for `bytes`; they are leaving from here on. Empty:
  /// there are not enough.
  std::vector<ChunkId> TakeBallast(const std::vector<LogicalId>& devices, Bytes bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  GrowAnswer FreeBallast(GrowId id, Waiter mine);
  Refusal MakeChargeRefusal(const Waiter& waiter, RefusalCause cause) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckCharges() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::optional<CardId> FindCard(const std::string& uuid) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // broker_queue.cc: requests that wait for a card.
  /// Memory of a card or under a limit may have become free, or a request waits: serves the requests that can
  /// be served, moves the card's turn on, and refuses requests that nothing can serve.
  void Serve(CardId card, Wakes& wakes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void GrantQueued(CardId card, Wakes& wakes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Each returns whether something changed.
  bool GrantWaiter(WaiterId id, CardQueue& queue, Wakes& wakes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool MoveTurnOn(CardId card, Wakes& wakes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RetryUnderLimits(CardId card, Wakes& wakes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Wish WishOf(WaiterId id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Reach ReachOf(CardId card) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool MayBeServed(WaiterId id, CardId card, const Reach& reach) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Asks sessions for idle memory that the request with the turn lacks.
  void AskForCard(WaiterId id, CardId card, Wakes& wakes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// The request waited only for memory that is idle or on its way back, and no more comes.
  void GiveUp(WaiterId id, Wakes& wakes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// The youngest request, by a session that holds memory of the card, if all that do wait for the card.
  std::optional<WaiterId> DeadlockVictim(CardId card) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsHeldBack(LogicalId device, Bytes bytes) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::vector<Queued> QueueOf(CardId card) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckQueues() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // broker_rooms.cc: guarantees that wait to be set aside.
  /// Returns whether something changed.
  bool TryRoom(WaiterId id, CardQueue& queue) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndRoom(WaiterId id, Room& room) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Sets a guarantee of this size aside by `attempt`, in the queue of the card. Waits for memory that is
  /// leaving or idle, and for turns of other requests.
  absl::Status MakeRoom(CardId card, const std::string& user, Bytes guarantee, TimePoint deadline,
                        absl::FunctionRef<absl::Status()> attempt) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Serve; gives the lock up meanwhile.
  void ServeUnlocked(CardId card) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string DescribeRoom(const Room& room, WaiterId id, WaiterId before) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ForgetSetAside(Ticket& ticket) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Gives the guarantee of a device that is being made back to it out of its room; false: none is there.
  bool TakeFromRoom(const DeviceSpec& spec, Bytes guarantee) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // broker_chunks.cc, broker_spare.cc: the table of chunks and the backend.
  /// Makes the chunks of a charged request.
  GrowAnswer Materialise(GrowId id, Waiter mine, const Making& making);
  GrowAnswer Make(GrowId id, Waiter mine, const Making& making);
  /// Makes the chunks that a preallocated device has not and its limit has room for, and then tries again;
  /// before that, frees a spare chunk that is more than the room.
  GrowAnswer FillUp(GrowId id, Waiter mine);
  void FreeTooLarge(Waiter& mine);
  /// What the limit of a preallocated device has room for; the guarantee holds it ready.
  Bytes ChargeRoom(LogicalId id, Device& device) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  GrowAnswer FillUpFailed(GrowId id, Waiter mine, const absl::Status& status);
  /// Makes chunks for memory that is charged already. `maker` is called with the lock when they are there,
  /// before waiting requests are served.
  absl::Status MakeSpare(LogicalId device, Bytes bytes, TimePoint deadline,
                         const std::function<void(Wakes&)>& maker = {}, std::vector<Bytes> sizes = {});
  struct MadeChunk {
    Bytes bytes;
    MemoryHandle memory;
    std::uint64_t identity = 0;
  };
  struct Created {
    std::vector<MadeChunk> chunks;
    absl::Status status;
  };
  Created CreateChunks(int backend_device, const std::vector<Bytes>& sizes);
  ChunkId Register(LogicalId device, SessionId session, const MadeChunk& made)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void GiveTo(SessionId session, ChunkId id, ChunkEntry& chunk) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TakeFromSession(ChunkId id, ChunkEntry& chunk) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Spare chunks of at most `at_most` in all; they are leaving from here on.
  std::vector<ChunkId> TakeSurplus(Device& device, Bytes at_most) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// What is granted beyond the limit, as far as it is spare.
  std::vector<ChunkId> TakeBeyondLimit(LogicalId id, Device& device) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TakeFromSpare(ChunkId id, const ChunkEntry& chunk) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// A preallocated device has its new limit: charges what it lacks, which MakeSpare is to make. Nothing
  /// where memory of its own that is still leaving stands in the way.
  std::optional<Bytes> ChargeMissing(LogicalId id, Device& device) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ResizeBack(LogicalId id, const Ledger::LogicalView& before);
  void MakeItSpare(ChunkId id, ChunkEntry& chunk) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static std::vector<ChunkId> ChunksOf(const Session& session);
  void StartLeaving(ChunkEntry& chunk, ChunkState state) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  struct Ended {
    std::vector<ChunkId> leaving;
    std::set<CardId> cards;
  };
  void EndDraining(const Session& session, Ended& ended) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Frees chunks that are leaving; what is not confirmed is left for RetryUnconfirmed.
  void Reclaim(const std::vector<ChunkId>& chunks);
  /// Chunks that preallocated devices lack, which are charged already.
  using MissingChunks = std::map<LogicalId, std::vector<Bytes>>;
  void MakeAgain(const MissingChunks& missing);
  /// A session gives the chunk back.
  void GiveBack(ChunkEntry& chunk, ChunkState state) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Settle(ChunkId id, const absl::Status& result, Wakes& wakes, MissingChunks& missing)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool LooksFree(const ChunkEntry& chunk);
  /// Asks the backend about all those of `chunks` that were an earlier daemon's: what it said of each.
  std::map<ChunkId, absl::Status> ReclaimLost(const std::vector<ChunkId>& chunks);
  void ForgetIfEmpty(LogicalId device) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Bytes LeavingAnywhere() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // broker_trims.cc.
  void AskPart(TrimRequest::Asked& asked, TrimRequest::Part& part, Wakes& wakes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Of growing devices.
  Bytes LentOf(std::span<const LogicalId> devices) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// What the lease of these devices was lent for charges and does not use is free from here on.
  Bytes TakeAllowancesOf(std::span<const LogicalId> devices, Wakes& wakes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// The session is not asked any more.
  void StopTrimming(SessionId session) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ChargeOverhead(Session& session) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ChargeOverhead(CardId card, Overhead& overhead) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// What the sessions of a process that are not draining may use of a card: all that they hold, and a
  /// context.
  Bytes AccountedTo(std::int64_t pid, CardId card) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Reads one card's report, at most every kBackendRetry; calls the backend.
  void ObserveCard(const std::string& uuid);
  /// What each process uses beside chunks and charges.
  std::map<std::int64_t, Bytes> Observe(CardId card, const CardReport& report)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void NoteUncharged(CardId card, const CardReport& report, const std::map<std::int64_t, Bytes>& beside)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RefundOverhead(Session& session, Wakes& wakes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Sessions whose idle memory would come back under the limit of a device.
  std::vector<TrimTable::Holder> LimitHolders(LogicalId logical, SessionId except) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Sessions whose idle memory the card would get back; not what `session` holds of `device`.
  std::vector<TrimTable::Holder> CardHolders(CardId card, LogicalId device, SessionId session) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Asks the next session for what is missing; true while there is one whose answer may help.
  bool AskToTrim(TrimTable::Need& need, std::vector<TrimTable::Holder> holders, Bytes missing, Wakes& wakes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool AskUnderLimit(Waiter& waiter, Bytes missing, Wakes& wakes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Whether the request may wait for idle memory of other sessions; puts its deadline off for that.
  bool MayAsk(Waiter& waiter) const;
  /// Other sessions may have idle memory of the request's card.
  bool MayTrim(const Waiter& waiter) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Asks all sessions that hold memory of a device that is over its limit.
  void AskForExcess(LogicalId logical, Wakes& wakes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// The answer, once its chunks are in the log; otherwise they are taken back.
  GrowAnswer Logged(GrowAnswer answer);
  // broker_unreturned.cc.
  /// What the ledger and the table of chunks say of a card.
  struct CardSums {
    int backend_device = 0;
    Bytes granule;
    Bytes chunks;  // all that exist, but for `coming`
    Bytes coming;  // chunks that the backend dropped and that are not confirmed
    std::set<std::int64_t> suspects;
  };
  CardSums SumsOf(CardId card) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// What the real cards of `chunks`, which are about to be released, report; watches them from here on.
  std::map<CardId, CardReport> BeforeRelease(const std::vector<ChunkId>& chunks);
  /// Makes the results of released chunks UNAVAILABLE for which the card's memory has not risen.
  void DoubtReleased(const std::map<CardId, CardReport>& before, const std::vector<ChunkId>& chunks,
                     std::vector<absl::Status>& results);
  /// The doubted chunks that their cards have by now.
  std::set<ChunkId> LookAtCards();
  void CountUnreturned(ChunkEntry& chunk) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// FAILED_PRECONDITION: the session keeps memory that it gave back, or its lease is stopped.
  absl::Status CheckMayGrow(const Session& session) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // broker_refusal.cc.
  Refusal MakeRefusal(const Device& device, LogicalId id, const RefusalCause& cause) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Refusal RefuseDevice(const DeviceSpec& spec, Bytes guarantee) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string DescribeWaiter(WaiterId id) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Names the turn that holds back a request of this need, or says that the request's own were in vain.
  void AddTurnAdvice(Refusal& refusal, CardId card, Bytes need, int turns) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// What the lease of `spec` has on its card by now.
  Bytes SetAsideBy(const DeviceSpec& spec) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AddHolders(Refusal& refusal, CardId card, LogicalId except) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Bytes Leaving(CardId card) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static RefusalReason BackendReason(const absl::Status& status);

  DeviceMemory& backend_;
  GrantLog& log_;
  const std::shared_ptr<Waker> unconfirmed_waker_;
  const bool leaves_process_;
  const std::chrono::milliseconds max_drain_;
  const std::function<TimePoint()> now_;
  mutable Mutex mutex_;
  CondVar freed_;  // some memory became free
  Ledger ledger_ ABSL_GUARDED_BY(mutex_);
  std::map<CardId, BrokerCard> cards_ ABSL_GUARDED_BY(mutex_);
  std::map<LogicalId, Device> devices_ ABSL_GUARDED_BY(mutex_);
  std::map<SessionId, Session> sessions_ ABSL_GUARDED_BY(mutex_);
  std::set<std::pair<CardId, SessionId>> charging_
      ABSL_GUARDED_BY(mutex_);  // all that have charged something
  std::map<ChunkId, ChunkEntry> chunks_ ABSL_GUARDED_BY(mutex_);
  std::map<GrowId, Waiter> waiters_ ABSL_GUARDED_BY(mutex_);  // those that wait
  // In the queues of their cards; on the stacks of threads that wait, or of `tickets_`.
  std::map<WaiterId, Room*> rooms_ ABSL_GUARDED_BY(mutex_);
  std::map<WaiterId, std::unique_ptr<Ticket>> tickets_ ABSL_GUARDED_BY(mutex_);
  std::map<CardId, CardQueue> queues_ ABSL_GUARDED_BY(mutex_);
  std::map<CardId, TimePoint> served_at_ ABSL_GUARDED_BY(mutex_);
  TrimTable trims_ ABSL_GUARDED_BY(mutex_);
  std::set<ChunkId> unconfirmed_ ABSL_GUARDED_BY(mutex_);
  bool retrying_ ABSL_GUARDED_BY(mutex_) = false;  // a thread is in RetryUnconfirmed
  TimePoint lost_retry_at_ ABSL_GUARDED_BY(mutex_);
  std::map<CardId, CardWatch> watches_ ABSL_GUARDED_BY(mutex_);  // of cards with memory coming back
  std::set<ChunkId> releasing_ ABSL_GUARDED_BY(mutex_);          // real cards: the backend is dropping them
  std::map<CardId, TimePoint> late_looks_ ABSL_GUARDED_BY(mutex_);
  std::map<SessionId, Unreturned> unreturned_ ABSL_GUARDED_BY(mutex_);
  std::map<CardId, TimePoint> observed_at_ ABSL_GUARDED_BY(mutex_);  // by ObserveCard
  std::map<std::pair<std::int64_t, CardId>, Overhead> overheads_ ABSL_GUARDED_BY(mutex_);
  std::map<CardId, std::vector<DeviceMemory::ProcessMemory>> outsiders_ ABSL_GUARDED_BY(mutex_);
  struct Beyond {
    int readings = 0;
    Bytes beside;
  };
  std::map<std::pair<CardId, std::int64_t>, Beyond> uncharged_ ABSL_GUARDED_BY(mutex_);  // by card and pid
  std::map<CardId, std::set<std::int64_t>> listed_ ABSL_GUARDED_BY(mutex_);  // of cards with such processes
  std::set<LeaseKey> stopped_ ABSL_GUARDED_BY(mutex_);
  std::uint64_t last_chunk_ ABSL_GUARDED_BY(mutex_) = 0;
  std::uint64_t last_waiter_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  Counters counters_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_BROKER_BROKER_H_
