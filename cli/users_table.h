#ifndef LGPU_CLI_USERS_TABLE_H_
#define LGPU_CLI_USERS_TABLE_H_

#include <string>

#include "cli/output.h"
#include "lgpu/v1/stats.pb.h"
#include "nlohmann/json.hpp"

namespace lgpu::cli {

/// The output of `lgpu ls --by-user`: a row per user, with sums over their leases.
std::string FormatUsers(const v1::StatsSnapshot& snapshot, const Style& style);
/// "lgpu.users/v1"
nlohmann::json UsersToJson(const v1::StatsSnapshot& snapshot);

}  // namespace lgpu::cli

#endif  // LGPU_CLI_USERS_TABLE_H_
