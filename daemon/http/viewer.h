#ifndef LGPU_DAEMON_HTTP_VIEWER_H_
#define LGPU_DAEMON_HTTP_VIEWER_H_

#include <cstdint>

#include "daemon/leases/lease_table.h"
#include "daemon/leases/user_names.h"
#include "lgpu/v1/stats.pb.h"

namespace lgpu::daemon {

/// A Viewer is the reader of a page: the leases that they see, and whether they see the names of others.
struct Viewer {
  Caller caller = {};
  bool sees_names = true;  // of users and programs that are not the caller's
  bool is_known = true;    // else the kernel does not tell whose connection it is
  friend bool operator==(const Viewer& a, const Viewer& b) {
    return a.caller.uid == b.caller.uid && a.sees_names == b.sees_names && a.is_known == b.is_known;
  }
  friend bool operator<(const Viewer& a, const Viewer& b) {
    return a.caller.uid != b.caller.uid ? a.caller.uid < b.caller.uid : a.sees_names < b.sees_names;
  }
};

/// The viewer behind a connection. `user`: PeerUser's number; `sees_all`: the request had the token, or
/// http.show_users is on. Root sees all as well; another user of this machine sees their own leases, and a
/// connection of which the kernel does not tell the user sees no lease.
Viewer ViewerOf(std::uint64_t user, bool sees_all);

/// Takes the users, processes and programs of others out of queues and of the lists of processes outside
/// lgpu. Amounts stay.
void HideOthers(const Viewer& viewer, const UserNames& names, v1::StatsSnapshot& snapshot);

}  // namespace lgpu::daemon

#endif  // LGPU_DAEMON_HTTP_VIEWER_H_
