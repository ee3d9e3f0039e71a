#ifndef LGPU_ALLOCATOR_BROKER_GIVING_WAY_H_
#define LGPU_ALLOCATOR_BROKER_GIVING_WAY_H_

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "allocator/broker/admission.h"
#include "allocator/broker/asker_accounts.h"
#include "allocator/broker/broker_tables.h"
#include "allocator/broker/guarantees.h"
#include "allocator/broker/preemptible_leases.h"
#include "allocator/broker/release_order.h"
#include "allocator/broker/trim_requests.h"
#include "allocator/broker/waiting_requests.h"

namespace lgpu {

/// GivingWay asks idle leases to give memory up for a request that waits for their card, and sets what they
/// give aside for that request alone.
///
/// A lease can be asked while one of its sessions runs a release hook; those of several take turns. And a
/// preemptible lease can be suspended for a request that PreemptibleLeases::MayPreempt. It is asked if it has
/// been idle for as long as its owner said, or, where the owner said nothing, for kIdleAfter and for twice
/// the time that it took before; to run its hook if none of its requests waits, and at most once for one
/// request. A lease that waits itself can be suspended: two that wait for each other are served so. A lease
/// that gave nothing rests for a minute, and for twice as long each time after that. Users whose programs
/// gave such requests up make no lease give way for a while (AskerAccounts).
///
/// A lease that gives way at work is suspended then, too, when it has run for `min_run`, or for ten times as
/// long as its moves take, whichever is longer. So each request is served in the end, and at most one part
/// in eleven of a program's time is spent on moves: an idle lease that comes back is asked again only after
/// it was idle for twice as long as its moves take.
///
/// The head of a card is its one request for which leases have been asked and may still give. It is the first
/// in HeadOrder that trims do not serve and that the leases that can be asked suffice for; none overtakes one
/// that is sure to be served. So a user waits for at most one head of each other user. Those that
/// have been idle longest are asked, hooks first, without those that are not needed; where all of them do not
/// suffice, none is asked. The head waits until `give_way_wait` after it came, as long as a lease may give.
/// Only what those leases give is set aside for it: the queue and its turns have the rest of the card.
///
/// Not thread-safe: the broker's lock guards it. What it is made of outlives it.
class GivingWay {
 public:
  static constexpr std::chrono::seconds kIdleAfter{1};
  /// At the least: uses are known to the second, and the broker is told them once a second.
  static constexpr std::chrono::seconds kIdleForSuspension{2};
  /// Memory may come back so long after the hook has ended.
  static constexpr std::chrono::seconds kSettle{5};
  static constexpr std::chrono::seconds kFirstRest{60};
  /// How often it looks for leases that can be asked while a request waits and there are some.
  static constexpr std::chrono::milliseconds kLookEvery{100};

  GivingWay(BrokerTables& tables, WaitingRequests& waiting, Guarantees& guarantees, TrimRequests& trims,
            Admission& admission, PreemptibleLeases& preemptible)
      : tables_(tables),
        waiting_(waiting),
        guarantees_(guarantees),
        trims_(trims),
        admission_(admission),
        preemptible_(preemptible) {}

  // For the scheduler.
  /// Sets aside what leases gave since the last call. To be called before other requests are served.
  void Collect(CardId card);
  /// Ends asks that are over, and asks leases for the next head. Returns whether memory became free.
  bool MoveOn(CardId card);
  bool HasHead(CardId card) const;
  /// Makes those requests wait longer that leases may be suspended for later: as long as it takes where
  /// leases that give way at work suffice, else until `give_way_wait` after they came. Returns whether there
  /// are any.
  bool WaitForLeases(CardId card);
  /// Whether leases give way for the request.
  bool IsHead(WaiterId id) const { return HasAsk(id); }
  /// The account of a request that has left its queue is closed; `is_served`: its user does not pay.
  void Close(WaiterId id, bool is_served);
  /// When time alone gives MoveOn something to do, if that was called at `since`.
  Broker::TimePoint NextChange(CardId card, Broker::TimePoint since) const;

  // For sessions. Without a session: for lgpud's Preempter, which has leases suspended.
  std::vector<ReleaseOrder> TakeOrders(SessionId session);
  /// INVALID_ARGUMENT: the session was never asked this. Returns the card, for the scheduler, while it
  /// matters.
  absl::StatusOr<std::optional<CardId>> Answer(SessionId session, ReleaseId id, ReleaseOutcome outcome);
  std::vector<GivingWayNews> TakeNews();
  /// The leases that have been asked and have not answered yet.
  std::vector<GivingWayView> Views() const;
  GivingWayCounters counters() const;

 private:
  struct Ask {
    WaiterId head;
    CardId card;
    LeaseKey lease;
    std::string name;  // of the lease
    SessionId runner;  // of its hook; none: it is suspended
    bool at_work = false;
    Bytes lacking;
    Bytes before;  // as YieldOf told
    Bytes given;
    Bytes set_aside;  // part of it
    Broker::TimePoint asked_at, ends;
    GivingWayView view = {};
    bool is_sent = false, is_answered = false;
    bool counts = true;  // an ask that the lease was too busy for is no reason to rest
  };
  struct Candidate {
    LeaseKey lease;
    SessionId runner;  // as in Ask
    Bytes yield;
    bool at_work;             // as in ReleaseOrder
    Broker::TimePoint since;  // it is idle, or at work
  };
  using Asks = std::map<ReleaseId, Ask>;

  bool CanAnyGive() const;
  Bytes SurplusOf(LeaseKey lease, CardId card) const;
  Bytes YieldOf(const Ask& ask) const;
  /// The time that it has taken by now, with the way back.
  Broker::TimePoint::duration CostOf(const Ask& ask) const;
  /// Null: the hook's session, or the preemptible lease, is gone.
  ReleaseRecord* FindRecord(const Ask& ask);
  /// The request still waits for the card.
  Waiter* HeadOf(const Ask& ask) const;
  bool HasAsk(WaiterId head) const;
  bool IsOver(const Ask& ask) const;
  /// The lease is being suspended.
  bool IsMoving(const Ask& ask) const;
  /// What is on its way out is waited for, however long it takes.
  void AwaitMove(Ask& ask);
  /// The lease has no more to do with its head. Returns whether memory became free.
  bool End(Asks::iterator ask);
  bool MayBeHead(const Waiter& waiter) const;
  void AskNext(CardId card);
  /// Of the requests that wait for the card: those of users whose requests were heads longest ago first, then
  /// those that came first.
  std::vector<WaiterId> HeadOrder(CardId card) const;
  /// Leases that give way at work will suffice: no request behind it takes what they have.
  bool IsSureToBeServed(const Waiter& waiter, Bytes lacking) const;
  /// `leaves_room`: as KeptRoom says.
  std::vector<Candidate> CandidatesFor(const Waiter& waiter, bool leaves_room);
  bool IsAsked(LeaseKey lease) const;
  /// Idle for long enough after what is known of it, and no request of it waits: since when.
  std::optional<Broker::TimePoint> IdleSince(LeaseKey lease, const ReleaseRecord& record,
                                             std::chrono::seconds least) const;
  /// The request waits longer where leases may be suspended for it some time; whether they may.
  bool LetWait(Waiter& waiter);
  bool HasWorkedEnough(LeaseKey lease, const ReleaseRecord& record) const;
  std::optional<Broker::TimePoint> LastUseOf(LeaseKey lease) const;
  /// As of now; lgpud tells them a little later too.
  void NoteUseOf(LeaseKey lease);
  /// How long the lease is idle before it is asked, after what is known of it.
  Broker::TimePoint::duration IdleAfter(LeaseKey lease, const ReleaseRecord& record) const;
  bool LeaseWaits(LeaseKey lease) const;
  /// The fewest of the longest idle that suffice; none where all do not.
  static std::vector<Candidate> Choose(std::vector<Candidate> candidates, Bytes lacking);
  void AskLeases(WaiterId id, Waiter& waiter, const std::vector<Candidate>& chosen, Bytes lacking);
  void Note(GivingWayNews news) { waiting_.news.push_back(std::move(news)); }

  BrokerTables& tables_;
  WaitingRequests& waiting_;
  Guarantees& guarantees_;
  TrimRequests& trims_;
  Admission& admission_;
  PreemptibleLeases& preemptible_;
  AskerAccounts askers_{tables_, waiting_};
  Asks asks_;
  std::map<std::string, Broker::TimePoint> last_head_;  // by user
  GivingWayCounters counters_;                          // but for the time
  std::uint64_t last_ask_ = 0;
};

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_BROKER_GIVING_WAY_H_
