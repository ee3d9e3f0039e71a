#ifndef LGPU_TESTS_E2E_HARNESS_H_
#define LGPU_TESTS_E2E_HARNESS_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lgpu/v1/control.pb.h"
#include "lgpu/v1/stats.pb.h"
#include "tests/support/daemon_process.h"
#include "tests/support/generated_channel.h"
#include "tests/support/sanitizers.h"

namespace lgpu::testing {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

/// A Control is a gRPC connection to a daemon. Its members are Control's calls.
class Control {
 public:
  static absl::StatusOr<std::unique_ptr<Control>> Open(const std::string& dir);
  ~Control();
  Control(const Control&) = delete;
  Control& operator=(const Control&) = delete;

  /// Calls are made in the name of this session from here on.
  void SetSessionToken(const std::string& token);
  absl::StatusOr<v1::StatsSnapshot> GetStats();
  absl::StatusOr<v1::Lease> CreateLease(const v1::CreateLeaseRequest& request);
  absl::StatusOr<v1::Lease> ResizeLease(const v1::ResizeLeaseRequest& request);
  absl::StatusOr<v1::SuspendLeaseResponse> SuspendLease(const std::string& lease);
  absl::StatusOr<v1::ResumeLeaseResponse> ResumeLease(const std::string& lease);
  absl::StatusOr<v1::Lease> GetLease(const std::string& lease);
  absl::StatusOr<v1::Lease> AttachLease(const std::string& lease);
  absl::Status RemoveLease(const std::string& lease);
  absl::StatusOr<v1::PlacementReport> GetPlacements(const std::string& lease);
  absl::Status GetMemorySnapshot(const v1::GetMemorySnapshotRequest& request,
                                 const std::function<void(const v1::MemorySnapshotPart&)>& each);

 private:
  class Impl;
  explicit Control(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// A session that speaks the protocol by hand, to send frames that the library would not.
struct RawSession {
  GeneratedChannel channel;
  std::string token;
  std::uint64_t id = 0;
  UniqueFd stats_page, client_page;

  static absl::StatusOr<RawSession> Open(const std::string& dir);
  GeneratedChannel::Deadline Patience() const {
    return std::chrono::steady_clock::now() + ChildProgram::kPatience;
  }
  /// Sends and gives the next frame.
  absl::StatusOr<GeneratedFrame> Ask(const v1::Frame& frame);
  /// A grow with its Ack: the descriptors of all pages, and the ids of the chunks; or the refusal's status.
  struct Grown {
    std::vector<UniqueFd> fds;
    std::vector<v1::Chunk> chunks;
  };
  absl::StatusOr<Grown> Grow(std::uint64_t request_id, std::uint64_t device_id, std::uint64_t bytes,
                             std::uint64_t timeout_ms = 0);
};

/// A request for one logical device.
v1::CreateLeaseRequest OneDevice(std::uint64_t limit_bytes, bool preallocate = false, bool lasting = false);

/// Bytes of all chunk memfds that a process has open, really allocated.
std::uint64_t ChunkBytesOpen(pid_t pid);
/// The bytes that these processes really hold: of all chunks that they have open, each counted once.
std::uint64_t ChunkBytesHeldBy(const std::vector<pid_t>& pids);
/// How many descriptors, threads, and mappings of lgpu's memfds a process has.
std::size_t CountDescriptors(pid_t pid);
std::size_t CountThreads(pid_t pid);
std::size_t CountMappings(pid_t pid);
/// Resident private memory (RssAnon) and the machine's Shmem, in bytes.
std::uint64_t PrivateBytes(pid_t pid);
std::uint64_t MachineShmem();

/// One daemon, clients of it, and at the end the proof that everything is back: held is zero on every card,
/// and neither the daemon nor the test maps or holds a chunk.
class E2eTest : public ::testing::Test {
 protected:
  void StartDaemon(const DaemonProcess::Options& options);
  void StartDaemon() { StartDaemon(DaemonProcess::Options()); }
  void TearDown() override;
  /// Of a daemon in a directory that stays, for restarts.
  DaemonProcess::Options InDirectory(const std::string& simulate = "1GiB") const;
  void StartInDirectory(const std::string& simulate = "1GiB");
  /// SIGKILL, and no daemon serves until StartInDirectory.
  void KillDaemon();
  void Restart() {
    KillDaemon();
    StartInDirectory(simulate_);
  }
  /// As a start of the machine: the runtime directory is new, and no process has memory.
  void Boot(const std::string& simulate = "1GiB");
  /// Asks for the removal of a lasting lease whose sessions do not end, and kills the daemon when its file
  /// has the lease no more.
  void KillDaemonWhileItRemoves(const std::string& lease);
  /// The state of the session of that process.
  std::optional<v1::SessionStats> SessionOf(pid_t pid);
  bool IsInState(pid_t pid, v1::SessionStats::State state);
  bool IsBack(pid_t pid) { return IsInState(pid, v1::SessionStats::STATE_LIVE); }

  /// A client program (tests/e2e/client.cc) of this daemon.
  std::unique_ptr<ChildProgram> StartClient(const ChildProgram::Environment& environment = {});
  /// Sends a command to a client and gives its answer.
  static std::string Ask(ChildProgram& client, const std::string& command);
  /// Tells it to allocate in its context c.
  static std::string Alloc(ChildProgram& client, const std::string& id, std::uint64_t mib);

  v1::StatsSnapshot Stats();
  /// Of all cards.
  std::uint64_t HeldBytes();
  /// The ledger's held bytes are those that these processes hold, by /proc.
  ::testing::AssertionResult LedgerIsTrue(const std::vector<pid_t>& pids);
  ::testing::AssertionResult EverythingIsBack();

  TempDir directory_;  // of StartInDirectory
  std::string simulate_;
  std::unique_ptr<DaemonProcess> daemon_;
  std::unique_ptr<Control> control_;
};

}  // namespace lgpu::testing

#endif  // LGPU_TESTS_E2E_HARNESS_H_
