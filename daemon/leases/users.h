#ifndef LGPU_DAEMON_LEASES_USERS_H_
#define LGPU_DAEMON_LEASES_USERS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/server/config.h"
#include "lgpu/bytes.h"

namespace lgpu::daemon {

/// A user as the system knows them.
struct User {
  std::uint32_t uid = 0;
  std::string name;                 // the number where there is no name
  std::vector<std::string> groups;  // names; the number where there is no name
  std::vector<std::uint32_t> gids;
};

/// A name for people; the number of a user without one.
std::string UserName(std::uint32_t uid);

/// The user of a name or a number; lgpud's own for "". INVALID_ARGUMENT: there is none. May block.
absl::StatusOr<std::uint32_t> FindUser(const std::string& owner);

/// Asks the system; may block.
User LookUpUser(std::uint32_t uid);

/// The leases of a user or group, now or after a request. Sums over logical devices, each rounded up to whole
/// chunks, because a device may hold that, and many tiny limits must not add up to more than the cap.
struct Holdings {
  Bytes memory_limit;
  Bytes guarantee;
  std::uint32_t leases = 0;
  std::uint32_t sessions = 0;
  Holdings& operator+=(const Holdings& more) {
    memory_limit = SaturatingAdd(memory_limit, more.memory_limit);
    guarantee = SaturatingAdd(guarantee, more.guarantee);
    leases += more.leases;
    sessions += more.sessions;
    return *this;
  }
};

/// The cap of a user: the one with the user's name or number, else "*".
const CapConfig* FindUserCap(const std::vector<CapConfig>& caps, const User& user);
/// The caps of the user's groups.
std::vector<const CapConfig*> FindGroupCaps(const std::vector<CapConfig>& caps, const User& user);
/// Whether a cap of a group (a name or a number) means one of the user's groups.
bool IsInGroup(const User& user, const std::string& group);
/// With the numbers, when `would_have` is over the cap: INVALID_ARGUMENT if the added part alone is over it,
/// RESOURCE_EXHAUSTED if it would fit after other leases ended. `holder`: "user kim", "group lab".
absl::Status CheckCap(const CapConfig& cap, const std::string& holder, const Holdings& has,
                      const Holdings& would_have);

}  // namespace lgpu::daemon

#endif  // LGPU_DAEMON_LEASES_USERS_H_
