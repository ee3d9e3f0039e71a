#ifndef LGPU_ALLOCATOR_BROKER_BROKER_TABLES_H_
#define LGPU_ALLOCATOR_BROKER_BROKER_TABLES_H_

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
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "allocator/broker/broker.h"
#include "base/mutex.h"

namespace lgpu {

/// Of a chunk that exists.
struct ChunkEntry {
  enum class State { kGranted, kReturning, kDraining, kSpare };
  LogicalId device;
  SessionId session;  // none: no session ever had it
  Bytes bytes;
  MemoryHandle memory;
  State state = State::kGranted;
  bool reference_gone = false;        // the backend dropped it but could not confirm
  std::uint64_t identity = 0;         // of the memory, as the backend knows it
  bool lost = false;                  // an earlier daemon's: there is no reference to it here
  bool attested = false;              // its session said that it holds it
  bool unreturned = false;            // the card does not have it back, for longer than a driver takes
  bool made_again = false;            // leaving: the preallocated device gets empty chunks in its place
  Broker::TimePoint dropped_at = {};  // with `reference_gone`
};

/// What is known of a session's release hook, or of a lease that was suspended for others.
struct ReleaseRecord {
  Broker::TimePoint rests_until = {};  // it is not asked before
  int in_vain = 0;                     // asks in a row that gave nothing
  Broker::TimePoint asked_at = {};     // last
  Broker::TimePoint::duration took{};  // the last one that ended well; of a suspension: with the way back
  Broker::TimePoint runs_since = {};   // of a preemptible lease: it was made, or resumed last
};

struct DeviceEntry {
  Broker::DeviceSpec spec;  // as it was made: the ledger has the limit and the guarantee
  Bytes booked;             // in the ledger, but no chunk yet
  Bytes claimed;            // by requests that chunks are being made for
  // Of preallocated devices, by size, so that a pick looks only at what it takes. No set is empty.
  std::map<Bytes, std::set<ChunkId>, std::greater<>> spare;
  Bytes spare_bytes;
  Bytes coming_again;  // leaving, and made again as the limit allows
  std::map<SessionId, Bytes> held_by;
  std::map<SessionId, Bytes> leaving_by;  // chunks: part of held_by
  std::deque<WaiterId> limit_waiters;
  bool removed = false;
  bool is_aside_for_preemptible = false;  // of a request, as PreemptibleLeases::CanBeTakenBack tells
  Bytes lent;  // charges of all sessions: part of what the ledger has granted, or leaving
  std::optional<Broker::TimePoint> last_use = {};  // of its lease's programs; none: not known
  std::chrono::milliseconds idle_after{};          // as in Broker::LastUse
  Broker::TimePoint last_charge = {};  // of a preallocated device: chunks are made again some time after
  ReleaseRecord preempted = {};        // of a preemptible lease: its first device has it
};

/// What a session of a suspended lease had charged of a card, and is to have again: no account has it.
struct ParkedCharge {
  Bytes lent;
  std::map<LogicalId, Bytes> held;  // as in CardCharge when it was parked
};

/// What a session has charged of a card.
struct CardCharge {
  std::size_t index = 0;              // of the card in its lease
  Bytes lent;                         // to the program: what it has charged, and what is free in its word
  std::map<LogicalId, Bytes> held;    // in the ledger: `lent` in whole granules. No entry is zero
  std::map<LogicalId, Bytes> logged;  // the most that the log was told
  Bytes attested;                     // by a session that is coming back
  bool leaving = false;               // the session is draining
  ParkedCharge parked = {};           // beside `lent`

  Bytes HeldInAll() const;
};

/// A lease whose programs are being suspended, are suspended, or are being resumed: its requests wait.
struct Suspension {
  bool is_parked = false;                 // its memory is in no account
  bool was_parked = false;                // or was, since it began
  bool has_failed = false;                // it is parked for good
  bool is_own = false;                    // its program moves itself, and keeps its contexts on the cards
  bool keeps_room = false;                // while it is parked, for others: as in KeptRoom
  std::map<CardId, Bytes> held_before;    // of a program that moves itself: KeptRoom keeps no more
  std::set<SessionId> sessions;           // that had memory at its begin: their processes are moved
  std::map<LogicalId, Bytes> guarantees;  // while it is parked: of its devices, which have none then
  // Of a program that moves itself by order: what it needs of each device to come back. From TakeBack to End
  // its devices' guarantees are as much, and `after` what they are then.
  std::map<LogicalId, Bytes> needs;
  std::map<LogicalId, Bytes> after;
  /// Its program takes its memory by itself, of what is guaranteed for it now.
  bool comes_back_by_itself() const { return !is_parked && !after.empty(); }
  /// The same, and the session is that program's.
  bool BringsBackByItself(SessionId session) const {
    return comes_back_by_itself() && sessions.contains(session);
  }
  // While it is parked: what its processes had of each card beside their charges.
  std::map<std::pair<CardId, std::int64_t>, Bytes> overheads;
};

struct SessionEntry {
  std::int64_t pid = 0;
  std::shared_ptr<Waker> waker;
  std::shared_ptr<Allowances> allowances;  // none: no program shares them now
  std::map<CardId, CardCharge> charges;
  bool trims = false;
  bool trims_when_back = false;  // as soon as it has told what it holds
  bool waits_longer = false;     // as in SessionSpec
  bool runs_release = false;     // as in SessionSpec, until it ends
  bool suspends_itself = false;  // as in SessionSpec
  ReleaseRecord release;
  LeaseKey lease;
  absl::flat_hash_set<ChunkId> chunks;
  Bytes held;
  Bytes returned;    // by Return, of growing devices, in all
  Bytes unreturned;  // part of held
  std::uint64_t trims_ignored = 0;
  Broker::TimePoint ignored_told = {};  // when TakeIgnoredTrims named it last
  std::set<CardId> on_cards;            // where its process's overhead is charged for it too
  std::set<WaiterId> waiting;

  /// In the order of their ids, so that what happens to them is the same every time.
  std::vector<ChunkId> Chunks() const;
};

/// BrokerTables are the state that the parts of one Broker share: the ledger, and a table for each kind of
/// thing that the ledger's bytes belong to. The parts change them; here are look-ups.
///
/// Not thread-safe: the broker's lock guards them (BrokerCore). No call blocks or touches the backend.
struct BrokerTables {
  using TimePoint = Broker::TimePoint;
  using Wakes = std::vector<std::shared_ptr<Waker>>;

  /// While memory drains, a backend that had less than the ledger said is asked again this often.
  static constexpr std::chrono::milliseconds kBackendRetry{20};
  /// Spare chunks that made room for a charge are made again this long after the last one.
  static constexpr std::chrono::seconds kBallastRest{1};

  BrokerTables(GrantLog& grant_log, const Broker::Options& options)
      : log(grant_log),
        unconfirmed_waker(options.unconfirmed_waker),
        preempt_waker(options.preempt_waker),
        now(options.clock) {}
  absl::Status AddCards(const Broker::Options& options);

  GrantLog& log;
  const std::shared_ptr<Waker> unconfirmed_waker;
  const std::shared_ptr<Waker> preempt_waker;
  const std::function<TimePoint()> now;
  Wakes wakes;  // woken as soon as the lock is given up
  Broker::Counters counters;

  Ledger ledger;
  std::map<CardId, BrokerCard> cards;
  std::map<LogicalId, DeviceEntry> devices;
  std::map<SessionId, SessionEntry> sessions;
  std::map<ChunkId, ChunkEntry> chunks;
  std::set<ChunkId> unconfirmed;                    // chunks that the backend did not confirm free
  std::set<std::pair<CardId, SessionId>> charging;  // all that have charged something
  std::set<LeaseKey> stopped;                       // leases that get no more memory
  std::map<LeaseKey, Suspension> suspensions;       // by lease
  std::map<CardId, TimePoint> observed_at;          // by CardObserver::ObserveCard
  std::uint64_t last_chunk = 0;

  SessionEntry* FindSession(SessionId id);
  std::optional<CardId> FindCard(const std::string& uuid) const;
  CardId CardOf(LogicalId device) const { return devices.at(device).spec.card; }
  CardId CardOf(const ChunkEntry& chunk) const { return CardOf(chunk.device); }
  Bytes GranuleOf(CardId card) const { return cards.at(card).device.granularity; }
  /// In whole granules.
  Bytes LimitOf(LogicalId device) const;
  /// All chunks that exist: no chunk was made yet for what is booked, and none will be for what is lent.
  Bytes InChunks(CardId card) const;
  /// What no chunk of a preallocated device was made for, of what its limit has room for.
  Bytes LackOf(LogicalId device) const { return SaturatingSub(LimitOf(device), ledger.View(device).held()); }
  /// The logical devices of a lease on a card, in their order.
  std::vector<LogicalId> DevicesOn(LeaseKey lease, CardId card) const;
  /// Of the card among those of the lease, as its devices name them first.
  std::size_t IndexOf(LeaseKey lease, CardId card) const;
  std::vector<SessionId> SessionsOf(LeaseKey lease) const;
  /// Empty: the lease has no devices.
  std::string NameOf(LeaseKey lease) const;
  /// How suspensions of a preemptible lease went; null: the lease is not preemptible.
  ReleaseRecord* FindPreempted(LeaseKey lease);
  /// The sessions that have charged something of the card; of one lease, or (none) of all.
  std::vector<SessionId> ChargingOn(CardId card, LeaseKey lease = {}) const;
  /// What the growing ones of these devices have lent for charges.
  Bytes LentOf(std::span<const LogicalId> devices) const;
  Bytes Leaving(CardId card = {}) const;  // none: of all cards
  /// Leaving memory that the card's free memory rises by: what is beyond guarantees.
  Bytes ComingBack(CardId card) const;

  void Wake(SessionId session) { wakes.push_back(sessions.at(session).waker); }
  /// RetryUnconfirmed asks the backend about the chunk.
  void NoteUnconfirmed(ChunkId chunk);
  /// A device that was removed is gone with the last of its memory.
  void ForgetIfEmpty(LogicalId device);
  /// FAILED_PRECONDITION: the session keeps memory that it gave back, or its lease is stopped.
  absl::Status CheckMayGrow(const SessionEntry& session) const;
  /// The ledger's invariants, and that the tables agree with it.
  absl::Status CheckInvariants() const;

 private:
  absl::Status CheckCharges() const;
};

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_BROKER_BROKER_TABLES_H_
