#ifndef LGPU_ALLOCATOR_BROKER_ADMISSION_H_
#define LGPU_ALLOCATOR_BROKER_ADMISSION_H_

#include "allocator/broker/broker_tables.h"
#include "allocator/broker/charge_table.h"
#include "allocator/broker/chunk_table.h"
#include "allocator/broker/guarantees.h"
#include "allocator/broker/kept_room.h"
#include "allocator/broker/preemptible_leases.h"
#include "allocator/broker/refusal_builder.h"
#include "allocator/broker/trim_requests.h"
#include "allocator/broker/waiting_requests.h"

namespace lgpu {

/// An Admission decides what becomes of one request: it is booked, is served, waits under its limit, waits
/// for its card, or is refused. There are four kinds: chunks of a growing device, chunks of a preallocated
/// device, charges, and guarantees.
///
/// Not thread-safe: the broker's lock guards it. What it is made of outlives it.
class Admission {
 public:
  Admission(BrokerTables& tables, WaitingRequests& waiting, ChunkTable& chunks, ChargeTable& charges,
            TrimRequests& trims, Guarantees& guarantees, const PreemptibleLeases& preemptible,
            const KeptRoom& kept, const RefusalBuilder& refusals)
      : tables_(tables),
        waiting_(waiting),
        chunks_(chunks),
        charges_(charges),
        trims_(trims),
        guarantees_(guarantees),
        preemptible_(preemptible),
        kept_(kept),
        refusals_(refusals) {}

  /// Decides about a request that stands in no line. Where it joins its card's queue the caller serves that.
  void Admit(WaiterId id, Waiter& waiter);
  /// Sets the guarantee of a request aside, whatever turn runs.
  void SetAside(WaiterId id, Waiter& waiter);
  /// Decides about a request that waits for its card, if its wait is over; returns whether it was.
  /// `kept`: KeptOn its card.
  bool AdmitFromQueue(WaiterId id, Waiter& waiter, Bytes kept);
  /// Decides again about the requests that wait under the limit of a device.
  void AdmitUnderLimit(LogicalId device);
  /// The request leaves its line, and what was booked for it is free again. It is new from here on.
  void Leave(WaiterId id, Waiter& waiter);
  /// The chunks that were to be made for a booked request are there, or will not be.
  void EndClaim(const Waiter& waiter) {
    tables_.devices.at(waiter.spec.device).claimed -= waiter.spec.at_least;
  }
  void Refuse(Waiter& waiter, RefusalCause cause);
  /// Leaves and is refused, and is woken.
  void RefuseWaiting(WaiterId id, Waiter& waiter, RefusalCause cause);
  /// The request leaves its line, and waits until its lease is resumed.
  void HoldBack(WaiterId id, Waiter& waiter);
  /// Its lease is resumed: decides about the request anew, with the time that it had left.
  void GoOn(WaiterId id, Waiter& waiter);
  /// As RefuseWaiting, because the program gave the request up.
  void Cancel(WaiterId id, Waiter& waiter);

  /// What is set aside for a request that waits for its card is free again. False: nothing was.
  bool FreeAside(WaiterId id, Waiter& waiter);
  /// How much of the card's free memory the request would take, beside what is set aside for it.
  Bytes NeedOf(const Waiter& waiter) const;
  /// What requests of leases that never give way leave of the card's free memory.
  Bytes KeptOn(CardId card) const { return kept_.On(card).bytes; }
  /// What has to be free for the request: its need, and `kept` (KeptOn its card) where it leaves room.
  Bytes FreeFor(const Waiter& waiter, Bytes kept) const;
  /// If the request takes so much of what is free, as much is left as it has to leave.
  bool LeavesRoom(const Waiter& waiter, Bytes need) const;
  /// Spare chunks that are enough for the request are there or being made, beside those that are made for
  /// other requests. It is served from them even with timeout 0.
  bool IsBeingMade(const Waiter& waiter) const;

 private:
  /// FAILED_PRECONDITION: the request's session gets no more memory, however long the request has waited.
  absl::Status MayGrow(const Waiter& waiter) const;
  void AdmitSuspended(WaiterId id, Waiter& waiter, const Suspension& suspension, bool waits_longer);
  void AdmitGrowing(WaiterId id, Waiter& waiter);
  void AdmitPreallocated(WaiterId id, Waiter& waiter);
  void AdmitCharge(WaiterId id, Waiter& waiter);
  void AdmitGuarantee(WaiterId id, Waiter& waiter);
  /// The guarantee is set aside: decides about the chunks that the device lacks.
  void AdmitMissing(WaiterId id, Waiter& waiter);
  /// Whether its wait is over.
  bool SetAsideFromQueue(WaiterId id, Waiter& waiter, Bytes kept);
  /// What is booked for a growing device if it can be.
  Bytes BytesToBook(const Waiter& waiter) const;
  void BookChunks(Waiter& waiter, Bytes bytes);
  void BookFor(Waiter& waiter, const Ledger::Split& split);
  /// `missing`: what is short under the limit and not on its way back.
  void WaitUnderLimit(WaiterId id, Waiter& waiter, Bytes missing);
  /// `is_hopeless`: guarantees of others leave too little for it.
  void WaitForCard(WaiterId id, Waiter& waiter, bool is_hopeless, bool held_back);
  /// What others have guaranteed becomes free when they give way for it.
  bool MayBeGivenWay(const Waiter& waiter) const;
  /// A lease has more guaranteed while its program moves its contents back.
  bool HasPassingGuarantees(CardId card) const;
  /// Its set-aside memory is free for the booking that comes next, if there is enough for that. False: not
  /// now.
  bool UseAside(WaiterId id, Waiter& waiter, bool held_back, Bytes kept);
  /// A request is served for which bytes were set aside.
  void NoteServed(const Waiter& waiter, Bytes aside);
  Bytes WholeNeedOf(const Waiter& waiter) const;
  /// Whether the request may wait for idle memory of other sessions; puts its deadline off for that.
  bool MayAsk(Waiter& waiter) const;

  BrokerTables& tables_;
  WaitingRequests& waiting_;
  ChunkTable& chunks_;
  ChargeTable& charges_;
  TrimRequests& trims_;
  Guarantees& guarantees_;
  const PreemptibleLeases& preemptible_;
  const KeptRoom& kept_;
  const RefusalBuilder& refusals_;
};

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_BROKER_ADMISSION_H_
