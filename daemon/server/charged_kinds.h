#ifndef LGPU_DAEMON_SERVER_CHARGED_KINDS_H_
#define LGPU_DAEMON_SERVER_CHARGED_KINDS_H_

#include <vector>

#include "allocator/broker/broker.h"
#include "daemon/sessions/session_state.h"
#include "lgpu/v1/stats.pb.h"

namespace lgpu::daemon {

/// A session's charges over all cards by kind of call, in the order of the kinds' names. The client tells the
/// kinds: together they are never more than `charges`, and the rest is "other".
std::vector<v1::ChargedKind> ChargedByKind(const std::vector<Broker::Charged>& charges,
                                           const SessionState& session);

}  // namespace lgpu::daemon

#endif  // LGPU_DAEMON_SERVER_CHARGED_KINDS_H_
