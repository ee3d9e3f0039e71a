#ifndef LGPU_TESTS_SUPPORT_DAEMON_STATS_H_
#define LGPU_TESTS_SUPPORT_DAEMON_STATS_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/control/control_client.h"
#include "lgpu/status.h"
#include "lgpu/v1/stats.pb.h"

namespace lgpu::testing {

/// All that a daemon knows now.
inline absl::StatusOr<v1::StatsSnapshot> StatsOf(ControlClient& control) {
  LGPU_ASSIGN_OR_RETURN(const std::string answer, control.Call("GetStats", ""));
  v1::StatsSnapshot stats;
  if (!stats.ParseFromString(answer)) return absl::InternalError("the daemon's statistics cannot be read");
  return stats;
}

}  // namespace lgpu::testing

#endif  // LGPU_TESTS_SUPPORT_DAEMON_STATS_H_
