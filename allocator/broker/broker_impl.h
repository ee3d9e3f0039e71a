#ifndef LGPU_ALLOCATOR_BROKER_BROKER_IMPL_H_
#define LGPU_ALLOCATOR_BROKER_BROKER_IMPL_H_

#include "allocator/broker/broker.h"
#include "allocator/broker/broker_core.h"
#include "allocator/broker/card_watch.h"
#include "allocator/broker/waiter.h"

namespace lgpu {

/// A BrokerImpl does the calls of a Broker.
class BrokerImpl {
 public:
  using TimePoint = Broker::TimePoint;
  using Options = Broker::Options;
  using SessionSpec = Broker::SessionSpec;
  using Queued = Broker::Queued;
  using CardInfo = Broker::CardInfo;
  using DeviceSpec = Broker::DeviceSpec;
  using DeviceInfo = Broker::DeviceInfo;
  using RoomSpec = Broker::RoomSpec;
  using RoomView = Broker::RoomView;
  using RestoredChunk = Broker::RestoredChunk;
  using RestoredCharge = Broker::RestoredCharge;
  using GrowSpec = Broker::GrowSpec;
  using Lent = Broker::Lent;
  using GrowAnswer = Broker::GrowAnswer;
  using ChargeSpec = Broker::ChargeSpec;
  using Charged = Broker::Charged;
  using TrimRequest = Broker::TrimRequest;
  using IgnoredTrim = Broker::IgnoredTrim;
  using TrimRecord = Broker::TrimRecord;
  using Unreturned = Broker::Unreturned;
  using Uncharged = Broker::Uncharged;
  using Overheads = Broker::Overheads;
  using Counters = Broker::Counters;

  BrokerImpl(DeviceMemory& backend, GrantLog& log, const Options& options) : core_(backend, log, options) {}
  ~BrokerImpl();
  absl::Status AddCards(const Options& options);
  std::vector<CardInfo> Cards() const;
  std::size_t cards() const;
  absl::StatusOr<LogicalId> AddDevice(const DeviceSpec& spec, TimePoint deadline);
  absl::Status ResizeDevice(LogicalId device, Bytes limit, Bytes guarantee, TimePoint deadline);
  void RemoveDevice(LogicalId device);
  std::optional<DeviceInfo> Find(LogicalId device) const;
  WaiterId QueueRoom(const RoomSpec& spec);
  RoomView LookAtRoom(WaiterId id);
  void LeaveRoom(WaiterId id);
  void AddSession(SessionId session, SessionSpec spec);
  void AttachSession(SessionId session, LeaseKey lease);
  void RemoveSession(SessionId session);
  Bytes Held(SessionId session) const;
  absl::Status RestoreDevice(LogicalId device, const DeviceSpec& spec);
  absl::Status RestoreSession(SessionId session, std::int64_t pid, std::shared_ptr<Waker> waker,
                              LeaseKey lease, std::span<const RestoredChunk> chunks,
                              std::span<const RestoredCharge> charges = {});
  void ChargeRestoredOverhead();
  void SkipIds(LogicalId device, ChunkId chunk);
  absl::Status MakeMissing(LogicalId device);
  void StartAttesting(SessionId session, SessionSpec spec);
  absl::Status Attest(SessionId session, LogicalId device, const Chunk& chunk, UniqueFd fd);
  absl::Status AttestCharge(SessionId session, const std::string& card_uuid, Bytes bytes);
  void FinishAttesting(SessionId session);
  void GoAbsent(SessionId session);
  void SetForeign(CardId card, Bytes bytes);
  std::vector<std::uint64_t> Identities(CardId card) const;
  GrowAnswer Grow(const GrowSpec& spec);
  GrowAnswer Continue(GrowId grow);
  void ShareAllowances(SessionId session, std::shared_ptr<Allowances> allowances);
  GrowAnswer ChargeCard(const ChargeSpec& spec);
  absl::Status Uncharge(SessionId session, const std::string& card_uuid, Bytes bytes);
  std::vector<Charged> ChargesOf(SessionId session) const;
  void EndCharges(const std::vector<SessionId>& sessions);
  std::set<SessionId> StillListed(const std::vector<SessionId>& sessions);
  void LowerCharges(SessionId session, const std::map<std::string, Bytes>& by_card);
  absl::StatusOr<MemoryHandle> MemoryOf(SessionId session, ChunkId chunk) const;
  absl::StatusOr<ExportedFd> Export(SessionId session, ChunkId chunk);
  absl::Status ExplainExport(LogicalId device, Bytes asked, const absl::Status& status) const;
  absl::Status Return(SessionId session, LogicalId device, std::span<const ChunkId> chunks);
  void ReturnAll(SessionId session);
  void StartDraining(SessionId session);
  std::vector<SessionId> FinishDraining(const std::vector<SessionId>& sessions);
  bool RetryUnconfirmed();
  std::vector<TrimOrder> TakeTrims(SessionId session);
  absl::Status Trimmed(SessionId session, TrimId trim, bool pending);
  TrimRequest StartTrim(std::span<const LogicalId> devices);
  void ContinueTrim(TrimRequest& request);
  std::vector<IgnoredTrim> TakeIgnoredTrims();
  TrimRecord TrimsOf(SessionId session) const;
  Bytes UnreturnedBy(SessionId session) const;
  std::vector<Unreturned> TakeUnreturned();
  void ObserveCards();
  std::vector<Uncharged> UnchargedUse() const;
  void SetStopped(LeaseKey lease, bool is_stopped);
  Overheads overheads() const;
  void StopWaiting();
  Counters counters() const;
  absl::Status CheckInvariants() const;

 private:
  // Of a process on a card: its sessions there share one context.
  struct Overhead {
    int sessions = 0;
    Bytes wanted;   // the allowance, and what was measured as soon as it is
    Bytes charged;  // as far as there was room
  };
  /// A Room for which no thread waits.
  struct Ticket {
    std::function<absl::Status()> attempt;
    std::optional<Room> room;
    LogicalId set_aside;  // a device that no lease has, with the bytes as its
                          // guarantee
    TimePoint next_look = {}, next_text = {};
  };
  /// What a request in a card's queue waits for.
  struct Wish {
    Bytes need;              // of the card's free memory
    TrimTable::Need& trims;  // of the request
    LogicalId device;        // its own memory there is no help to it
    SessionId session;
    bool patient = false;  // it waits for holders, not only for memory that is
                           // idle or on its way back
  };
  /// Memory that requests in a card's queue may hope for.
  struct Reach {
    Bytes free;
    Bytes leaving;
    Bytes others;       // beyond guarantees, of holders that do not wait themselves
    bool idle = false;  // some sessions can be asked for idle memory
  };
  /// What has to be done for a request without the lock: chunks that are
  /// charged to be made, or the spare chunks to be filled up (`sizes` is
  /// empty).
  struct Making {
    std::vector<Bytes> sizes;
    int backend_device = 0;
  };
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
  /// While memory drains, a backend that had less than the ledger said is asked
  /// again this often.
  static constexpr std::chrono::milliseconds kBackendRetry{20};
  /// Spare chunks that made room for a charge are made again this long after
  /// the last one.
  static constexpr std::chrono::seconds kBallastRest{1};

  // broker.cc: requests.
  absl::Status CheckGrow(const GrowSpec& spec) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  void Charge(GrowId id, Waiter& waiter) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  void ChargeLedger(GrowId id, Waiter& waiter) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  void TakeSpare(GrowId id, Waiter& waiter) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  /// Spare chunks that are enough for the request are there or being made. It
  /// is served from them even with timeout 0.
  bool IsBeingMade(const Waiter& waiter) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  std::vector<ChunkId> PickSpare(const DeviceEntry& device, Bytes at_least, Bytes wanted, Bytes room) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  void Refuse(Waiter& waiter, RefusalCause cause) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  void LeaveQueues(GrowId id, Waiter& waiter) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  void DropWaiters(SessionId session) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  static bool IsQueued(const Waiter& waiter);
  /// Waits for the backend, and may not ask it again yet.
  static bool IsPutOff(const Waiter& waiter, TimePoint now);
  void Forget(GrowId id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  /// From here on it waits: queues, deadlocks and the end of its session find
  /// it.
  void Park(GrowId id, Waiter waiter) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  /// A request that waits looks again for others' idle memory, if it is time
  /// to.
  void LookForIdle(GrowId id, Waiter& waiter) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  /// Charges it, or lets it wait, and says what is to do about it.
  std::optional<Making> Place(GrowId id, Waiter& mine, GrowAnswer& answer)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  /// Takes a parked request out if it waits no more; else says in `answer` how
  /// long it does.
  bool TakeIfSettled(GrowId id, Waiter& mine, GrowAnswer& answer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  /// The deadline of a request in a queue has passed.
  void RefuseLate(GrowId id, Waiter& waiter) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  /// When the session of a request in a queue is to call Continue.
  TimePoint NextLook(GrowId id, const Waiter& waiter, TimePoint now) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  /// The answer of a request that does not wait, or what has to be made for it.
  std::optional<Making> Conclude(Waiter& mine, GrowAnswer& answer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);

  // broker_charges.cc.
  /// The logical devices of a lease on a card, in their order.
  std::vector<LogicalId> DevicesOn(LeaseKey lease, CardId card) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  /// Of the card among those of the lease, as its devices name them first.
  std::size_t IndexOf(LeaseKey lease, CardId card) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  absl::StatusOr<Waiter> CheckCharge(const ChargeSpec& spec) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  Ledger::Split SplitOf(const Waiter& waiter) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  /// How much of the card's free memory the request would take.
  Bytes NeedOf(const Waiter& waiter) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  void ChargeSplit(GrowId id, Waiter& waiter) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  /// The session has the bytes from here on, in `parts`.
  void Book(SessionId session, CardId card, Bytes bytes,
            const std::vector<std::pair<LogicalId, Bytes>>& parts) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  /// Gives granules back to the ledger that `lent` needs no more; whether there
  /// were some.
  bool FitCharge(SessionId id, SessionEntry& session, CardId card) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  void DropHeld(SessionId id, SessionEntry& session, LogicalId device, Bytes bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  /// Ends what is beyond `rest` of a charge that is leaving.
  void EndCharge(SessionId id, SessionEntry& session, CardId card, Bytes rest)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  void LogCharge(SessionId id, CardCharge& charge) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  /// What programs have not used of what was lent to them, on a card, of one
  /// lease or (none) of all; whether the ledger has granules back.
  bool TakeAllowances(CardId card, LeaseKey lease) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  bool TakeAllowance(SessionId id, SessionEntry& session, CardId card)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  /// A granted charge: what is to be added to the program's words.
  Lent Lend(const Waiter& waiter) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  Bytes AllowanceOf(LeaseKey lease, CardId card) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  void UnchargeLocked(SessionId session, CardId card, Bytes bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  GrowAnswer LoggedCharge(GrowAnswer answer);
  void StartLeavingCharges(SessionEntry& session, std::set<CardId>& touched)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  /// Spare chunks of preallocated devices that make room for `bytes`; they are
  /// leaving from here on. Empty: there are not enough.
  std::vector<ChunkId> TakeBallast(const std::vector<LogicalId>& devices, Bytes bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  GrowAnswer FreeBallast(GrowId id, Waiter mine);
  Refusal MakeChargeRefusal(const Waiter& waiter, RefusalCause cause) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  absl::Status CheckCharges() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  std::optional<CardId> FindCard(const std::string& uuid) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);

  // broker_queue.cc: requests that wait for a card.
  /// Memory of a card or under a limit may have become free, or a request
  /// waits: serves the requests that can be served, moves the card's turn on,
  /// and refuses requests that nothing can serve.
  void Serve(CardId card) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  void GrantQueued(CardId card) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  /// Each returns whether something changed.
  bool GrantWaiter(WaiterId id, CardQueue& queue) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  bool MoveTurnOn(CardId card) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  void RetryUnderLimits(CardId card) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  Wish WishOf(WaiterId id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  Reach ReachOf(CardId card) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  bool MayBeServed(WaiterId id, CardId card, const Reach& reach) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  /// Asks sessions for idle memory that the request with the turn lacks.
  void AskForCard(WaiterId id, CardId card) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  /// The request waited only for memory that is idle or on its way back, and no
  /// more comes.
  void GiveUp(WaiterId id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  /// The youngest request, by a session that holds memory of the card, if all
  /// that do wait for the card.
  std::optional<WaiterId> DeadlockVictim(CardId card) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  bool IsHeldBack(LogicalId device, Bytes bytes) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  std::vector<Queued> QueueOf(CardId card) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  absl::Status CheckQueues() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);

  // broker_rooms.cc: guarantees that wait to be set aside.
  /// Returns whether something changed.
  bool TryRoom(WaiterId id, CardQueue& queue) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  void EndRoom(WaiterId id, Room& room) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  /// Sets a guarantee of this size aside by `attempt`, in the queue of the
  /// card. Waits for memory that is leaving or idle, and for turns of other
  /// requests.
  absl::Status MakeRoom(CardId card, const std::string& user, Bytes guarantee, TimePoint deadline,
                        absl::FunctionRef<absl::Status()> attempt) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  /// Serve; gives the lock up meanwhile.
  void ServeUnlocked(CardId card) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  std::string DescribeRoom(const Room& room, WaiterId id, WaiterId before) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  void ForgetSetAside(Ticket& ticket) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  /// Gives the guarantee of a device that is being made back to it out of its
  /// room; false: none is there.
  bool TakeFromRoom(const DeviceSpec& spec, Bytes guarantee) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);

  // broker_chunks.cc, broker_spare.cc: the table of chunks and the backend.
  /// Makes the chunks of a charged request.
  GrowAnswer Materialise(GrowId id, Waiter mine, const Making& making);
  GrowAnswer Make(GrowId id, Waiter mine, const Making& making);
  /// What the limit of a preallocated device has room for; the guarantee holds
  /// it ready.
  Bytes ChargeRoom(LogicalId id, DeviceEntry& device) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  /// Makes spare chunks for memory that is charged already. `before`: on an error the device has this size
  /// again.
  absl::Status MakeSpare(LogicalId device, Bytes bytes, TimePoint deadline, std::vector<Bytes> sizes = {},
                         const Ledger::LogicalView* before = nullptr);
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
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  void GiveTo(SessionId session, ChunkId id, ChunkEntry& chunk) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  void TakeFromSession(ChunkId id, ChunkEntry& chunk) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  /// Spare chunks of at most `at_most` in all; they are leaving from here on.
  std::vector<ChunkId> TakeSurplus(DeviceEntry& device, Bytes at_most)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  static std::vector<ChunkId> AllSpare(const DeviceEntry& device);
  /// The session has these spare chunks from here on.
  std::vector<Chunk> GrantSpare(SessionId session, const std::vector<ChunkId>& spare)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  /// The session never sees the chunks that the request was granted. Returns
  /// those that are leaving.
  std::vector<ChunkId> UndoGrant(const Waiter& mine) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  /// Spare chunks that the device may not keep; they are leaving from here on.
  std::vector<ChunkId> TakeExcessSpare(LogicalId id, DeviceEntry& device)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  /// Spare chunks beyond the limit, and the one that is partly beyond it.
  std::vector<ChunkId> TakeBeyondLimit(LogicalId id, DeviceEntry& device)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  void TakeFromSpare(ChunkId id, const ChunkEntry& chunk) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  /// A preallocated device has its new limit: charges what it lacks, which
  /// MakeSpare is to make. Nothing where memory of its own that is still
  /// leaving stands in the way.
  std::optional<Bytes> ChargeMissing(LogicalId id, DeviceEntry& device)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  void ResizeBack(LogicalId id, const Ledger::LogicalView& before);
  void MakeItSpare(ChunkId id, ChunkEntry& chunk) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  static std::vector<ChunkId> ChunksOf(const SessionEntry& session);
  void StartLeaving(ChunkEntry& chunk, ChunkEntry::State state) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  struct Ended {
    std::vector<ChunkId> leaving;
    std::set<CardId> cards;
  };
  void EndDraining(const SessionEntry& session, Ended& ended) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  /// Frees chunks that are leaving; what is not confirmed is left for
  /// RetryUnconfirmed.
  void Reclaim(const std::vector<ChunkId>& chunks);
  /// Chunks that preallocated devices lack, which are charged already.
  using MissingChunks = std::map<LogicalId, std::vector<Bytes>>;
  void MakeAgain(const MissingChunks& missing);
  /// A session gives the chunk back.
  void GiveBack(ChunkEntry& chunk, ChunkEntry::State state) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  void Settle(ChunkId id, const absl::Status& result, MissingChunks& missing)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  /// Charges what the limit has room for of a chunk that is made again.
  void ChargeAgain(LogicalId device, Bytes bytes, MissingChunks& missing)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  bool LooksFree(const ChunkEntry& chunk);
  /// Asks the backend about all those of `chunks` that were an earlier
  /// daemon's: what it said of each.
  std::map<ChunkId, absl::Status> ReclaimLost(const std::vector<ChunkId>& chunks);
  void ForgetIfEmpty(LogicalId device) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  Bytes LeavingAnywhere() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);

  // broker_trims.cc.
  void AskPart(TrimRequest::Asked& asked, TrimRequest::Part& part) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  /// Of growing devices.
  Bytes LentOf(std::span<const LogicalId> devices) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  /// What the lease of these devices was lent for charges and does not use is
  /// free from here on.
  Bytes TakeAllowancesOf(std::span<const LogicalId> devices) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  /// The session is not asked any more.
  void StopTrimming(SessionId session) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  void ChargeOverhead(SessionEntry& session) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  void ChargeOverhead(CardId card, Overhead& overhead) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  /// What the sessions of a process that are not draining may use of a card:
  /// all that they hold, and a context.
  Bytes AccountedTo(std::int64_t pid, CardId card) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  /// Reads one card's report, at most every kBackendRetry; calls the backend.
  void ObserveCard(const std::string& uuid);
  /// What each process uses beside chunks and charges.
  std::map<std::int64_t, Bytes> Observe(CardId card, const CardReport& report)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  void NoteUncharged(CardId card, const CardReport& report, const std::map<std::int64_t, Bytes>& beside)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  void RefundOverhead(SessionEntry& session) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  /// Sessions whose idle memory would come back under the limit of a device.
  std::vector<TrimTable::Holder> LimitHolders(LogicalId logical, SessionId except) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  /// Sessions whose idle memory the card would get back; not what `session`
  /// holds of `device`.
  std::vector<TrimTable::Holder> CardHolders(CardId card, LogicalId device, SessionId session) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  /// Asks the next session for what is missing; true while there is one whose
  /// answer may help.
  bool AskToTrim(TrimTable::Need& need, std::vector<TrimTable::Holder> holders, Bytes missing)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  bool AskUnderLimit(Waiter& waiter, Bytes missing) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  /// Whether the request may wait for idle memory of other sessions; puts its
  /// deadline off for that.
  bool MayAsk(Waiter& waiter) const;
  /// Other sessions may have idle memory of the request's card.
  bool MayTrim(const Waiter& waiter) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  /// Asks all sessions that hold memory of a device that is over its limit.
  void AskForExcess(LogicalId logical) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
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
  CardSums SumsOf(CardId card) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  /// What the real cards of `chunks`, which are about to be released, report;
  /// watches them from here on.
  std::map<CardId, CardReport> BeforeRelease(const std::vector<ChunkId>& chunks);
  /// Makes the results of released chunks UNAVAILABLE for which the card's
  /// memory has not risen.
  void DoubtReleased(const std::map<CardId, CardReport>& before, const std::vector<ChunkId>& chunks,
                     std::vector<absl::Status>& results);
  /// The doubted chunks that their cards have by now.
  std::set<ChunkId> LookAtCards();
  void CountUnreturned(ChunkEntry& chunk) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  /// FAILED_PRECONDITION: the session keeps memory that it gave back, or its
  /// lease is stopped.
  absl::Status CheckMayGrow(const SessionEntry& session) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);

  // broker_refusal.cc.
  Refusal MakeRefusal(const DeviceEntry& device, LogicalId id, const RefusalCause& cause) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  Refusal RefuseDevice(const DeviceSpec& spec, Bytes guarantee) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  std::string DescribeWaiter(WaiterId id) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  /// Names the turn that holds back a request of this need, or says that the
  /// request's own were in vain.
  void AddTurnAdvice(Refusal& refusal, CardId card, Bytes need, int turns) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  /// What the lease of `spec` has on its card by now.
  Bytes SetAsideBy(const DeviceSpec& spec) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  void AddHolders(Refusal& refusal, CardId card, LogicalId except) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  Bytes Leaving(CardId card) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  static RefusalReason BackendReason(const absl::Status& status);

  BrokerCore core_;
  std::map<WaiterId, std::unique_ptr<Ticket>> tickets_ ABSL_GUARDED_BY(core_.mutex);
  std::map<CardId, TimePoint> served_at_ ABSL_GUARDED_BY(core_.mutex);
  TrimTable trims_ ABSL_GUARDED_BY(core_.mutex);
  bool retrying_ ABSL_GUARDED_BY(core_.mutex) = false;  // a thread is in RetryUnconfirmed
  TimePoint lost_retry_at_ ABSL_GUARDED_BY(core_.mutex);
  std::map<CardId, CardWatch> watches_ ABSL_GUARDED_BY(core_.mutex);  // of cards with memory coming back
  std::set<ChunkId> releasing_ ABSL_GUARDED_BY(core_.mutex);  // real cards: the backend is dropping them
  std::map<CardId, TimePoint> late_looks_ ABSL_GUARDED_BY(core_.mutex);
  std::map<SessionId, Unreturned> unreturned_ ABSL_GUARDED_BY(core_.mutex);
  std::map<CardId, TimePoint> observed_at_ ABSL_GUARDED_BY(core_.mutex);  // by ObserveCard
  std::map<std::pair<std::int64_t, CardId>, Overhead> overheads_ ABSL_GUARDED_BY(core_.mutex);
  std::map<CardId, std::vector<DeviceMemory::ProcessMemory>> outsiders_ ABSL_GUARDED_BY(core_.mutex);
  struct Beyond {
    int readings = 0;
    Bytes beside;
  };
  std::map<std::pair<CardId, std::int64_t>, Beyond> uncharged_
      ABSL_GUARDED_BY(core_.mutex);  // by card and pid
  std::map<CardId, std::set<std::int64_t>> listed_
      ABSL_GUARDED_BY(core_.mutex);  // of cards with such processes
};

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_BROKER_BROKER_IMPL_H_
