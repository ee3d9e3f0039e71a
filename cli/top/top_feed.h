#ifndef LGPU_CLI_TOP_TOP_FEED_H_
#define LGPU_CLI_TOP_TOP_FEED_H_

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "base/thread.h"
#include "base/unique_fd.h"
#include "cli/commands/command.h"
#include "cli/connection.h"
#include "cli/top/top_layout.h"

namespace lgpu::cli {

/// Asks for statistics and the events since the last question, and puts them into the model, with the rates.
absl::Status AskForTop(Connection& connection, TopModel& model);

/// A TopFeed asks the daemon on a thread of its own, so that the screen answers keys while a daemon does not
/// answer, or is not there: the feed connects again. Thread-safe.
class TopFeed {
 public:
  /// `first`: the model at the start.
  static absl::StatusOr<std::unique_ptr<TopFeed>> Start(const CommonOptions& options, Connection connection,
                                                        TopModel first, std::chrono::milliseconds interval);
  /// Waits for the call that is being made.
  ~TopFeed();
  TopFeed(const TopFeed&) = delete;
  TopFeed& operator=(const TopFeed&) = delete;

  /// Readable when there is news.
  int fd() const { return news_.get(); }
  /// The model, and the result of EndLease since the last call.
  struct News {
    TopModel model;
    std::string message;
  };
  News Take();
  /// Asks at once.
  void Refresh();
  /// Ends a lease as `lgpu rm` does.
  void EndLease(const std::string& id);

 private:
  TopFeed(const CommonOptions& options, Connection connection, TopModel first,
          std::chrono::milliseconds interval, UniqueFd news);
  void Run();
  void Ask();
  std::string End(const std::string& lease);
  void Tell();

  const CommonOptions options_;
  const std::chrono::milliseconds interval_;
  const UniqueFd news_;
  std::optional<Connection> connection_;  // only the thread uses this and the members below
  TopModel known_;
  Mutex mutex_;
  CondVar changed_;
  TopModel model_ ABSL_GUARDED_BY(mutex_);
  std::string message_ ABSL_GUARDED_BY(mutex_);
  std::string to_end_ ABSL_GUARDED_BY(mutex_);
  bool at_once_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  Thread thread_;
};

}  // namespace lgpu::cli

#endif  // LGPU_CLI_TOP_TOP_FEED_H_
