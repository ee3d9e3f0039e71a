// Real users of one lgpud: caps, and how little one user sees of another. Only root may become several users.

#include <signal.h>
#include <unistd.h>

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/e2e/harness.h"

namespace lgpu::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// Users without a name, and two of Debian's that share their group (nogroup).
constexpr int kAnn = 61301;
constexpr int kBob = 61302;
constexpr int kSync = 4;
constexpr int kNobody = 65534;

class UsersTest : public E2eTest {
 protected:
  void Start(const std::string& config) {
    if (::geteuid() != 0) GTEST_SKIP() << "only root may start programs of several users";
    DaemonProcess::Options options{.simulate = "256MiB", .config = config};
    options.open_to_everybody = true;
    StartDaemon(options);
  }
  void TearDown() override {
    if (daemon_ == nullptr) return;  // skipped
    const v1::StatsSnapshot stats = Stats();
    for (const v1::LeaseStats& lease : stats.leases()) {
      if (!lease.lasting()) continue;  // it ends with its session
      EXPECT_TRUE(control_->RemoveLease(lease.id()).ok());
    }
    E2eTest::TearDown();
  }
  ChildProgram::Options As(int uid, std::vector<std::string> words) const {
    std::vector<std::string> argv = {"setpriv",
                                     "--reuid",
                                     std::to_string(uid),
                                     "--regid",
                                     std::to_string(uid == kSync || uid == kNobody ? 65534 : uid),
                                     "--clear-groups"};
    argv.insert(argv.end(), words.begin(), words.end());
    return {.argv = std::move(argv),
            .environment = {{"LGPU_ENDPOINT", daemon_->dir()}, {"HOME", "/nonexistent"}}};
  }
  ChildProgram::Options Lgpu(int uid, std::vector<std::string> words) const {
    words.insert(words.begin(), DaemonProcess::LgpuPath());
    return As(uid, std::move(words));
  }
  ProgramResult Run(int uid, std::vector<std::string> words) {
    const auto result = RunProgram(Lgpu(uid, std::move(words)));
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() ? *result : ProgramResult();
  }
  void ExpectRefused(int uid, std::vector<std::string> words, int code, const std::string& cap) {
    const ProgramResult result = Run(uid, std::move(words));
    EXPECT_EQ(result.code, code) << result.err;
    EXPECT_THAT(result.err, HasSubstr(cap));
  }
};

TEST_F(UsersTest, ARefusalNamesTheCap) {
  Start(absl::StrCat("[caps.users.", kAnn,
                     "]\nmemory_limit = \"64MiB\"\nguarantee = \"32MiB\"\nleases = 3\nsessions = 2\n"));
  const std::string key = absl::StrCat("(caps.users.", kAnn, ".");
  ASSERT_EQ(Run(kAnn, {"create", "-m", "32MiB", "--preallocate", "--name", "first"}).code, 0);
  ExpectRefused(kAnn, {"create", "-m", "48MiB"}, 75, key + "memory_limit)");
  ExpectRefused(kAnn, {"create", "-m", "16MiB", "--preallocate"}, 75, key + "guarantee)");
  ASSERT_EQ(Run(kAnn, {"create", "-m", "2MiB"}).code, 0);
  ASSERT_EQ(Run(kAnn, {"create", "-m", "2MiB"}).code, 0);
  ExpectRefused(kAnn, {"create", "-m", "2MiB"}, 75, key + "leases)");
  EXPECT_EQ(Run(kBob, {"create", "-m", "128MiB", "--preallocate"}).code, 0) << "it is another user's cap";
}

TEST_F(UsersTest, ProgramsBeyondTheCapOfSessionsAreRefused) {
  Start(absl::StrCat("[caps.users.", kAnn, "]\nsessions = 2\n"));
  const std::string key = absl::StrCat("(caps.users.", kAnn, ".sessions)");
  const std::vector<std::string> stays = {
      "run", "-m", "2MiB", "--", "/bin/sh", "-c", "echo begun; read line"};
  const auto first = *ChildProgram::Start(Lgpu(kAnn, stays));
  ASSERT_EQ(first->ReadLine(), "begun");
  const auto second = *ChildProgram::Start(Lgpu(kAnn, stays));
  ASSERT_EQ(second->ReadLine(), "begun");
  ExpectRefused(kAnn, {"run", "-m", "2MiB", "--", "true"}, 125, key);
  EXPECT_EQ(Run(kBob, {"run", "-m", "2MiB", "--", "true"}).code, 0);
  for (const auto& program : {first.get(), second.get()}) {
    program->WriteLine("");
    EXPECT_EQ(program->Wait(), 0);
  }
  EXPECT_TRUE(Eventually([&] { return Run(kAnn, {"run", "-m", "2MiB", "--", "true"}).code == 0; }));
}

TEST_F(UsersTest, CallsBeyondTheCapAreAskedToTryAgain) {
  Start(absl::StrCat("[caps.users.", kAnn, "]\ncalls = 1\n"));
  const auto follows = *ChildProgram::Start(Lgpu(kAnn, {"events", "-f"}));
  EXPECT_TRUE(Eventually([&] {
    const ProgramResult refused = Run(kAnn, {"--timeout", "1s", "ls"});
    return refused.code == 69 &&
           refused.err.find(absl::StrCat("may have at most 1 unfinished calls (caps.users.", kAnn,
                                         ".calls)")) != std::string::npos;
  }));
  EXPECT_EQ(Run(kBob, {"ls"}).code, 0);
  follows->Signal(SIGKILL);
  EXPECT_EQ(follows->Wait(), 128 + SIGKILL);
  EXPECT_EQ(Run(kAnn, {"ls"}).code, 0) << "the command tries again";
}

TEST_F(UsersTest, ACapOfAGroupCountsAllItsUsers) {
  Start("[caps.groups.nogroup]\nmemory_limit = \"64MiB\"\nleases = 2\n");
  ASSERT_EQ(Run(kSync, {"create", "-m", "48MiB"}).code, 0);
  ExpectRefused(kNobody, {"create", "-m", "32MiB"}, 75, "group nogroup may have memory limits");
  ExpectRefused(kNobody, {"create", "-m", "32MiB"}, 75, "(caps.groups.nogroup.memory_limit)");
  ASSERT_EQ(Run(kNobody, {"create", "-m", "8MiB"}).code, 0);
  ExpectRefused(kNobody, {"create", "-m", "2MiB"}, 75, "(caps.groups.nogroup.leases)");
  EXPECT_EQ(Run(kAnn, {"create", "-m", "128MiB"}).code, 0) << "ann is in no such group";
}

TEST_F(UsersTest, WhetherAnotherUsersLeaseExistsIsNotTold) {
  Start("");
  const ProgramResult made = Run(kAnn, {"create", "-m", "64MiB", "--preallocate", "--name", "secret"});
  ASSERT_EQ(made.code, 0);
  const std::string id = made.out.substr(0, made.out.find('\n'));
  // Each answer about ann's lease equals the one about a lease that does not exist, but for the name itself.
  const auto same = [&](const std::vector<std::string>& words, const std::string& lease) {
    const auto ask = [&](const std::string& name) {
      std::vector<std::string> asked = words;
      for (std::string& word : asked) {
        if (word == "LEASE") word = name;
      }
      ProgramResult result = Run(kBob, asked);
      for (std::size_t at; (at = result.err.find(name)) != std::string::npos;) {
        result.err.erase(at, name.size());
      }
      return absl::StrCat(result.code, " ", result.out, result.err);
    };
    EXPECT_EQ(ask(lease), ask("l-0badc0de")) << words.front() << " " << lease;
  };
  for (const std::string& lease : {std::string("secret"), id, absl::StrCat(kAnn, "/secret")}) {
    same({"rm", "LEASE"}, lease);
    same({"inspect", "LEASE"}, lease);
    same({"resize", "LEASE", "-m", "8MiB"}, lease);
    same({"placements", "LEASE"}, lease);
  }
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"ls", "-v"}, {"ls", "--json"}, {"ps"}, {"events"}, {"events", "--json"}}) {
    EXPECT_THAT(Run(kBob, words).out, AllOf(Not(HasSubstr("secret")), Not(HasSubstr(id)))) << words.front();
  }
  const auto client = *ChildProgram::Start(As(kBob, {"env", "LGPU_LEASE=" + id, LGPU_E2E_CLIENT}));
  EXPECT_THAT(Ask(*client, "open c"), AllOf(StartsWith("error"), HasSubstr("you have no lease named")));
  EXPECT_EQ(Run(kBob, {"create", "-m", "8MiB", "--name", "secret"}).code, 0) << "names are each user's own";
}

TEST_F(UsersTest, MemoryOfAnotherUserComesEmpty) {
  Start("");
  const auto ann = *ChildProgram::Start(As(kAnn, {LGPU_E2E_CLIENT}));
  ASSERT_THAT(Ask(*ann, "open c"), StartsWith("ok "));
  ASSERT_THAT(Alloc(*ann, "ones", 224), StartsWith("ok "));
  ASSERT_EQ(Ask(*ann, "close c"), "ok");
  absl::StatusOr<RawSession> session = RawSession::Open(daemon_->dir());
  ASSERT_TRUE(session.ok()) << session.status();
  control_->SetSessionToken(session->token);
  const absl::StatusOr<v1::Lease> lease = control_->CreateLease(OneDevice(256 * kMiB));
  control_->SetSessionToken("");
  ASSERT_TRUE(lease.ok()) << lease.status();
  absl::StatusOr<RawSession::Grown> grown = session->Grow(1, lease->devices(0).id(), 256 * kMiB);
  ASSERT_TRUE(grown.ok()) << grown.status();
  std::uint64_t bytes = 0;
  std::vector<char> part(1 << 20);
  for (const UniqueFd& fd : grown->fds) {
    ssize_t size = 0;
    for (off_t at = 0; (size = ::pread(fd.get(), part.data(), part.size(), at)) > 0; at += size) {
      bytes += static_cast<std::uint64_t>(size);
      EXPECT_TRUE(std::all_of(part.begin(), part.begin() + size, [](char byte) { return byte == 0; }));
    }
  }
  EXPECT_EQ(bytes, 256 * kMiB) << "all that there is, the other user's 224 MiB included";
  session = absl::CancelledError("closed");
}

TEST_F(UsersTest, BlocksAndOpsOfAnotherUsersLeaseAreNotFound) {
  Start("");
  ASSERT_EQ(Run(kAnn, {"create", "-m", "32MiB", "--name", "mine"}).code, 0);
  const std::string id = Stats().leases(0).id();
  for (const char* const verb : {"snapshot", "trace"}) {
    EXPECT_EQ(Run(kAnn, {verb, "mine"}).code, 0) << verb;
    for (const std::string& name : {std::string("mine"), id, absl::StrCat(kAnn, "/mine")}) {
      const ProgramResult other = Run(kBob, {verb, name});
      EXPECT_EQ(other.code, 6) << verb << " " << name << ": " << other.err;
      EXPECT_EQ(other.out, "") << verb << " " << name;
    }
  }
}

TEST_F(UsersTest, ALeaseThatGivesWayIsNotToldTheLeaseOfAnotherUser) {
  Start("");
  const auto ann = *ChildProgram::Start(
      Lgpu(kAnn, {"run", "-q", "--name", "holder", "--release", "sleep 60", "--", LGPU_E2E_CLIENT}));
  ASSERT_THAT(Ask(*ann, "open c"), StartsWith("ok "));
  ASSERT_THAT(Alloc(*ann, "a", 200), StartsWith("ok "));
  ASSERT_EQ(Ask(*ann, "work c 1"), "ok");  // since when it is idle is known from here on
  const auto bob = *ChildProgram::Start(As(kBob, {LGPU_E2E_CLIENT}));
  ASSERT_THAT(Ask(*bob, "open c lease_name=secret timeout=60000"), StartsWith("ok "));
  bob->WriteLine(absl::StrCat("alloc c b ", 100 * kMiB));
  std::string shown;
  EXPECT_TRUE(Eventually([&] {
    shown = Run(kAnn, {"ls", "--json"}).out;
    return absl::StrContains(shown, "gives_way_for");
  })) << shown;
  EXPECT_THAT(shown, HasSubstr("\"gives_way_for\":\"another user\""));
  EXPECT_THAT(shown, Not(HasSubstr("secret")));
  EXPECT_THAT(Run(0, {"ls", "--json"}).out, HasSubstr("\"gives_way_for\":\"secret\""));
  ann->Signal(SIGTERM);
  EXPECT_THAT(bob->ReadLine().value_or(""), StartsWith("ok"));
}

}  // namespace
}  // namespace lgpu::testing
