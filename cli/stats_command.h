#ifndef LGPU_CLI_STATS_COMMAND_H_
#define LGPU_CLI_STATS_COMMAND_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/commands/command.h"
#include "cli/connection.h"
#include "cli/query.h"
#include "cli/repeat.h"
#include "nlohmann/json.hpp"

namespace lgpu::cli {

/// A StatsCommand is a verb that prints the daemon's statistics, once or repeatedly: as tables, as JSON or as
/// the rows of --query. `ls` and `ps` derive from it and add their formats. Not thread-safe.
class StatsCommand : public Command {
 public:
  absl::StatusOr<int> Run(const CommonOptions& options) final;

 protected:
  /// The flags that every such verb has; Define adds them in its own order.
  FilterFlags& filter() { return filter_; }
  const FilterFlags& filter() const { return filter_; }
  RepeatFlags& repeat() { return repeat_; }
  QueryFlags& query() { return query_; }

 private:
  /// Before the daemon is asked: INVALID_ARGUMENT for flags that contradict each other.
  virtual absl::Status CheckFlags(const CommonOptions& options);
  virtual nlohmann::json Json(const v1::StatsSnapshot& snapshot) const = 0;
  virtual std::string Tables(const v1::StatsSnapshot& snapshot, const Style& style) const = 0;
  /// The rows of --query. INVALID_ARGUMENT for an unknown key, also for an empty snapshot.
  virtual absl::StatusOr<std::string> Rows(const QueryFlags& query,
                                           const v1::StatsSnapshot& snapshot) const = 0;
  /// Writes tables; by default to stdout.
  virtual absl::Status Show(const std::string& tables) const;

  absl::Status Print(Connection& connection, const CommonOptions& options);

  FilterFlags filter_;
  RepeatFlags repeat_;
  QueryFlags query_;
  bool checked_ = false;  // the filters match something; later a lease may have ended
};

}  // namespace lgpu::cli

#endif  // LGPU_CLI_STATS_COMMAND_H_
