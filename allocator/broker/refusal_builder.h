#ifndef LGPU_ALLOCATOR_BROKER_REFUSAL_BUILDER_H_
#define LGPU_ALLOCATOR_BROKER_REFUSAL_BUILDER_H_

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "allocator/broker/broker_tables.h"
#include "allocator/broker/kept_room.h"
#include "allocator/broker/waiting_requests.h"
#include "lgpu/refusal.h"

namespace lgpu {

/// What is known of a refusal beside the state of its device and card.
struct RefusalCause {
  RefusalReason reason = RefusalReason::kUnspecified;
  Bytes asked = {};
  std::optional<std::chrono::milliseconds> waited = {};
  std::string detail = {};                    // what the backend said
  int turns = 0;                              // of the request in its card's queue
  std::vector<AskedLease> asked_leases = {};  // to give way for it
  KeptRoom::Kept kept = {};                   // of the card's free memory

  /// For RESOURCE_EXHAUSTED of the backend. Its reason is kDescriptors if the status carries a Refusal of
  /// that reason, and kBackend otherwise.
  static RefusalCause OfBackend(const absl::Status& status, Bytes asked);
};

/// A RefusalBuilder describes why memory is refused and which sessions hold it, in the words of Refusal. It
/// reads the tables and changes nothing.
///
/// Not thread-safe: the broker's lock guards it. The tables outlive it.
class RefusalBuilder {
 public:
  RefusalBuilder(const BrokerTables& tables, const WaitingRequests& waiting)
      : tables_(tables), waiting_(waiting) {}

  Refusal OfDevice(LogicalId device, const RefusalCause& cause) const;
  Refusal OfCharge(const Waiter& waiter, RefusalCause cause) const;
  /// A request for a guarantee: RESOURCE_EXHAUSTED with a Refusal; UNAVAILABLE where the device has its new
  /// size and its own memory is still leaving.
  absl::Status OfGuarantee(const Waiter& waiter, const KeptRoom::Kept& kept) const;
  /// What a lease waits for, in words for every user: names of leases are their owner's business. `before`:
  /// the request that is served before it; none: it is the first. `kept`: of the card's free memory.
  std::string OfWaitingLease(WaiterId id, WaiterId before, Bytes kept) const;

 private:
  /// A device whose guarantee cannot be set aside.
  Refusal OfNewDevice(const Broker::DeviceSpec& spec, Bytes guarantee, const KeptRoom::Kept& kept) const;
  void AddHolders(Refusal& refusal, CardId card, LogicalId except) const;
  /// Names the turn that holds back a request of this need, or says that the request's own were in vain.
  void AddTurnAdvice(Refusal& refusal, CardId card, Bytes need, int turns) const;
  /// Names the lease that has `kept` of the card's free memory.
  void AddKeptAdvice(Refusal& refusal, const KeptRoom::Kept& kept, Bytes free) const;
  void AddCardAdvice(Refusal& refusal, const DeviceEntry& device, const RefusalCause& cause) const;
  std::string DescribeWaiter(WaiterId id) const;
  std::string DescribeForEveryUser(WaiterId id) const;
  /// What the lease of `spec` has on its card by now.
  Bytes SetAsideBy(const Broker::DeviceSpec& spec) const;

  const BrokerTables& tables_;
  const WaitingRequests& waiting_;
};

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_BROKER_REFUSAL_BUILDER_H_
