#ifndef LGPU_ALLOCATOR_BROKER_CARD_QUEUE_H_
#define LGPU_ALLOCATOR_BROKER_CARD_QUEUE_H_

#include <chrono>
#include <cstddef>
#include <deque>
#include <list>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "allocator/broker/ids.h"

namespace lgpu {

/// A CardQueue is the line of requests that wait for memory of one card, and the turn that one of them has.
///
/// Users stand in a ring, each with its requests in a line. While a *turn* runs, the card's free memory
/// belongs to one request, and every other request is held back. While no turn runs, no request is held back:
/// the owner grants every request that fits, in Order().
///
/// A turn lasts at most `max_turn`. It ends earlier when its request leaves, and when the owner finds that
/// the request cannot be served as things are. Its request then goes to the end of its user's line, and its
/// user to the end of the ring. After a turn no other one starts for as long as the turn lasted (the rest),
/// so turns hold others back for at most half of the time, whatever a user asks for.
///
/// From this follows: a user that waits with n-1 other users has a turn, or a request served, within
/// 2 x max_turn x n, and a request that fits into the card's free memory waits for at most one turn.
///
/// Pure arithmetic over the clock value that the owner gives, which never falls. Not thread-safe: the owner
/// brings a lock. Unknown ids are bugs and abort.
class CardQueue {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  using Duration = std::chrono::steady_clock::duration;

  explicit CardQueue(Duration max_turn) : max_turn_(max_turn) {}

  /// Joins the end of its user's line; a user that did not wait joins the end of the ring.
  void Join(WaiterId id, const std::string& user);
  /// The request is served, and about to leave. Its user goes to the end of the ring, so that the next
  /// request that is served is another user's.
  void NoteServed(WaiterId id);
  /// A turn of it is over. The user of a request that had no turn and was not served keeps its place in the
  /// ring: else requests that lapse would take the turns of the user's other ones.
  void Leave(WaiterId id, TimePoint now);

  bool empty() const { return entries_.empty(); }
  std::size_t size() const { return entries_.size(); }
  bool Contains(WaiterId id) const { return entries_.count(id) != 0; }
  /// The first request of each user in the order of the ring, then the second of each, and so on.
  std::vector<WaiterId> Order() const;
  /// Turns of the request that are over.
  int TurnsOf(WaiterId id) const { return entries_.at(id).turns; }

  struct Turn {
    WaiterId of;
    TimePoint began, ends;
  };
  const std::optional<Turn>& turn() const { return turn_; }
  /// A turn of another request runs. An id that does not wait is held back by any turn.
  bool HoldsBack(WaiterId id) const { return turn_ && turn_->of != id; }
  /// No turn runs, and the rest after the last one is over.
  bool MayStartTurn(TimePoint now) const { return !turn_ && now >= rest_ends_; }
  /// MayStartTurn(now) holds.
  void StartTurn(WaiterId id, TimePoint now);
  /// The turn that runs has had its time.
  bool IsTurnOver(TimePoint now) const { return turn_ && now >= turn_->ends; }
  /// Ends the turn that runs; its request goes on waiting.
  void EndTurn(TimePoint now);
  /// When the clock alone changes something: the end of the turn, or of the rest while requests wait.
  std::optional<TimePoint> NextChange(TimePoint now) const;

 private:
  struct User {
    std::string name;
    std::deque<WaiterId> line;
  };
  using Ring = std::list<User>;
  struct Entry {
    Ring::iterator user;
    int turns = 0;
  };

  const Duration max_turn_;
  Ring ring_;  // no line is empty
  std::map<std::string, Ring::iterator> users_;
  std::map<WaiterId, Entry> entries_;
  std::optional<Turn> turn_;
  TimePoint rest_ends_;
};

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_BROKER_CARD_QUEUE_H_
