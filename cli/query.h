#ifndef LGPU_CLI_QUERY_H_
#define LGPU_CLI_QUERY_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "lgpu/v1/stats.pb.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace lgpu::cli {

/// The flags --query and --format of a verb that lists rows.
struct QueryFlags {
  std::string keys = {};
  std::string format = "csv";
  bool wanted() const { return !keys.empty(); }
  /// INVALID_ARGUMENT where CSV and JSON are both asked for.
  absl::Status CheckAlone(bool json) const;
  /// `known`: the keys, for the help. Gives --query.
  CLI::Option* AddTo(CLI::App& verb, const std::vector<std::string>& known);
};

/// The filters of a snapshot: -u, -p, --lease and --label.
struct FilterFlags {
  std::string user = {};
  std::optional<std::int64_t> pid = {};
  std::string lease = {};
  std::vector<std::string> labels = {};  // "KEY" or "KEY=VALUE", of which a lease has all
  void AddTo(CLI::App& verb);
  bool wanted() const { return !user.empty() || pid.has_value() || !lease.empty() || !labels.empty(); }
  /// NOT_FOUND, naming the known ones, for an unknown lease, process or user; INVALID_ARGUMENT for a name
  /// that several leases have.
  absl::Status Check(const v1::StatsSnapshot& snapshot) const;
  /// Drops the leases that do not match all of what is given; cards stay.
  v1::StatsSnapshot Apply(v1::StatsSnapshot snapshot) const;

 private:
  bool IsOfUser(const v1::LeaseStats& entry) const;
};

/// The snapshot with the cards alone that its leases are on.
v1::StatsSnapshot WithoutOtherCards(v1::StatsSnapshot snapshot);

/// One logical device (or session) of a lease; `device` or `session` may be missing.
struct QueryRow {
  const v1::StatsSnapshot& snapshot;
  const v1::LeaseStats* lease = nullptr;
  const v1::LogicalDeviceStats* device = nullptr;
  const v1::SessionStats* session = nullptr;
  const v1::CardStats* card = nullptr;
};

/// The keys that rows of logical devices, of GPUs ("gpu.total") and of sessions have.
std::vector<std::string> DeviceKeys();
std::vector<std::string> SessionKeys();

/// The rows as CSV (RFC 4180, lines end in \n). Rows of `ls` are logical devices, or GPUs if all keys start
/// with "gpu."; rows of `ps` are sessions. INVALID_ARGUMENT for an unknown key or format, naming the known
/// ones.
absl::StatusOr<std::string> QueryDevices(const QueryFlags& flags, const v1::StatsSnapshot& snapshot);
absl::StatusOr<std::string> QuerySessions(const QueryFlags& flags, const v1::StatsSnapshot& snapshot);

}  // namespace lgpu::cli

#endif  // LGPU_CLI_QUERY_H_
