#include "cli/users_table.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lgpu/bytes.h"
#include "proto/messages_json.h"

namespace lgpu::cli {
namespace {

using Align = Table::Align;

/// Sums over the leases of one user.
struct UserSums {
  std::string name;
  std::uint32_t uid = 0;
  std::uint64_t leases = 0, devices = 0, processes = 0;
  std::uint64_t used = 0, held = 0, limit = 0, guarantee = 0;
};

/// The user with the most held memory comes first.
std::vector<UserSums> SumByUser(const v1::StatsSnapshot& snapshot) {
  std::map<std::uint32_t, UserSums> by_uid;
  for (const v1::LeaseStats& lease : snapshot.leases()) {
    UserSums& user = by_uid[lease.owner_uid()];
    user.name = lease.owner();
    user.uid = lease.owner_uid();
    ++user.leases;
    user.devices += static_cast<std::uint64_t>(lease.devices_size());
    user.processes += static_cast<std::uint64_t>(lease.sessions_size());
    for (const v1::LogicalDeviceStats& device : lease.devices()) {
      user.used += device.used_bytes();
      user.held += device.held_bytes();
      user.limit += device.limit_bytes();
      user.guarantee += device.guarantee_bytes();
    }
  }
  std::vector<UserSums> users;
  for (auto& [uid, user] : by_uid) users.push_back(std::move(user));
  std::stable_sort(users.begin(), users.end(),
                   [](const UserSums& a, const UserSums& b) { return a.held > b.held; });
  return users;
}

}  // namespace

std::string FormatUsers(const v1::StatsSnapshot& snapshot, const Style& style) {
  Table table({{"USER"},
               {"LEASES", Align::kRight},
               {"DEVICES", Align::kRight},
               {"PROCESSES", Align::kRight, /*drop=*/2},
               {"USED", Align::kRight},
               {"HELD", Align::kRight},
               {"LIMIT", Align::kRight},
               {"GUARANTEE", Align::kRight, /*drop=*/1}});
  for (const UserSums& user : SumByUser(snapshot)) {
    table.AddRow({FormatOwner(user.name, user.uid), absl::StrCat(user.leases), absl::StrCat(user.devices),
                  absl::StrCat(user.processes), FormatBytes(Bytes(user.used)), FormatBytes(Bytes(user.held)),
                  FormatBytes(Bytes(user.limit)), FormatBytes(Bytes(user.guarantee))});
  }
  return table.empty() ? "No leases.\n" : table.Format(style);
}

nlohmann::json UsersToJson(const v1::StatsSnapshot& snapshot) {
  nlohmann::json json = {{"schema", "lgpu.users/v1"},
                         {"taken_at", FormatIso8601(snapshot.taken_at())},
                         {"users", nlohmann::json::array()}};
  for (const UserSums& user : SumByUser(snapshot)) {
    json["users"].push_back({{"user", user.name},
                             {"uid", user.uid},
                             {"leases", user.leases},
                             {"devices", user.devices},
                             {"processes", user.processes},
                             {"used_bytes", user.used},
                             {"held_bytes", user.held},
                             {"memory_limit_bytes", user.limit},
                             {"guarantee_bytes", user.guarantee}});
  }
  return json;
}

}  // namespace lgpu::cli
