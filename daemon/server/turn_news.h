#ifndef LGPU_DAEMON_SERVER_TURN_NEWS_H_
#define LGPU_DAEMON_SERVER_TURN_NEWS_H_

#include <chrono>
#include <map>
#include <string>
#include <utility>

#include "allocator/broker/broker.h"
#include "daemon/server/event_log.h"

namespace lgpu::daemon {

/// TurnNews tells the owner of a request, by events, that its first turn has begun and that it waits no
/// longer. It looks at the queues every half second, so a card causes at most four events a second, and a
/// request whose first turn ends at once may cause none. One thread.
class TurnNews {
 public:
  /// Both outlive it.
  TurnNews(const Broker& broker, EventLog& events) : broker_(broker), events_(events) {}
  /// To be called now and then.
  void Look();

 private:
  struct Told {
    Broker::Queued request;
    int card = 0;
  };
  using Key = std::pair<CardId, decltype(Broker::Queued::id)>;
  void Tell(const Told& told, const std::string& before, const std::string& behind);

  const Broker& broker_;
  EventLog& events_;
  std::chrono::steady_clock::time_point next_look_;
  std::map<Key, Told> told_;  // requests that wait and have had a turn
};

}  // namespace lgpu::daemon

#endif  // LGPU_DAEMON_SERVER_TURN_NEWS_H_
