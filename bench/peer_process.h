#ifndef LGPU_BENCH_PEER_PROCESS_H_
#define LGPU_BENCH_PEER_PROCESS_H_

#include <sched.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/spawn.h"
#include "base/unique_fd.h"

namespace lgpu::bench {

/// The cores of the two processes of a ping-pong. They decide its cost more than the work of the processes.
enum class Cores { kAny = 0, kOne = 1, kTwo = 2 };

/// A PeerProcess is this program again, as `program --peer=NAME`, with the other ends of two socket pairs. As
/// long as it lives, this thread and the threads that it starts are pinned as `cores` says. Its owner closes
/// the session, then destroys it, which waits for the process.
class PeerProcess {
 public:
  /// The descriptors that the peer finds.
  static constexpr int kSessionFd = 100;
  static constexpr int kControlFd = 101;

  /// FAILED_PRECONDITION where there are not enough CPUs.
  static absl::StatusOr<std::unique_ptr<PeerProcess>> Start(const std::string& name, Cores cores);
  ~PeerProcess();
  PeerProcess(const PeerProcess&) = delete;
  PeerProcess& operator=(const PeerProcess&) = delete;

  UniqueFd TakeSession() { return std::move(session_); }
  int control() const { return control_.get(); }

 private:
  PeerProcess() = default;
  UniqueFd session_;  // SOCK_SEQPACKET
  UniqueFd control_;  // SOCK_STREAM
  SpawnedProcess process_;
  cpu_set_t before_;
};

}  // namespace lgpu::bench

#endif  // LGPU_BENCH_PEER_PROCESS_H_
