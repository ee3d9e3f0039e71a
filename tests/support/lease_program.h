#ifndef LGPU_TESTS_SUPPORT_LEASE_PROGRAM_H_
#define LGPU_TESTS_SUPPORT_LEASE_PROGRAM_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/control/lease_calls.h"
#include "client/session/daemon_connection.h"

namespace lgpu::testing {

/// A session of an lgpud on its own lease of a whole GPU, as liblgpu has one, without a Context. Its owner is
/// the user of the thread that starts it.
///
/// Not thread-safe, but for `connection`.
struct LeaseProgram {
  std::unique_ptr<DaemonConnection> connection;
  std::string lease;
  std::uint64_t device = 0;
  std::vector<Chunk> chunks;

  /// `options`: all but the paths.
  static absl::StatusOr<LeaseProgram> Start(const std::string& directory, int gpu,
                                            DaemonConnection::Options options,
                                            wire::Preemptible preemptible = wire::Preemptible::kNever);
  absl::Status Grow(Bytes bytes, std::chrono::nanoseconds timeout);
  /// The last chunks that it got.
  absl::Status Free(std::size_t count);
  Bytes held() const;
};

/// A session of the lgpud in a directory.
absl::StatusOr<std::unique_ptr<DaemonConnection>> ConnectTo(const std::string& directory,
                                                            DaemonConnection::Options options);

/// A LeaseProgram that gives way as lgpud tells it. It has no contents: its moves take no time.
class MovingProgram {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  absl::Status Start(const std::string& directory, int gpu, wire::Preemptible preemptible);
  LeaseProgram& program() { return program_; }
  void NoteUse() { program_.connection->NoteUse(); }
  /// Gives all of its memory back if lgpud has told it to. Returns when it began to; nothing: it was told
  /// nothing.
  absl::StatusOr<std::optional<TimePoint>> GiveWayIfTold();
  /// Has all of it again if lgpud has told it to; whether it was told.
  absl::StatusOr<bool> ComeBackIfTold();

 private:
  absl::StatusOr<std::optional<DaemonConnection::SuspendOfDaemon>> Order(bool resume);

  LeaseProgram program_;
  std::deque<DaemonConnection::SuspendOfDaemon> orders_;  // not followed yet
  Bytes away_;
};

}  // namespace lgpu::testing

#endif  // LGPU_TESTS_SUPPORT_LEASE_PROGRAM_H_
