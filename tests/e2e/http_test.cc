// The HTTP port of a real lgpud, and the settings of it that a reload changes.

#include <httplib.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "absl/strings/str_cat.h"
#include "tests/e2e/harness.h"

namespace lgpu::testing {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class HttpTest : public E2eTest {
 protected:
  void StartWithHttp(const std::string& config = "") {
    StartDaemon({.config = "[http]\nlisten = \"127.0.0.1:0\"\n" + config});
    const std::string log = daemon_->program().Errors();
    const std::string begin = "lgpud serves HTTP at ";
    // The line comes after the one that says ready.
    ASSERT_TRUE(
        Eventually([&] { return daemon_->program().Errors().find("/metrics\n") != std::string::npos; }));
    const std::string errors = daemon_->program().Errors();
    const std::size_t at = errors.find(begin) + begin.size();
    url_ = errors.substr(at, errors.find("/metrics", at) - at);
  }
  std::string Get(const std::string& path, int status = 200, const httplib::Headers& headers = {}) {
    httplib::Client client(url_);
    client.set_read_timeout(ChildProgram::kPatience);
    const auto result = client.Get(path, headers);
    if (!result) return absl::StrCat("no answer: ", httplib::to_string(result.error()));
    EXPECT_EQ(result->status, status) << path << ": " << result->body;
    type_ = result->get_header_value("Content-Type");
    return result->body;
  }

  /// A connection that says nothing yet.
  UniqueFd Connect() const {
    UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(std::stoi(url_.substr(url_.rfind(':') + 1))));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    return socket;
  }

  std::string url_;
  std::string type_;
};

TEST_F(HttpTest, MetricsFollowTheLeases) {
  StartWithHttp();
  EXPECT_THAT(Get("/metrics"), AllOf(HasSubstr("lgpu_build_info{"), Not(HasSubstr("lease=\"train\""))));
  EXPECT_THAT(type_, StartsWith("text/plain; version=0.0.4"));
  auto client = StartClient();
  ASSERT_THAT(Ask(*client, absl::StrCat("open c lease_name=train limit=", 8 * kMiB)), StartsWith("ok "));
  ASSERT_EQ(Ask(*client, "work c"), "ok");
  EXPECT_THAT(Get("/metrics"), ContainsRegex(absl::StrCat(
                                   "lgpu_logical_device_memory_limit_bytes\\{gpu=\"0\",device=\"GPU:0\","
                                   "lease=\"train\",owner=\"u-[0-9a-f]{8}\"\\} ",
                                   8 * kMiB, "\n")));
  EXPECT_TRUE(Eventually([&] {
    return Get("/metrics").find("lgpu_ops_executed_total{op=\"MatMul\",device_type=\"GPU\"} 1\n") !=
           std::string::npos;
  }));
  EXPECT_EQ(Ask(*client, "close c"), "ok");
  EXPECT_TRUE(Eventually([&] { return Get("/metrics").find("lease=\"train\"") == std::string::npos; }));
  EXPECT_THAT(Get("/metrics"), AllOf(HasSubstr("lgpu_leases_reclaimed_total{reason=\"client_exit\"} 1\n"),
                                     HasSubstr("{op=\"MatMul\",device_type=\"GPU\"} 1\n")));
}

TEST_F(HttpTest, ProbesAndTheApi) {
  StartWithHttp();
  EXPECT_EQ(Get("/healthz"), "ok\n");
  EXPECT_EQ(Get("/readyz"), "ready\n");
  auto client = StartClient();
  ASSERT_THAT(Ask(*client, "open c lease_name=train"), StartsWith("ok "));
  ASSERT_EQ(Ask(*client, "work c"), "ok");
  EXPECT_EQ(json::parse(Get("/api/v1/snapshot"))["schema"], "lgpu.snapshot/v1");
  EXPECT_EQ(json::parse(Get("/api/v1/leases"))["leases"][0]["sessions"][0]["pid"], client->pid());
  EXPECT_EQ(json::parse(Get("/api/v1/cards"))["cards"].size(), 1u);
  EXPECT_EQ(json::parse(Get("/api/v1/version"))["backend"], "simulated");
  EXPECT_EQ(json::parse(Get("/api/v1/placements?lease=train"))["lease"]["name"], "train");
  Get("/api/v1/placements?lease=none", 404);
  const json events = json::parse(Get("/api/v1/events"));
  EXPECT_EQ(events["events"][0]["kind"], "daemon_started");
  EXPECT_EQ(
      json::parse(Get(absl::StrCat("/api/v1/events?after=", events["last_sequence"].get<int>())))["events"]
          .size(),
      0u);
  EXPECT_EQ(json::parse(Get("/nothing", 404))["schema"], "lgpu.error/v1");
  EXPECT_EQ(Ask(*client, "close c"), "ok");
}

TEST_F(HttpTest, SlowClientsKeepNoOtherClientOut) {
  StartWithHttp();
  std::vector<UniqueFd> slow;
  for (int i = 0; i < 100; ++i) {
    slow.push_back(Connect());
    ASSERT_EQ(::send(slow.back().get(), "G", 1, MSG_NOSIGNAL), 1);
  }
  EXPECT_THAT(Get("/metrics"), HasSubstr("lgpu_build_info{"));
  // The daemon has closed the slow connections for this.
  char byte = 0;
  EXPECT_LE(::recv(slow.front().get(), &byte, 1, 0), 0);
}

/// A user that keeps 600 connections open, says nothing on them, and opens another one for each that is
/// closed.
class ManyConnections {
 public:
  ManyConnections(std::uint16_t port, uid_t uid) : thread_([this, port, uid] { Run(port, uid); }) {}
  ~ManyConnections() {
    stopping_ = true;
    thread_.join();
  }
  int opened() const { return opened_; }

 private:
  void Run(std::uint16_t port, uid_t uid) {
    // Of this thread alone.
    EXPECT_EQ(::syscall(SYS_setresuid, -1, uid, -1), 0);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    std::vector<UniqueFd> sockets(600);
    while (!stopping_) {
      for (UniqueFd& socket : sockets) {
        char byte = 0;
        if (socket && ::recv(socket.get(), &byte, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN) continue;
        socket.Reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
        ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
        ::send(socket.get(), "G", 1, MSG_NOSIGNAL);
        ++opened_;
      }
    }
  }

  std::atomic<bool> stopping_ = false;
  std::atomic<int> opened_ = 0;
  std::thread thread_;
};

TEST_F(HttpTest, AUserWithManyConnectionsKeepsNoOtherUserOut) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root may become several users";
  StartWithHttp();
  const ManyConnections attacker(static_cast<std::uint16_t>(std::stoi(url_.substr(url_.rfind(':') + 1))),
                                 61301);
  ASSERT_TRUE(Eventually([&] { return attacker.opened() >= 600; }));
  for (int i = 0; i < 20; ++i) EXPECT_THAT(Get("/metrics"), HasSubstr("lgpu_build_info{")) << i;
}

TEST_F(HttpTest, ARequestHasADeadlineHoweverItsBytesTrickleIn) {
  StartWithHttp();
  const UniqueFd slow = Connect();
  const auto end = std::chrono::steady_clock::now() + ChildProgram::kPatience;
  bool closed = false;
  while (!closed && std::chrono::steady_clock::now() < end) {
    ::send(slow.get(), "x", 1, MSG_NOSIGNAL);
    pollfd polled{slow.get(), POLLIN, 0};
    closed = ::poll(&polled, 1, 50) > 0;
  }
  EXPECT_TRUE(closed);
}

TEST_F(HttpTest, ErrorsHaveTheirCode) {
  StartWithHttp();
  const auto code = [&](const std::string& path, int status) {
    return json::parse(Get(path, status)).value("code", "");
  };
  EXPECT_EQ(code("/nothing", 404), "NOT_FOUND");
  EXPECT_EQ(code("/api/v1/placements?lease=none", 404), "NOT_FOUND");
  EXPECT_EQ(code("/api/v1/placements", 400), "INVALID_ARGUMENT");
  EXPECT_EQ(code("/api/v1/events?after=soon", 400), "INVALID_ARGUMENT");
  EXPECT_EQ(code("/" + std::string(9000, 'x'), 414), "INVALID_ARGUMENT");
  httplib::Client client(url_);
  client.set_read_timeout(ChildProgram::kPatience);
  const auto posted = client.Post("/metrics", "body", "text/plain");
  ASSERT_TRUE(posted);
  EXPECT_EQ(posted->status, 405);
  EXPECT_EQ(json::parse(posted->body)["code"], "UNIMPLEMENTED");
  EXPECT_EQ(posted->get_header_value("Allow"), "GET, HEAD");
  // The library parses it by recursion, and would put every one of them into one answer.
  std::string ranges = "bytes=0-";
  while (ranges.size() < 8000) ranges += ",0-";
  EXPECT_EQ(Get("/healthz", 200, {{"Range", ranges}}), "ok\n");
  EXPECT_EQ(Get("/healthz"), "ok\n");
}

TEST_F(HttpTest, AForeignHostNameAndAMissingTokenAreRefused) {
  StartWithHttp();
  Get("/metrics", 403, {{"Host", "evil.example"}});
  Get("/metrics", 403, {{"Host", "[::1].evil.example"}});
  Get("/metrics", 200, {{"Host", "[::1]:1"}});
  Get("/metrics", 200, {{"Host", "localhost:1"}});
  Get("/metrics", 200, {{"Host", "LocalHost:1"}});
  ASSERT_EQ(daemon_->Stop(), 0);
  TempDir dir;
  std::ofstream(dir.path() + "/token") << "0123456789abcdef0123\n";
  StartWithHttp("token_file = \"" + dir.path() + "/token\"\n");
  Get("/metrics", 401);
  Get("/metrics", 401, {{"Authorization", "Bearer 0123456789abcdef0124"}});
  EXPECT_THAT(Get("/metrics", 200, {{"Authorization", "Bearer 0123456789abcdef0123"}}),
              HasSubstr("lgpu_leases"));
  Get("/metrics", 200, {{"Authorization", "bearer  0123456789abcdef0123"}});
  Get("/metrics", 401, {{"Authorization", "Basic 0123456789abcdef0123"}});
  Get("/metrics", 401, {{"Authorization", "Bearer 0123456789ABCDEF0123"}});
  EXPECT_EQ(Get("/healthz"), "ok\n");
}

TEST_F(HttpTest, StaticLeasesAreThereFromTheStart) {
  StartDaemon({.config =
                   "[[logical_device]]\nlease = \"shared\"\nmemory = \"64MiB\"\n"
                   "[[logical_device]]\nlease = \"shared\"\nmemory = \"32MiB\"\nmode = \"preallocate\"\n"});
  const v1::StatsSnapshot snapshot = Stats();
  ASSERT_EQ(snapshot.leases_size(), 1);
  EXPECT_EQ(snapshot.leases(0).name(), "shared");
  EXPECT_TRUE(snapshot.leases(0).lasting());
  ASSERT_EQ(snapshot.leases(0).devices_size(), 2);
  EXPECT_EQ(snapshot.leases(0).devices(1).mode(), "preallocate");
  auto client = StartClient({{"LGPU_LEASE", "shared"}});
  ASSERT_THAT(Ask(*client, "open c"), StartsWith("ok "));
  EXPECT_EQ(Ask(*client, "work c"), "ok");
  EXPECT_EQ(Ask(*client, "close c"), "ok");
  EXPECT_EQ(control_->RemoveLease("shared"), absl::OkStatus());
}

TEST_F(HttpTest, AReloadAppliesLiveKeysAndLeavesTheRest) {
  TempDir dir;
  const std::string config = dir.path() + "/lgpud.toml";
  const std::string base = "[daemon]\nlock_dir = \"" + dir.path() + "/locks\"\nsocket_group = \"\"\n";
  const auto write = [&](const std::string& more) { std::ofstream(config) << base << more; };
  write("[[simulated_device]]\nmemory = \"256MiB\"\n");
  auto daemon = ChildProgram::Start(
      {.argv = {DaemonProcess::LgpudPath(), "--dir", dir.path() + "/run", "--config", config}});
  ASSERT_TRUE(daemon.ok());
  const auto said = [&](const std::string& text) {
    return Eventually([&] { return (*daemon)->Errors().find(text) != std::string::npos; });
  };
  ASSERT_TRUE(said(" ready: "));
  auto control = Control::Open(dir.path() + "/run");
  ASSERT_TRUE(control.ok());
  write(
      "[[simulated_device]]\nmemory = \"512MiB\"\n[memory]\ndefault_mode = \"preallocate\"\n"
      "[caps.users.\"*\"]\nmemory_limit = \"64MiB\"\n[[logical_device]]\nlease = \"new\"\nmemory = "
      "\"16MiB\"\n");
  (*daemon)->Signal(SIGHUP);
  ASSERT_TRUE(said("the configuration was read again"));
  EXPECT_TRUE(said("simulated_device has changed; that takes effect when lgpud is started again"));
  v1::StatsSnapshot snapshot = *(*control)->GetStats();
  ASSERT_EQ(snapshot.leases_size(), 1);
  EXPECT_EQ(snapshot.leases(0).devices(0).mode(), "preallocate");
  EXPECT_EQ(snapshot.cards(0).total_bytes(), 256 * kMiB);
  EXPECT_EQ((*control)->CreateLease(OneDevice(60 * kMiB, false, true)).status().code(),
            absl::StatusCode::kResourceExhausted);

  write("[caps.users.alice]\nmemory_limit = \"a lot\"\n");
  (*daemon)->Signal(SIGHUP);
  EXPECT_TRUE(said("the new configuration is refused, the old one stays in force: " + config + ":5:16: "));
  EXPECT_EQ((*control)->CreateLease(OneDevice(60 * kMiB, false, true)).status().code(),
            absl::StatusCode::kResourceExhausted)
      << "the caps are as they were";
  (*daemon)->Signal(SIGTERM);
  EXPECT_EQ((*daemon)->Wait(), 0);
}

TEST_F(HttpTest, ErrorsOfTheConfigurationAreFoundByTheCheckAndByTheStart) {
  TempDir dir;
  const std::string file = dir.path() + "/lgpud.toml";
  const auto run = [&](const std::string& config, bool check) {
    std::ofstream(file) << "[daemon]\nlock_dir = \"" << dir.path() << "/locks\"\nsocket_group = \"\"\n"
                        << config;
    std::vector<std::string> argv = {DaemonProcess::LgpudPath(), "--dir", dir.path() + "/run", "--config",
                                     file};
    if (config.find("simulated") == std::string::npos) argv.insert(argv.end(), {"--simulate", "64MiB"});
    if (check) argv.push_back("--check-config");
    return *RunProgram({.argv = argv});
  };
  const std::string token = dir.path() + "/token";
  std::ofstream(token) << "short\n";
  const std::string lease = "[[logical_device]]\nlease = \"a\"\n";
  const std::string card = "[[simulated_device]]\nmemory = \"64MiB\"\n";
  const std::pair<std::string, std::string> wrong[] = {
      {lease + "owner = \"no-such-user\"\n", ":6:1: lease a: there is no user 'no-such-user'"},
      {lease + "memory = \"1GiB\"\n", ":6:1: lease a: 1.00GiB can never fit"},
      {lease + "memory = \"8MiB\"\nguarantee = \"9MiB\"\n", ":6:1: lease a: a guarantee of 9.00MiB is above"},
      {lease + "memory = \"48MiB\"\nmode = \"preallocate\"\n[[logical_device]]\nlease = \"b\"\nguarantee = "
               "\"32MiB\"\n",
       ":10:1: lease b: a guarantee of 32.00MiB cannot be set aside"},
      {lease + "gpu = \"1\"\n", ":6:1: lease a: there is no GPU 1, this machine has 1"},
      {lease + "gpu = \"GPU-none\"\n", ":6:1: lease a: no GPU \"GPU-none\" is served here"},
      {lease + "name = \"\\u0007\"\n", ":6:1: lease a: a device's name is at most 63 printable characters"},
      {"[[logical_device]]\nlease = \"no name\"\n", ":5:1: a lease's name is 1 to 63 letters"},
      {lease + "memory = \"8MiB\"\n[caps.users.\"*\"]\nmemory_limit = \"4MiB\"\n", ":4:1: lease a: user "},
      {"[memory]\nreserve = \"1GiB\"\n",
       ":5:1: GPU 0: a reserve of 1.00GiB is more than the card's 64.00MiB"},
      {"[http]\nlisten = \"127.0.0.1:0\"\ntoken_file = \"/no/such/token\"\n",
       ":6:1: cannot read a token from http.token_file /no/such/token"},
      {"[http]\nlisten = \"127.0.0.1:0\"\ntoken_file = \"" + token + "\"\n", ":6:1: the token in "},
      {card + "uuid = \"a/b\"\n", ":6:1: 'a/b' cannot be the uuid of a GPU"},
      {card + "uuid = \"GPU-1\"\n" + card + "uuid = \"GPU-1\"\n", ":9:1: two simulated GPUs have the uuid"},
  };
  for (const auto& [config, text] : wrong) {
    for (const bool check : {true, false}) {
      const ProgramResult result = run(config, check);
      EXPECT_EQ(result.code, 78) << check << config << result.err;
      EXPECT_THAT(result.err, HasSubstr(file + text)) << check;
    }
  }
  const ProgramResult unknown = run("[caps.groups.no-such-group]\nleases = 1\n", true);
  EXPECT_EQ(unknown.code, 0);
  EXPECT_THAT(unknown.err, HasSubstr("caps.groups.no-such-group: there is no such group"));
  EXPECT_EQ(run(lease + "memory = \"8MiB\"\nguarantee = \"8MiB\"\ngpu = \"0\"\n", true).code, 0);
}

TEST_F(HttpTest, AReloadWithAnErrorChangesNothing) {
  TempDir dir;
  const std::string config = dir.path() + "/lgpud.toml";
  const auto write = [&](const std::string& more) {
    std::ofstream(config) << "[daemon]\nlock_dir = \"" << dir.path() << "/locks\"\nsocket_group = \"\"\n"
                          << more;
  };
  write("");
  auto daemon = ChildProgram::Start({.argv = {DaemonProcess::LgpudPath(), "--dir", dir.path() + "/run",
                                              "--config", config, "--simulate", "64MiB"}});
  ASSERT_TRUE(daemon.ok());
  const auto said = [&](const std::string& text) {
    return Eventually([&] { return (*daemon)->Errors().find(text) != std::string::npos; });
  };
  ASSERT_TRUE(said(" ready: "));
  auto control = Control::Open(dir.path() + "/run");
  ASSERT_TRUE(control.ok());
  ASSERT_TRUE((*control)->CreateLease(OneDevice(48 * kMiB, true, true)).ok());
  const std::string caps = "log_level = \"off\"\n[caps.users.\"*\"]\nleases = 1\n";
  const std::string good = "[[logical_device]]\nlease = \"a\"\nmemory = \"8MiB\"\n";
  // A lease that fits on no card, and a lease that does not fit on this card now.
  write(caps + good + "[[logical_device]]\nlease = \"b\"\nmemory = \"1GiB\"\n");
  (*daemon)->Signal(SIGHUP);
  ASSERT_TRUE(
      said("the new configuration is refused, the old one stays in force: " + config + ":12:1: lease b: "));
  write(caps.substr(0, caps.find('[')) + good + "[[logical_device]]\nlease = \"c\"\nguarantee = \"32MiB\"\n");
  (*daemon)->Signal(SIGHUP);
  ASSERT_TRUE(
      said("the new configuration is refused, the old one stays in force: " + config + ":8:1: lease c: "));
  EXPECT_EQ((*control)->GetStats()->leases_size(), 1) << "lease a is not there";
  EXPECT_TRUE((*control)->CreateLease(OneDevice(2 * kMiB, false, true)).ok()) << "no cap";
  (*daemon)->Signal(SIGTERM);
  EXPECT_EQ((*daemon)->Wait(), 0);
  EXPECT_TRUE(said("stopping on signal")) << "the log level is as it was";
}

}  // namespace
}  // namespace lgpu::testing
