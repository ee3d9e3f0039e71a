#ifndef LGPU_CLIENT_CONTROL_CONTROL_CLIENT_H_
#define LGPU_CLIENT_CONTROL_CONTROL_CLIENT_H_

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/unique_fd.h"

namespace lgpu {

/// A ControlClient is a gRPC channel to a daemon's control service, for calls on encoded messages. It has a
/// channel of its own over a connected socket: channels made by address share connections within a process,
/// and one call in a forked child would break those of its parent. It is slow to destroy (milliseconds the
/// first time).
///
/// A call that the daemon does not admit now, because its user has too many, is made again until its time is
/// over.
///
/// Thread-safe, once UseToken was called. Errors are the daemon's, with the Refusal where there is one;
/// UNAVAILABLE when it is gone or admitted no call in time; DEADLINE_EXCEEDED; CANCELLED where the thread's
/// InterruptScope ended a Call.
class ControlClient {
 public:
  /// For calls that may preallocate, which makes every chunk before it answers.
  static constexpr std::chrono::milliseconds kCallTimeout{60'000};
  static constexpr std::chrono::milliseconds kNoTimeout{0};

  /// `socket`: connected to control.sock, non-blocking; `directory` is said in errors. RESOURCE_EXHAUSTED: no
  /// threads can be had.
  static absl::StatusOr<std::shared_ptr<ControlClient>> Create(UniqueFd socket, std::string directory);
  /// As Create, on a thread of its own: gRPC's first channel of a process takes a millisecond.
  class Starting {
   public:
    absl::StatusOr<std::shared_ptr<ControlClient>> Wait();

   private:
    friend class ControlClient;
    std::shared_ptr<absl::StatusOr<std::shared_ptr<ControlClient>>> client_;
    std::future<void> made_;  // of nothing: a future of a class would be exported from the library
  };
  static Starting Start(UniqueFd socket, std::string directory);
  ~ControlClient();
  ControlClient(const ControlClient&) = delete;
  ControlClient& operator=(const ControlClient&) = delete;

  /// Makes the following calls in the name of a session; `token`: Welcome's. Without it the caller is known
  /// by user id alone.
  void UseToken(std::string token);

  /// One call of lgpu.v1.Control/`method`: the encoded request to the encoded response.
  absl::StatusOr<std::string> Call(const char* method, const std::string& request,
                                   std::chrono::milliseconds timeout = kCallTimeout);
  /// One call whose answer is a stream, until it ends; `each` gets every message and ends the call by
  /// returning an error, which comes back. So does `between`, if any, which is called every 50 ms.
  absl::Status Stream(const char* method, const std::string& request, std::chrono::milliseconds timeout,
                      const std::function<absl::Status(const std::string&)>& each,
                      const std::function<absl::Status()>& between = {});

 private:
  class Impl;
  explicit ControlClient(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace lgpu

#endif  // LGPU_CLIENT_CONTROL_CONTROL_CLIENT_H_
