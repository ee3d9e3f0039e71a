#include "tests/e2e/harness.h"

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <system_error>
#include <thread>

#include "absl/strings/str_cat.h"
#include "lgpu/status.h"

namespace lgpu::testing {
namespace {

std::size_t CountEntries(const std::string& directory) {
  std::error_code error;
  std::size_t count = 0;
  for (std::filesystem::directory_iterator it(directory, error), end; !error && it != end;
       it.increment(error)) {
    ++count;
  }
  return count;
}

std::uint64_t KilobytesOf(const std::string& path, const std::string& key) {
  std::ifstream in(path);
  for (std::string word; in >> word;) {
    if (word != key) continue;
    std::uint64_t kilobytes = 0;
    in >> kilobytes;
    return kilobytes * 1024;
  }
  return 0;
}

}  // namespace

absl::StatusOr<RawSession> RawSession::Open(const std::string& dir) {
  RawSession session;
  LGPU_ASSIGN_OR_RETURN(session.channel, GeneratedChannel::Connect(dir + "/session.sock"));
  v1::Frame hello;
  hello.mutable_hello()->set_protocol_version(
      GeneratedChannel::kOldestVersion);  // which is never asked to trim
  hello.mutable_hello()->set_oldest_version(GeneratedChannel::kOldestVersion);
  hello.mutable_hello()->set_client("raw");
  hello.mutable_hello()->set_pid(::getpid());
  LGPU_ASSIGN_OR_RETURN(GeneratedFrame answer, session.Ask(hello));
  if (!answer.frame.has_welcome() || answer.fds.size() != 2) {
    return absl::InternalError(absl::StrCat("no Welcome: ", answer.frame.ShortDebugString()));
  }
  session.token = answer.frame.welcome().session_token();
  session.id = answer.frame.welcome().session_id();
  session.stats_page = std::move(answer.fds[0]);
  session.client_page = std::move(answer.fds[1]);
  return session;
}

absl::StatusOr<GeneratedFrame> RawSession::Ask(const v1::Frame& frame) {
  LGPU_RETURN_IF_ERROR(channel.Send(frame, {}, Patience()));
  return channel.Receive(Patience());
}

absl::StatusOr<RawSession::Grown> RawSession::Grow(std::uint64_t request_id, std::uint64_t device_id,
                                                   std::uint64_t bytes, std::uint64_t timeout_ms) {
  v1::Frame grow;
  grow.mutable_grow()->set_request_id(request_id);
  grow.mutable_grow()->set_device_id(device_id);
  grow.mutable_grow()->set_at_least_bytes(bytes);
  grow.mutable_grow()->set_wanted_bytes(bytes);
  grow.mutable_grow()->set_timeout_ms(timeout_ms);
  Grown grown;
  LGPU_ASSIGN_OR_RETURN(GeneratedFrame answer, Ask(grow));
  while (answer.frame.has_grant()) {
    const v1::Grant& grant = answer.frame.grant();
    for (const v1::Chunk& chunk : grant.chunks()) grown.chunks.push_back(chunk);
    for (UniqueFd& fd : answer.fds) grown.fds.push_back(std::move(fd));
    const bool more = grant.more();
    v1::Frame ack;
    ack.mutable_ack()->set_grant_id(grant.grant_id());
    LGPU_RETURN_IF_ERROR(channel.Send(ack, {}, Patience()));
    if (!more) return grown;
    LGPU_ASSIGN_OR_RETURN(answer, channel.Receive(Patience()));
  }
  if (answer.frame.has_grow_refused()) {
    return absl::Status(static_cast<absl::StatusCode>(answer.frame.grow_refused().code()),
                        answer.frame.grow_refused().message());
  }
  return absl::InternalError(
      absl::StrCat("neither Grant nor GrowRefused: ", answer.frame.ShortDebugString()));
}

v1::CreateLeaseRequest OneDevice(std::uint64_t limit_bytes, bool preallocate, bool lasting) {
  v1::CreateLeaseRequest request;
  request.set_lasting(lasting);
  v1::LogicalDeviceSpec& spec = *request.add_devices();
  spec.set_memory_limit_bytes(limit_bytes);
  spec.set_mode(preallocate ? v1::LogicalDeviceSpec::MODE_PREALLOCATE : v1::LogicalDeviceSpec::MODE_GROWTH);
  return request;
}

std::uint64_t ChunkBytesOpen(pid_t pid) {
  std::uint64_t bytes = 0;
  std::error_code error;
  for (std::filesystem::directory_iterator it(absl::StrCat("/proc/", pid, "/fd"), error), end;
       !error && it != end; it.increment(error)) {
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(it->path(), gone).string();
    struct stat info {};
    if (target.rfind("/memfd:lgpu-chunk", 0) == 0 && ::stat(it->path().c_str(), &info) == 0) {
      bytes += static_cast<std::uint64_t>(info.st_blocks) * 512;
    }
  }
  return bytes;
}

std::uint64_t ChunkBytesHeldBy(const std::vector<pid_t>& pids) {
  std::map<std::uint64_t, std::uint64_t> chunks;  // by inode
  for (const pid_t pid : pids) {
    std::error_code error;
    for (std::filesystem::directory_iterator it(absl::StrCat("/proc/", pid, "/fd"), error), end;
         !error && it != end; it.increment(error)) {
      std::error_code gone;
      const std::string target = std::filesystem::read_symlink(it->path(), gone).string();
      struct stat info {};
      if (target.rfind("/memfd:lgpu-chunk", 0) == 0 && ::stat(it->path().c_str(), &info) == 0) {
        chunks[info.st_ino] = static_cast<std::uint64_t>(info.st_blocks) * 512;
      }
    }
  }
  std::uint64_t bytes = 0;
  for (const auto& [inode, size] : chunks) bytes += size;
  return bytes;
}

std::size_t CountDescriptors(pid_t pid) { return CountEntries(absl::StrCat("/proc/", pid, "/fd")); }
std::size_t CountThreads(pid_t pid) { return CountEntries(absl::StrCat("/proc/", pid, "/task")); }

std::size_t CountMappings(pid_t pid) {
  std::ifstream maps(absl::StrCat("/proc/", pid, "/maps"));
  std::size_t count = 0;
  for (std::string line; std::getline(maps, line);) {
    if (line.find("memfd:lgpu-") != std::string::npos) ++count;
  }
  return count;
}

std::uint64_t PrivateBytes(pid_t pid) {
  return KilobytesOf(absl::StrCat("/proc/", pid, "/status"), "RssAnon:");
}
std::uint64_t MachineShmem() {
  // Each processor counts a few pages for itself first; reading this adds them up (root only).
  std::ifstream refresh("/proc/sys/vm/stat_refresh");
  refresh.get();
  return KilobytesOf("/proc/meminfo", "Shmem:");
}

void E2eTest::StartDaemon(const DaemonProcess::Options& options) {
  absl::StatusOr<std::unique_ptr<DaemonProcess>> daemon = DaemonProcess::Start(options);
  ASSERT_TRUE(daemon.ok()) << daemon.status();
  daemon_ = *std::move(daemon);
  absl::StatusOr<std::unique_ptr<Control>> control = Control::Open(daemon_->dir());
  ASSERT_TRUE(control.ok()) << control.status();
  control_ = *std::move(control);
}

DaemonProcess::Options E2eTest::InDirectory(const std::string& simulate) const {
  return {.simulate = simulate,
          .dir = directory_.path() + "/run",
          .lock_dir = directory_.path() + "/locks",
          .state_dir = directory_.path() + "/state"};
}

void E2eTest::StartInDirectory(const std::string& simulate) {
  simulate_ = simulate;
  StartDaemon(InDirectory(simulate));
}

void E2eTest::KillDaemon() {
  control_.reset();
  daemon_->program().Signal(SIGKILL);
  ASSERT_EQ(daemon_->program().Wait(), 128 + SIGKILL);
}

void E2eTest::Boot(const std::string& simulate) {
  KillDaemon();
  std::filesystem::remove_all(directory_.path() + "/run");
  StartInDirectory(simulate);
}

void E2eTest::KillDaemonWhileItRemoves(const std::string& lease) {
  const std::string lasting = directory_.path() + "/state/leases";
  const auto before = std::filesystem::file_size(lasting);
  std::thread remover([dir = daemon_->dir(), lease] {
    auto control = Control::Open(dir);
    if (control.ok()) (*control)->RemoveLease(lease).IgnoreError();
  });
  EXPECT_TRUE(Eventually([&] { return std::filesystem::file_size(lasting) < before; }));
  KillDaemon();
  remover.join();
}

std::optional<v1::SessionStats> E2eTest::SessionOf(pid_t pid) {
  const v1::StatsSnapshot snapshot = Stats();
  for (const v1::LeaseStats& lease : snapshot.leases()) {
    for (const v1::SessionStats& session : lease.sessions()) {
      if (session.pid() == pid) return session;
    }
  }
  return std::nullopt;
}

bool E2eTest::IsInState(pid_t pid, v1::SessionStats::State state) {
  const std::optional<v1::SessionStats> session = SessionOf(pid);
  return session && session->state() == state;
}

void E2eTest::TearDown() {
  if (!daemon_ || !daemon_->program().running()) return;
  EXPECT_TRUE(EverythingIsBack());
  control_.reset();
  EXPECT_EQ(daemon_->Stop(), 0) << daemon_->program().Errors();
  if (HasFailure()) std::fprintf(stderr, "lgpud said:\n%s\n", daemon_->program().Errors().c_str());
}

std::unique_ptr<ChildProgram> E2eTest::StartClient(const ChildProgram::Environment& environment) {
  ChildProgram::Options options{.argv = {DaemonProcess::ProgramPath(LGPU_E2E_CLIENT)},
                                .environment = environment};
  options.environment.try_emplace("LGPU_ENDPOINT", daemon_->dir());
  absl::StatusOr<std::unique_ptr<ChildProgram>> client = ChildProgram::Start(options);
  EXPECT_TRUE(client.ok()) << client.status();
  return client.ok() ? *std::move(client) : nullptr;
}

std::string E2eTest::Ask(ChildProgram& client, const std::string& command) {
  client.WriteLine(command);
  const std::optional<std::string> answer = client.ReadLine();
  return answer ? *answer : absl::StrCat("no answer to ", command, "; stderr: ", client.Errors());
}

std::string E2eTest::Alloc(ChildProgram& client, const std::string& id, std::uint64_t mib) {
  return Ask(client, absl::StrCat("alloc c ", id, " ", mib * kMiB));
}

v1::StatsSnapshot E2eTest::Stats() {
  absl::StatusOr<v1::StatsSnapshot> stats = control_->GetStats();
  EXPECT_TRUE(stats.ok()) << stats.status();
  return stats.ok() ? *stats : v1::StatsSnapshot();
}

std::uint64_t E2eTest::HeldBytes() {
  std::uint64_t held = 0;
  const v1::StatsSnapshot snapshot = Stats();
  for (const v1::CardStats& card : snapshot.cards()) held += card.held_bytes();
  return held;
}

::testing::AssertionResult E2eTest::LedgerIsTrue(const std::vector<pid_t>& pids) {
  if (Eventually([&] { return HeldBytes() == ChunkBytesHeldBy(pids); })) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << "ledger " << HeldBytes() << ", held " << ChunkBytesHeldBy(pids) << "\n"
         << Stats().DebugString();
}

::testing::AssertionResult E2eTest::EverythingIsBack() {
  const auto back = [&] { return HeldBytes() == 0 && ChunkBytesOpen(daemon_->pid()) == 0; };
  if (!Eventually(back)) {
    return ::testing::AssertionFailure()
           << "held: " << HeldBytes() << ", in descriptors of the daemon: " << ChunkBytesOpen(daemon_->pid())
           << "\n"
           << Stats().DebugString();
  }
  // A dead session's two pages are mapped until the daemon has read their last records.
  if (!Eventually([&] { return CountMappings(daemon_->pid()) == 0; })) {
    return ::testing::AssertionFailure() << CountMappings(daemon_->pid()) << " memfds mapped by the daemon";
  }
  if (CountMappings(::getpid()) != 0) return ::testing::AssertionFailure() << "the test maps memfds";
  return ::testing::AssertionSuccess();
}

}  // namespace lgpu::testing
