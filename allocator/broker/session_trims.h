#ifndef LGPU_ALLOCATOR_BROKER_SESSION_TRIMS_H_
#define LGPU_ALLOCATOR_BROKER_SESSION_TRIMS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "allocator/broker/broker.h"

namespace lgpu {

struct BrokerCore;

/// SessionTrims passes orders to return idle memory to sessions, and their answers back, for requests that
/// are short of memory and for people.
///
/// Thread-safe: it takes the broker's lock. The core outlives it.
class SessionTrims {
 public:
  /// A request of a person that the sessions of a lease give back what lies idle. It belongs to the caller.
  struct Request {
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
  /// A session that has not answered an order for TrimTable::kOverdue.
  struct Ignored {
    SessionId session;
    Bytes asked;
    std::uint64_t ignored = 0;  // orders that this session ever ignored
  };
  struct Record {
    std::uint64_t ignored = 0;  // orders that it ever ignored
    bool ignores_now = false;   // one of them is open still
  };

  explicit SessionTrims(BrokerCore& core) : core_(core) {}

  /// New orders to return idle memory. Answer answers each of them.
  std::vector<TrimOrder> TakeOrders(SessionId session);
  /// The idle chunks have been returned. `pending`: more become idle when queued work ends. INVALID_ARGUMENT
  /// for an order that is not open.
  absl::Status Answer(SessionId session, TrimId trim, bool pending);
  /// Asks every session that holds memory of these devices, which are of one lease. Preallocated devices are
  /// left out: their memory stays with the lease.
  Request Start(std::span<const LogicalId> devices);
  /// Sees which answers have come, and asks again where more became idle. To be called now and then.
  void Continue(Request& request);
  /// Sessions that ignore orders, each at most once in 10 s. To be called about every half second.
  std::vector<Ignored> TakeIgnored();
  Record RecordOf(SessionId session) const;

 private:
  BrokerCore& core_;
};

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_BROKER_SESSION_TRIMS_H_
