// `lgpu run --isolate`: programs that bypass the variables of `lgpu run`, as root, as root without the
// right to mount, and as an ordinary user, on the fake driver.

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/driver/shim_fixture.h"

namespace lgpu::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kUser[] = "61301";

/// A user that runs `lgpu run`, by the words before it.
struct Person {
  const char* name;
  std::vector<std::string> words;
};
const Person kSelf{"Self", {}};
const Person kRootWithoutMounts{"RootWithoutMounts",
                                {"setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"}};
const Person kOrdinaryUser{
    "OrdinaryUser",
    {"setpriv", absl::StrCat("--reuid=", kUser), absl::StrCat("--regid=", kUser), "--clear-groups"}};

class IsolateTest : public ShimTest, public ::testing::WithParamInterface<Person> {
 protected:
  void SetUp() override {
    if (::geteuid() != 0 && !GetParam().words.empty()) GTEST_SKIP() << "only root may become another user";
    DaemonProcess::Options options{.simulate = "", .environment = machine_.environment()};
    options.open_to_everybody = true;
    StartDaemon(options);
    own_.OpenToEverybody();
    if (::geteuid() == 0) {
      ASSERT_EQ(::chown(own_.path().c_str(), GetParam().words.size() == 4 ? 61301 : 0, 0), 0);
    }
    InheritTheMachine();
    const ProgramResult tried = RunIsolated({"/bin/true"});
    if (tried.err.find("may make no mount namespace") != std::string::npos ||
        tried.err.find("a mount namespace:") != std::string::npos) {
      GTEST_SKIP() << "this machine allows no namespace: " << tried.err;
    }
    ASSERT_EQ(tried.code, 0) << tried.err;
  }

  /// A process in a user namespace may not look into this one's descriptors: it gets them.
  void InheritTheMachine() {
    const std::string path = machine_.environment().at("LGPU_FAKE_CUDA").value_or("");
    const int state = std::stoi(path.substr(path.rfind('/') + 1));
    for (const int fd : {state, static_cast<int>(machine_.state().cards[0].memory_fd)}) {
      ASSERT_EQ(::fcntl(fd, F_SETFD, 0), 0);
    }
    machine_variable_ = absl::StrCat("LGPU_FAKE_CUDA=/proc/self/fd/", state);
  }

  ChildProgram::Options Isolated(const std::vector<std::string>& command,
                                 const std::vector<std::string>& flags = {}) {
    std::vector<std::string> words = GetParam().words;
    const std::vector<std::string> run = {"env",   machine_variable_, DaemonProcess::LgpuPath(),
                                          "run",   "--isolate",       "-m",
                                          "64MiB", "--memory-wait",   "500ms"};
    words.insert(words.end(), run.begin(), run.end());
    words.insert(words.end(), flags.begin(), flags.end());
    words.emplace_back("--");
    words.insert(words.end(), command.begin(), command.end());
    ChildProgram::Options options{.argv = std::move(words), .environment = machine_.environment()};
    options.environment["LGPU_ENDPOINT"] = daemon_->dir();
    options.environment["XDG_RUNTIME_DIR"] = own_.path();
    options.environment["NO_COLOR"] = "1";
    return options;
  }
  ProgramResult RunIsolated(const std::vector<std::string>& command,
                            const std::vector<std::string>& flags = {}) {
    const absl::StatusOr<ProgramResult> result = RunProgram(Isolated(command, flags));
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() ? *result : ProgramResult();
  }
  std::unique_ptr<ChildProgram> StartIsolated(const std::vector<std::string>& command) {
    auto program = ChildProgram::Start(Isolated(command));
    EXPECT_TRUE(program.ok()) << program.status();
    const std::optional<std::string> started = (*program)->ReadLine();
    EXPECT_EQ(started, "ok") << (*program)->Errors();
    return *std::move(program);
  }
  void ExpectLimited(ChildProgram& client) {
    EXPECT_EQ(Ask(client, "total"), absl::StrCat("ok ", 64 * kMiB));
    EXPECT_EQ(Ask(client, absl::StrCat("alloc a plain ", 40 * kMiB)), "ok");
    EXPECT_EQ(Ask(client, absl::StrCat("alloc b plain ", 40 * kMiB)), "error 2");
    EXPECT_EQ(Ask(client, "info"), absl::StrCat("ok ", 24 * kMiB, " ", 64 * kMiB));
    EXPECT_EQ(Ask(client, "free a"), "ok");
    End(client);
    EXPECT_THAT(client.Errors(), AllOf(HasSubstr("cuMemAlloc_v2"), Not(HasSubstr("never attached"))));
  }
  /// The mounts of the machine, and not of a namespace, that `lgpu run --isolate` could have made. Other
  /// programs mount things of their own meanwhile.
  std::string Mounts() const {
    const std::string places[] = {" - tmpfs lgpu ", daemon_->dir(), own_.path(),
                                  std::filesystem::path(FakeDriver()).parent_path().string()};
    std::string found;
    std::ifstream mounts("/proc/self/mountinfo");
    for (std::string line; std::getline(mounts, line);) {
      const bool may_be_ours =
          std::any_of(std::begin(places), std::end(places),
                      [&](const std::string& place) { return line.find(place) != std::string::npos; });
      if (may_be_ours) absl::StrAppend(&found, line, "\n");
    }
    return found;
  }
  std::vector<std::string> Cleared(const std::vector<std::string>& command) const {
    std::vector<std::string> words = {"env", "-i", machine_variable_};
    words.insert(words.end(), command.begin(), command.end());
    return words;
  }

  TempDir own_;  // of the user that runs the command
  std::string machine_variable_;
};

INSTANTIATE_TEST_SUITE_P(All, IsolateTest, ::testing::Values(kSelf, kRootWithoutMounts, kOrdinaryUser),
                         [](const ::testing::TestParamInfo<Person>& person) {
                           return std::string(person.param.name);
                         });

TEST_P(IsolateTest, AProgramWithTheDriversFolderInItIsLimited) {
  auto client = StartIsolated({LGPU_RPATH_DRIVER_CLIENT, "linked", ""});
  ExpectLimited(*client);
}

TEST_P(IsolateTest, AProgramWithAClearedEnvironmentIsLimited) {
  auto absolute = StartIsolated(Cleared({Client("dlopen"), "dlopen", FakeDriver()}));
  ExpectLimited(*absolute);
  auto linked = StartIsolated(Cleared({LGPU_RPATH_DRIVER_CLIENT, "linked", ""}));
  ExpectLimited(*linked);
  auto lookup = StartIsolated(Cleared({Client("lookup"), "lookup", FakeDriver()}));
  ExpectLimited(*lookup);
}

TEST_P(IsolateTest, AProgramThatReplacesTheVariablesOfTheLoaderIsLimited) {
  const std::string real = std::filesystem::path(FakeDriver()).parent_path().string();
  auto linked = StartIsolated(
      {"env", "-u", "LD_PRELOAD", absl::StrCat("LD_LIBRARY_PATH=", real), Client("linked"), "linked", ""});
  ExpectLimited(*linked);
  auto deep = StartIsolated({"env", "-u", "LD_PRELOAD", absl::StrCat("LD_LIBRARY_PATH=", real),
                             Client("dlopen"), "dlopen", "libcuda.so"});
  ExpectLimited(*deep);
}

TEST_P(IsolateTest, AProgramThatKeepsItsVariablesIsLimitedAsWithout) {
  auto client = StartIsolated({Client("dlopen"), "dlopen", "libcuda.so.1"});
  ExpectLimited(*client);
  auto script = StartIsolated(
      {"/bin/sh", "-c", absl::StrCat("exec ", Client("dlopen"), " dlopen \"$0\""), FakeDriver()});
  ExpectLimited(*script);
}

TEST_P(IsolateTest, TheDaemonSeesTheCommandsOwnPidAndUser) {
  auto client = StartIsolated(
      Cleared({"/bin/sh", "-c",
               absl::StrCat("echo $$ >&2; exec ", Client("dlopen"), " dlopen ", FakeDriver()), "libcuda"}));
  const v1::LeaseStats lease = Stats().leases(0);
  ASSERT_EQ(lease.sessions_size(), 2) << "lgpu's own and the client's";
  const v1::SessionStats& session = lease.sessions(1);
  EXPECT_THAT(client->Errors(), HasSubstr(absl::StrCat(session.pid(), "\n")));
  EXPECT_EQ(session.uid(), lease.sessions(0).uid());
  End(*client);
}

TEST_P(IsolateTest, TheCommandKeepsItsUserDirectoryGroupAndExitCode) {
  const ProgramResult plain = *RunProgram({.argv = [] {
    std::vector<std::string> words = GetParam().words;
    words.insert(words.end(),
                 {"/bin/sh", "-c", "id -u; id -g; pwd; ulimit -n; ps -o pgid= -p $$ >/dev/null; umask"});
    return words;
  }()});
  const ProgramResult isolated =
      RunIsolated({"/bin/sh", "-c", "id -u; id -g; pwd; ulimit -n; ps -o pgid= -p $$ >/dev/null; umask"});
  EXPECT_EQ(isolated.out, plain.out) << isolated.err;
  EXPECT_EQ(RunIsolated({"/bin/sh", "-c", "exit 7"}).code, 7);
  EXPECT_EQ(RunIsolated({"/bin/sh", "-c", "kill -TERM $$"}).code, 128 + SIGTERM);
  const ProgramResult caps = RunIsolated({"/bin/sh", "-c", "grep CapEff /proc/self/status"});
  if (GetParam().words.size() == 4) {
    EXPECT_THAT(caps.out, HasSubstr("0000000000000000")) << "an ordinary user gains no right";
  }
}

TEST_P(IsolateTest, ACommandThatIsNotThereHasTheCodesOfRun) {
  const ProgramResult absent = RunIsolated({"/nowhere/program"});
  EXPECT_EQ(absent.code, 127);
  EXPECT_THAT(absent.err, HasSubstr("cannot run /nowhere/program: No such file or directory"));
  const ProgramResult unusable = RunIsolated({"/etc/passwd"});
  EXPECT_EQ(unusable.code, 126);
  EXPECT_THAT(unusable.err, AllOf(HasSubstr("cannot run /etc/passwd: Permission denied"),
                                  Not(HasSubstr("never attached"))));
}

TEST_P(IsolateTest, LibrariesThatTheCommandNamesAreTheCommandsAlone) {
  // lgpu could not start with this library; the shell needs none like it.
  const std::string folder = absl::StrCat(own_.path(), "/libraries");
  std::filesystem::create_directories(folder);
  std::ofstream(absl::StrCat(folder, "/libstdc++.so.6")) << "no library";
  const std::string driver = machine_.environment().at("LD_LIBRARY_PATH").value_or("");
  const std::vector<std::string> flags = {"-e", absl::StrCat("LD_LIBRARY_PATH=", folder, ":", driver), "-e",
                                          "LD_BIND_NOW=1"};
  const ProgramResult result =
      RunIsolated({"/bin/sh", "-c", "echo \"$LD_LIBRARY_PATH $LD_BIND_NOW $LD_PRELOAD\"; exit 7"}, flags);
  EXPECT_EQ(result.code, 7) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr(absl::StrCat(":", folder, ":", driver, " 1 ")),
                                HasSubstr("liblgpu_redirect.so")));
  EXPECT_THAT(result.err, Not(HasSubstr("libstdc++")));
}

TEST_P(IsolateTest, TwoAtOnceHaveTheirOwnLeasesAndAKilledOneLeavesNothing) {
  const std::string before = Mounts();
  auto one = StartIsolated(Cleared({Client("dlopen"), "dlopen", FakeDriver()}));
  auto two = StartIsolated(Cleared({Client("dlopen"), "dlopen", FakeDriver()}));
  EXPECT_EQ(Ask(*one, absl::StrCat("alloc a plain ", 60 * kMiB)), "ok");
  EXPECT_EQ(Ask(*two, absl::StrCat("alloc a plain ", 60 * kMiB)), "ok") << "the other lease's limit";
  EXPECT_EQ(Ask(*two, absl::StrCat("alloc b plain ", 20 * kMiB)), "error 2");
  EXPECT_EQ(Mounts(), before) << "the machine sees nothing of it";
  pid_t killed = 0;
  const v1::StatsSnapshot stats = Stats();
  for (const v1::LeaseStats& lease : stats.leases()) {  // the first session is lgpu's own
    if (lease.sessions(0).pid() == one->pid()) killed = static_cast<pid_t>(lease.sessions(1).pid());
  }
  ASSERT_GT(killed, 0);
  ASSERT_EQ(::kill(killed, SIGKILL), 0);
  EXPECT_EQ(one->Wait(), 128 + SIGKILL);
  EXPECT_TRUE(Eventually([&] { return Stats().leases_size() == 1; }));
  EXPECT_EQ(Ask(*two, "free a"), "ok");
  EXPECT_EQ(Mounts(), before);
  End(*two);
  EXPECT_TRUE(Eventually([&] { return Stats().leases_size() == 0; }));
}

TEST_P(IsolateTest, ARunInsideARunHasItsOwnLimit) {
  const std::vector<std::string> inner = {DaemonProcess::LgpuPath(), "run", "--isolate", "-m", "32MiB", "--"};
  for (const bool is_cleared : {false, true}) {
    std::vector<std::string> command = inner;
    const std::vector<std::string> client = Cleared({Client("dlopen"), "dlopen", FakeDriver()});
    command.insert(command.end(), client.begin(), client.end());
    if (is_cleared) {  // it finds the driver by the loader's configuration and paths alone, all of them
                       // covered
      command.insert(
          command.begin(),
          {"env", "-i", machine_variable_, absl::StrCat("LGPU_ENDPOINT=", daemon_->dir()),
           absl::StrCat("XDG_RUNTIME_DIR=", own_.path()),
           absl::StrCat("LD_LIBRARY_PATH=", std::filesystem::path(FakeDriver()).parent_path().string())});
      if (const char* const options = std::getenv("ASAN_OPTIONS")) {
        command.insert(command.begin() + 2, absl::StrCat("ASAN_OPTIONS=", options));
      }
    }
    auto program = StartIsolated(command);
    EXPECT_EQ(Ask(*program, "total"), absl::StrCat("ok ", 32 * kMiB)) << is_cleared << program->Errors();
    EXPECT_EQ(Ask(*program, absl::StrCat("alloc a plain ", 20 * kMiB)), "ok");
    EXPECT_EQ(Ask(*program, absl::StrCat("alloc b plain ", 20 * kMiB)), "error 2");
    End(*program);
  }
}

TEST_P(IsolateTest, AMachineWithoutADriverRunsTheCommandAndSaysSo) {
  ChildProgram::Options options = Isolated({"/bin/sh", "-c", "echo began"});
  options.environment["LD_LIBRARY_PATH"] = std::nullopt;
  const absl::StatusOr<ProgramResult> result = RunProgram(options);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->code, 0) << result->err;
  EXPECT_EQ(result->out, "began\n");
  if (result->err.find("no libcuda.so.1") == std::string::npos) {
    GTEST_SKIP() << "this machine has a driver of its own: " << result->err;
  }
  EXPECT_THAT(result->err, HasSubstr("--isolate has no effect"));
}

TEST_P(IsolateTest, WhereNoNamespaceIsAllowedTheCommandDoesNotBegin) {
  if (::geteuid() != 0 || !GetParam().words.empty()) GTEST_SKIP() << "one of them shows it";
  // In a user namespace of its own the test may forbid more of them.
  ChildProgram::Options options = Isolated({"/bin/sh", "-c", "echo began"});
  const std::vector<std::string> words = options.argv;
  for (const char* const rule : {"max_mnt_namespaces", "max_user_namespaces"}) {
    options.argv = {
        "unshare", "-Ur", "/bin/sh", "-c", absl::StrCat("echo 0 > /proc/sys/user/", rule, "; exec \"$@\""),
        "sh"};
    if (std::string_view(rule) == "max_user_namespaces") {
      options.argv.insert(options.argv.end(), kRootWithoutMounts.words.begin(),
                          kRootWithoutMounts.words.end());
    }
    options.argv.insert(options.argv.end(), words.begin(), words.end());
    const absl::StatusOr<ProgramResult> result = RunProgram(options);
    ASSERT_TRUE(result.ok());
    EXPECT_EQ(result->code, 125) << rule << result->err;
    EXPECT_EQ(result->out, "") << "the command did not begin";
    EXPECT_THAT(result->err, AllOf(HasSubstr("cannot isolate the command: "), HasSubstr("mount namespace"),
                                   HasSubstr("try: ")));
  }
}

TEST_P(IsolateTest, SimulatedGpusHaveNothingToCover) {
  if (!GetParam().words.empty()) GTEST_SKIP() << "one person shows it";
  daemon_.reset();
  StartSimulated();
  const ProgramResult result = Run({"run", "--isolate", "-m", "16MiB", "--", "/bin/sh", "-c", "echo began"});
  EXPECT_EQ(result.out, "began\n");
  EXPECT_THAT(result.err, HasSubstr("--isolate has no effect"));
}

}  // namespace
}  // namespace lgpu::testing
