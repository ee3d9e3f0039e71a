#ifndef LGPU_TESTS_LOAD_LOAD_H_
#define LGPU_TESTS_LOAD_LOAD_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/e2e/harness.h"

namespace lgpu::testing {

// Load on a real lgpud, for the test of fixed size and for bench/load_bench.

/// The memory and descriptors that lgpud uses now.
struct DaemonSize {
  std::uint64_t private_bytes = 0;
  std::size_t descriptors = 0;
};
DaemonSize SizeOf(pid_t daemon);

/// A session with a growing device of its own, in a lease that ends with it.
class LoadSession {
 public:
  static absl::StatusOr<LoadSession> Open(const std::string& dir, Control& control,
                                          std::uint64_t limit_bytes);
  /// Grows by `bytes`; the chunks are the session's until Return.
  absl::Status Grow(std::uint64_t bytes);
  /// Gives the last grant back; without a grant nothing happens.
  absl::Status Return();
  std::size_t grants() const { return grants_.size(); }
  /// Gives back everything and ends the session.
  absl::Status Close();

 private:
  explicit LoadSession(RawSession session) : session_(std::move(session)) {}
  RawSession session_;
  std::uint64_t device_ = 0;
  std::uint64_t last_request_ = 0;
  std::vector<RawSession::Grown> grants_;
};

/// `cycles` times, on `threads` threads: a session, its lease, one chunk granted and returned, and the end.
absl::Status RunLeaseCycles(const std::string& dir, int cycles, int threads);

/// `leases` leases that last, each of `devices_each` growing devices of 64 MiB. For more than one owner,
/// users 1 to `owners`, they are managed leases, which only root makes.
absl::Status MakeDevices(Control& control, int leases, int devices_each, int owners = 1);

/// `sessions` sessions, on `threads` threads, grow and return at random for `rounds` rounds each, and end. A
/// refusal is no error: sessions may ask for more than their limits.
absl::Status GrowAndReturnAtRandom(const std::string& dir, int sessions, int threads, int rounds,
                                   std::uint32_t seed);

}  // namespace lgpu::testing

#endif  // LGPU_TESTS_LOAD_LOAD_H_
