// The HTTP port of a real lgpud, and what it takes over while it runs.

#include <httplib.h>
#include <signal.h>
#include <sys/stat.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "tests/e2e/harness.h"

namespace lgpu::testing {
namespace {

using nlohmann::json;
using ::testing::AllOf;
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
    const auto result = client.Get(path, headers);
    if (!result) return absl::StrCat("no answer: ", httplib::to_string(result.error()));
    EXPECT_EQ(result->status, status) << path << ": " << result->body;
    type_ = result->get_header_value("Content-Type");
    return result->body;
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
  EXPECT_THAT(Get("/metrics"),
              HasSubstr(absl::StrCat(
                  "lgpu_logical_device_memory_limit_bytes{gpu=\"0\",device=\"GPU:0\",lease=\"train\"} ",
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

TEST_F(HttpTest, AForeignHostNameAndAMissingTokenAreRefused) {
  StartWithHttp();
  Get("/metrics", 403, {{"Host", "evil.example"}});
  Get("/metrics", 200, {{"Host", "localhost:1"}});
  ASSERT_EQ(daemon_->Stop(), 0);
  TempDir dir;
  std::ofstream(dir.path() + "/token") << "0123456789abcdef0123\n";
  StartWithHttp("token_file = \"" + dir.path() + "/token\"\n");
  Get("/metrics", 401);
  Get("/metrics", 401, {{"Authorization", "Bearer 0123456789abcdef0124"}});
  EXPECT_THAT(Get("/metrics", 200, {{"Authorization", "Bearer 0123456789abcdef0123"}}),
              HasSubstr("lgpu_leases"));
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

TEST_F(HttpTest, AReloadTakesOverWhatCanChangeAndLeavesTheRest) {
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
  EXPECT_TRUE(said("the configuration is not taken over: " + config + ":5:16: "));
  EXPECT_EQ((*control)->CreateLease(OneDevice(60 * kMiB, false, true)).status().code(),
            absl::StatusCode::kResourceExhausted)
      << "the caps are as they were";
  (*daemon)->Signal(SIGTERM);
  EXPECT_EQ((*daemon)->Wait(), 0);
}

TEST_F(HttpTest, WhatIsWrongWithTheConfigurationKeepsItFromStarting) {
  TempDir dir;
  const auto start = [&](const std::string& config) {
    std::ofstream(dir.path() + "/lgpud.toml")
        << "[daemon]\nlock_dir = \"" << dir.path() << "/locks\"\nsocket_group = \"\"\n"
        << config;
    return *RunProgram({.argv = {DaemonProcess::LgpudPath(), "--dir", dir.path() + "/run", "--simulate",
                                 "64MiB", "--config", dir.path() + "/lgpud.toml"}});
  };
  const ProgramResult user = start("[[logical_device]]\nlease = \"a\"\nowner = \"no-such-user\"\n");
  EXPECT_EQ(user.code, 78) << user.err;
  EXPECT_THAT(user.err, HasSubstr("lgpud.toml:4:1: lease a: there is no user 'no-such-user'"));
  EXPECT_EQ(start("[[logical_device]]\nlease = \"a\"\nmemory = \"1GiB\"\n").code, 78);
  EXPECT_EQ(start("[http]\nlisten = \"127.0.0.1:0\"\ntoken_file = \"/no/such/token\"\n").code, 4);
}

}  // namespace
}  // namespace lgpu::testing
