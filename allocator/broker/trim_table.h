#ifndef LGPU_ALLOCATOR_BROKER_TRIM_TABLE_H_
#define LGPU_ALLOCATOR_BROKER_TRIM_TABLE_H_

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "allocator/broker/ids.h"
#include "allocator/broker/trim_order.h"
#include "allocator/ledger.h"
#include "lgpu/bytes.h"

namespace lgpu {

/// A TrimTable decides which holder is asked next for memory that lies idle in it, and knows what became of
/// it. One is asked at a time, the one that holds most first, so that no more comes back than is needed; one
/// that takes its time to answer does not keep the others from being asked.
///
/// Pure: the owner brings the lock and the clock.
class TrimTable {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  /// Who might have idle memory, and how much of it would help.
  struct Holder {
    SessionId session;
    LogicalId device;
    Bytes bytes;
  };
  /// The state of one request's asking. In each round every holder is asked once.
  struct Need {
    std::uint64_t round = 0;              // 0: did not ask yet
    TimePoint look_again;                 // ask again then, whatever happens
    std::optional<TimePoint> next_round;  // once all have answered
  };
  struct Asked {
    bool hope = false;                 // an answer is still to come
    std::optional<SessionId> session;  // has a new order to fetch
  };

  /// An answer that takes longer lets the next one be asked too.
  static constexpr std::chrono::milliseconds kPatience{20};
  /// Who still waits when all have answered asks them again after this time.
  static constexpr std::chrono::milliseconds kNextRound{250};
  /// A holder that has not answered for so long ignores its order: no request waits for the answer any more.
  static constexpr std::chrono::milliseconds kOverdue{1000};

  /// Asks the next of `holders` for what is missing, if no answer is awaited.
  Asked Ask(Need& need, std::vector<Holder> holders, Bytes missing, TimePoint now);
  /// Asks this one too, if it is not asked already; the new order, or none.
  TrimId AskAlso(const Holder& holder, Bytes missing, TimePoint now);
  /// Whether a holder was not asked in this round, or did not answer.
  bool IsHopeful(const Need& need, const std::vector<Holder>& holders) const;

  /// The orders for a holder that it did not fetch yet.
  std::vector<TrimOrder> Take(SessionId session);
  /// An order is done; says of which device it was. `pending`: more will be idle soon, without anybody's
  /// doing. INVALID_ARGUMENT for an order that is not open.
  absl::StatusOr<LogicalId> Answer(SessionId session, TrimId id, bool pending, TimePoint now);
  /// The answer to an order, if it is there. An order that was forgotten counts as answered.
  struct Answered {
    bool pending = false;
  };
  std::optional<Answered> AnswerTo(SessionId session, LogicalId device, TrimId id) const;
  /// Orders that have become overdue since the last call.
  struct Overdue {
    SessionId session;
    Bytes asked;
  };
  std::vector<Overdue> TakeOverdue(TimePoint now);
  /// Whether an order of this session is overdue now, as TakeOverdue found.
  bool Ignores(SessionId session) const;
  std::uint64_t orders() const { return last_id_; }  // that there ever were
  void Forget(SessionId session);

 private:
  struct State;
  void Open(const Holder& holder, Bytes missing, std::uint64_t round, TimePoint now);
  static bool IsExhausted(const State& state, const Holder& holder, const Need& need);
  /// Whether an answer of this holder is to come, or it can be asked again.
  static bool IsHopeful(const State& state, const Holder& holder, const Need& need);
  using Key = std::pair<SessionId, LogicalId>;
  struct State {
    TrimId open;  // none: nothing is asked
    TimePoint asked_at;
    std::uint64_t asked_in = 0;  // the asking request's round
    std::uint64_t tried_in = 0;  // as above, of the last order that was answered for good
    Bytes held, asked;           // when it was asked last
    TimePoint not_before;        // had something pending
    bool pending = false;        // as of the last answer
    bool overdue = false;        // `open` is, and TakeOverdue told it
  };

  std::map<Key, State> states_;
  std::map<SessionId, std::vector<TrimOrder>> orders_;
  std::uint64_t last_round_ = 0;
  std::uint64_t last_id_ = 0;
};

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_BROKER_TRIM_TABLE_H_
