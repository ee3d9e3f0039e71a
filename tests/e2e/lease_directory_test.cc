// The directory of one lease, as a container has it mounted: a connection there has the rights of that lease
// alone.

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/e2e/harness.h"

namespace lgpu::testing {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// Users without a name.
constexpr int kAnn = 61301;
constexpr int kStranger = 100000;  // as root of a user namespace is

class LeaseDirectoryTest : public E2eTest {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "only root makes directories of leases for others";
  }
  void TearDown() override {
    if (daemon_ == nullptr) return;  // skipped
    for (const char* const lease : {"job", "other"}) control_->RemoveLease(lease).IgnoreError();
    E2eTest::TearDown();
  }
  void Start(const std::string& simulate = "2x256MiB") {
    directory_.OpenToEverybody();
    DaemonProcess::Options options = InDirectory(simulate);
    options.open_to_everybody = true;
    StartDaemon(options);
  }
  ProgramResult Run(int uid, const std::string& endpoint, std::vector<std::string> words) {
    words.insert(words.begin(), DaemonProcess::LgpuPath());
    const auto result = RunProgram(As(uid, endpoint, std::move(words)));
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() ? *result : ProgramResult();
  }
  static ChildProgram::Options As(int uid, const std::string& endpoint, std::vector<std::string> words) {
    const std::string id = std::to_string(uid);
    std::vector<std::string> argv = {"setpriv", "--reuid", id, "--regid", id, "--clear-groups"};
    argv.insert(argv.end(), words.begin(), words.end());
    return {.argv = std::move(argv), .environment = {{"LGPU_ENDPOINT", endpoint}, {"HOME", "/nonexistent"}}};
  }
  /// Ann's managed lease "job" on the second card, and another lease; the directory of ann's.
  std::string MakeDirectory(bool open = true) {
    EXPECT_EQ(Run(0, daemon_->dir(),
                  {"create", "--managed", "--owner", "61301", "--name", "job", "-m", "64MiB", "--gpus", "1"})
                  .code,
              0);
    EXPECT_EQ(Run(0, daemon_->dir(), {"create", "--name", "other", "-m", "64MiB"}).code, 0);
    const ProgramResult cdi = Run(0, daemon_->dir(), {"env", "job", "--format", "cdi"});
    EXPECT_EQ(cdi.code, 0) << cdi.err;
    const json spec = json::parse(cdi.out, nullptr, /*allow_exceptions=*/false);
    EXPECT_EQ(spec["kind"], "lgpu.io/lease");
    EXPECT_EQ(spec["devices"][0]["name"], "job");
    const std::string path = spec["devices"][0]["containerEdits"]["mounts"][0]["hostPath"];
    struct stat above {};
    EXPECT_EQ(::stat((path + "/..").c_str(), &above), 0);
    EXPECT_EQ(above.st_mode & 0007u, 0u) << "no other user comes there without a mount";
    // Stands for the mount of a container.
    EXPECT_TRUE(!open || ::chmod((path + "/..").c_str(), 0755) == 0);
    return path;
  }
};

TEST_F(LeaseDirectoryTest, AConnectionThereSeesAndUsesItsLeaseAlone) {
  Start();
  const std::string path = MakeDirectory();
  EXPECT_EQ(Run(0, daemon_->dir(), {"env", "job", "--format", "cdi"}).code, 0) << "a repetition is fine";
  EXPECT_EQ(Run(kAnn, daemon_->dir(), {"env", "job", "--format", "cdi"}).code, 0) << "for her own containers";
  EXPECT_EQ(Run(kAnn, daemon_->dir(), {"env", "other", "--format", "cdi"}).code, 6);
  for (const int uid : {0, kAnn, kStranger}) {
    const ProgramResult seen =
        Run(uid, path, {"ls", "--query", "lease,gpu.minor", "--format", "csv,noheader"});
    EXPECT_EQ(seen.out, "job,1\n") << uid << seen.err;
    const ProgramResult all = Run(uid, path, {"ls", "--json"});
    EXPECT_THAT(all.out,
                AllOf(HasSubstr("\"minor\":1"), Not(HasSubstr("\"minor\":0")), Not(HasSubstr("other"))));
    EXPECT_EQ(Run(uid, path, {"verify", "--lease", "job"}).code, 0);
    EXPECT_EQ(Run(uid, path, {"inspect", "other"}).code, 6);
    EXPECT_EQ(Run(uid, path, {"rm", "other"}).code, 6);
    EXPECT_THAT(Run(uid, path, {"events"}).out, Not(HasSubstr("other")));
    const ProgramResult trimmed = Run(uid, path, {"trim", "--json"});
    EXPECT_THAT(trimmed.out, AllOf(HasSubstr("\"job\""), Not(HasSubstr("other")))) << trimmed.err;
    EXPECT_EQ(Run(uid, path, {"trim", "other"}).code, 6);
    for (const std::vector<std::string>& words : {std::vector<std::string>{"rm", "job"},
                                                  {"resize", "job", "-m", "128MiB"},
                                                  {"rm", "--request-id", "x"},
                                                  {"create", "-m", "2MiB"},
                                                  {"create", "-m", "2MiB", "--managed"},
                                                  {"create", "-m", "2MiB", "--wait=1s"},
                                                  {"env", "job", "--format", "cdi"}}) {
      EXPECT_EQ(Run(uid, path, words).code, 4) << uid << " " << ::testing::PrintToString(words);
    }
    EXPECT_EQ(Run(uid, path, {"run", "-m", "2MiB", "--", "true"}).code, 125);
  }
}

TEST_F(LeaseDirectoryTest, ItsOwnerReachesItAndNoOtherUser) {
  Start();
  const std::string path = MakeDirectory(/*open=*/false);
  EXPECT_EQ(Run(kAnn, path, {"verify", "--lease", "job"}).code, 0);
  EXPECT_NE(Run(kStranger, path, {"verify", "--lease", "job"}).code, 0);
  const auto write = RunProgram(As(kAnn, path, {"touch", path + "/../x"}));
  ASSERT_TRUE(write.ok());
  EXPECT_NE(write->code, 0) << "what lgpud makes there cannot be replaced";
  EXPECT_NE(RunProgram(As(kAnn, path, {"ls", path + "/../.."}))->code, 0)
      << "no user sees whose leases there are";
}

TEST_F(LeaseDirectoryTest, AUserHasABoundedNumberOfThem) {
  Start();
  for (int i = 0; i < 65; ++i) {
    const std::string name = absl::StrCat("n", i);
    ASSERT_EQ(Run(kAnn, daemon_->dir(), {"create", "--name", name, "-m", "2MiB"}).code, 0);
    const ProgramResult made = Run(kAnn, daemon_->dir(), {"env", name, "--format", "cdi"});
    EXPECT_EQ(made.code == 0, i < 64) << i << made.err;
    EXPECT_THAT(made.err, HasSubstr(i < 64 ? "" : "as many as a user may have"));
  }
}

TEST_F(LeaseDirectoryTest, TheNextDaemonServesItAgain) {
  Start();
  const std::string path = MakeDirectory();
  struct stat before {};
  ASSERT_EQ(::stat(path.c_str(), &before), 0);
  const auto client = *ChildProgram::Start(
      As(kStranger, path, {"env", "LGPU_LEASE=job", DaemonProcess::ProgramPath(LGPU_E2E_CLIENT)}));
  ASSERT_THAT(Ask(*client, "open c"), StartsWith("ok "));
  ASSERT_THAT(Alloc(*client, "a", 32), StartsWith("ok "));
  KillDaemon();
  std::filesystem::create_directory(path + "/../../l-gone");  // of a lease that ended meanwhile
  Start();
  struct stat after {};
  ASSERT_EQ(::stat(path.c_str(), &after), 0);
  EXPECT_EQ(after.st_ino, before.st_ino) << "a container has this one mounted";
  EXPECT_FALSE(std::filesystem::exists(path + "/../../l-gone"));
  ASSERT_EQ(::chmod((path + "/..").c_str(), 0755), 0);
  EXPECT_TRUE(Eventually([&] { return IsBack(client->pid()); }));
  EXPECT_THAT(Alloc(*client, "b", 32), StartsWith("ok "));
  EXPECT_THAT(Alloc(*client, "c", 2), StartsWith("error")) << "the limit holds";
  EXPECT_EQ(Ask(*client, "close c"), "ok");
  EXPECT_EQ(Run(0, daemon_->dir(), {"rm", "job"}).code, 0);
  EXPECT_TRUE(Eventually([&] { return !std::filesystem::exists(path); }));
}

TEST_F(LeaseDirectoryTest, TheDirectoryOfALeaseThatWaitsStays) {
  Start();
  const std::string path = MakeDirectory();
  struct stat before {};
  ASSERT_EQ(::stat(path.c_str(), &before), 0);
  KillDaemon();
  Start("256MiB");
  EXPECT_EQ(Run(0, daemon_->dir(), {"inspect", "job"}).code, 6) << "its GPU is not served";
  // A lease that ends after several looks at the directories.
  ASSERT_EQ(
      Run(0, daemon_->dir(), {"create", "--managed", "--name", "witness", "-m", "2MiB", "--ttl", "1200ms"})
          .code,
      0);
  EXPECT_TRUE(Eventually([&] { return Run(0, daemon_->dir(), {"inspect", "witness"}).code == 6; }));
  KillDaemon();
  Start();
  struct stat after {};
  ASSERT_EQ(::stat(path.c_str(), &after), 0);
  EXPECT_EQ(after.st_ino, before.st_ino) << "a container has this one mounted";
  ASSERT_EQ(::chmod((path + "/..").c_str(), 0755), 0);
  EXPECT_EQ(Run(kStranger, path, {"verify", "--lease", "job"}).code, 0);
  KillDaemon();
  Start("256MiB");
  EXPECT_EQ(Run(0, daemon_->dir(), {"rm", "job"}).code, 0) << "it is given up";
  EXPECT_TRUE(Eventually([&] { return !std::filesystem::exists(path); }));
}

TEST_F(LeaseDirectoryTest, CallsThatCameByTheDirectoryEndWithTheLease) {
  Start();
  const std::string path = MakeDirectory();
  const auto follower =
      *ChildProgram::Start(As(kAnn, path, {DaemonProcess::LgpuPath(), "events", "--follow"}));
  ASSERT_TRUE(follower->ReadLine().has_value()) << "it follows";
  EXPECT_EQ(Run(0, daemon_->dir(), {"rm", "job"}).code, 0);
  EXPECT_TRUE(Eventually([&] { return !std::filesystem::exists(path); }));
  EXPECT_TRUE(follower->Wait().has_value()) << "its stream ends";
}

}  // namespace
}  // namespace lgpu::testing
