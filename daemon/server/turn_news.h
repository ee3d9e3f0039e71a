#ifndef LGPU_DAEMON_SERVER_TURN_NEWS_H_
#define LGPU_DAEMON_SERVER_TURN_NEWS_H_

#include <chrono>
#include <map>

#include "allocator/broker/broker.h"
#include "daemon/server/event_log.h"

namespace lgpu::daemon {

/// TurnNews tells the owners of requests, by events, that a turn of theirs has begun or is over. It looks at
/// the queues every half second, so a card causes at most four events a second, and a turn that ends at once
/// causes none. One thread.
class TurnNews {
 public:
  /// Both outlive it.
  TurnNews(const Broker& broker, EventLog& events) : broker_(broker), events_(events) {}
  /// To be called now and then.
  void Look();

 private:
  void Tell(const Broker::Queued& request, int card, const char* what);

  const Broker& broker_;
  EventLog& events_;
  std::chrono::steady_clock::time_point next_look_;
  std::map<CardId, Broker::Queued> told_;  // the requests whose turns were running
};

}  // namespace lgpu::daemon

#endif  // LGPU_DAEMON_SERVER_TURN_NEWS_H_
