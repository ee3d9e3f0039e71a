// `lgpu run` where the program or the machine is unusual: programs that no shim can reach, folders that
// cannot be used, drivers older and newer than the shim, and many programs at once.

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/driver/shim_fixture.h"

namespace lgpu::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr uid_t kAnotherUser = 61301;

class SurroundingsTest : public ShimTest {
 protected:
  /// `lgpu run` of a command that needs no stdin, with `before` before it.
  ProgramResult RunCommand(const std::vector<std::string>& command,
                           const std::vector<std::string>& before = {},
                           const ChildProgram::Environment& more = {}) {
    std::vector<std::string> words = {"run", "-m", "16MiB", "--"};
    words.insert(words.end(), command.begin(), command.end());
    ChildProgram::Options options = Lgpu(words);
    options.argv.insert(options.argv.begin(), before.begin(), before.end());
    for (const auto& [name, value] : machine_.environment()) options.environment[name] = value;
    for (const auto& [name, value] : more) options.environment[name] = value;
    const absl::StatusOr<ProgramResult> result = RunProgram(options);
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() ? *result : ProgramResult();
  }
  /// A mount namespace in which `script` has mounted things before `lgpu run`.
  static std::vector<std::string> Mounted(const std::string& script) {
    return {"unshare", "-m", "/bin/sh", "-ec", absl::StrCat(script, "; exec \"$@\""), "sh"};
  }
  static bool MayMount() {
    const absl::StatusOr<ProgramResult> tried =
        RunProgram({.argv = {"unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", "/mnt"}});
    return tried.ok() && tried->code == 0;
  }
  void StartDriver(const std::string& library) {
    driver_ = {{"LD_LIBRARY_PATH", absl::StrCat(fs::path(library).parent_path().string(), ":",
                                                machine_.environment().at("LD_LIBRARY_PATH").value_or(""))}};
    StartMachine();
  }

  ChildProgram::Environment driver_;
};

TEST_F(SurroundingsTest, AStaticProgramIsUntouched) {
#ifndef LGPU_STATIC_PROGRAM
  GTEST_SKIP() << "no static libc was found when this was built";
#else
  StartMachine();
  const ProgramResult result = RunCommand({LGPU_STATIC_PROGRAM});
  EXPECT_EQ(result.code, 3) << result.err;
  EXPECT_EQ(result.out, "it ran\n");
  EXPECT_THAT(result.err, AllOf(HasSubstr("never attached"), Not(HasSubstr("ld.so"))));
#endif
}

TEST_F(SurroundingsTest, A32BitProgramRunsAndTheLoaderNamesTheLibraryThatItSkips) {
#ifndef LGPU_32_BIT_PROGRAM
  GTEST_SKIP() << "no 32-bit libc was found when this was built";
#else
  StartMachine();
  if (const auto bare = RunProgram({.argv = {LGPU_32_BIT_PROGRAM}}); !bare.ok() || bare->code != 3) {
    GTEST_SKIP() << "this machine runs no 32-bit programs";
  }
  const ProgramResult result = RunCommand({LGPU_32_BIT_PROGRAM});
  EXPECT_EQ(result.code, 3) << result.err;
  EXPECT_EQ(result.out, "it ran\n");
  EXPECT_THAT(result.err, AllOf(HasSubstr("never attached"), HasSubstr("liblgpu_redirect.so")));
#endif
}

TEST_F(SurroundingsTest, ASetuidProgramKeepsItsPowerAndLoadsNothingOfLgpu) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root may make a setuid program of another user";
  const TempDir folder;
  folder.OpenToEverybody();
  const auto copy = [&](const std::string& program) {
    const std::string path = absl::StrCat(folder.path(), "/", program);
    fs::copy_file(absl::StrCat("/usr/bin/", program), path);
    EXPECT_EQ(::chown(path.c_str(), kAnotherUser, 0), 0);
    EXPECT_EQ(::chmod(path.c_str(), 04755), 0);
    return path;
  };
  const std::string id = copy("id"), cat = copy("cat");
  const std::string power = absl::StrCat(kAnotherUser, "\n");
  if (const auto bare = RunProgram({.argv = {id, "-u"}}); !bare.ok() || bare->out != power) {
    GTEST_SKIP() << "setuid means nothing in " << folder.path();
  }
  StartMachine();
  const ProgramResult result = RunCommand({id, "-u"});
  EXPECT_EQ(result.out, power) << result.err;
  EXPECT_EQ(result.code, 0);
  EXPECT_THAT(result.err, Not(HasSubstr("ld.so")));
  EXPECT_THAT(RunCommand({"/usr/bin/cat", "/proc/self/maps"}).out, HasSubstr("liblgpu_redirect.so"));
  EXPECT_THAT(RunCommand({cat, "/proc/self/maps"}).out, AllOf(HasSubstr("libc"), Not(HasSubstr("liblgpu"))));
}

TEST_F(SurroundingsTest, ARuntimeDirectoryWithoutExecutionHoldsTheLinksAllTheSame) {
  if (!MayMount()) GTEST_SKIP() << "this machine allows no mount here";
  StartMachine();
  const std::string parent = absl::StrCat(daemon_->dir(), "/driver");
  fs::create_directories(parent);
  const ProgramResult result =
      RunCommand({"/bin/sh", "-c",
                  absl::StrCat("echo \"$LD_LIBRARY_PATH\"; echo total | exec ", Client("dlopen"),
                               " dlopen libcuda.so.1")},
                 Mounted(absl::StrCat("mount -t tmpfs -o noexec,mode=755 tmpfs ", parent)));
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(StartsWith(absl::StrCat(parent, "/")),
                                HasSubstr(absl::StrCat("\nok ", 16 * kMiB, "\n"))));
  EXPECT_THAT(result.err, Not(HasSubstr("never attached")));
  EXPECT_TRUE(fs::is_empty(parent)) << "the folder was made on what was mounted";
}

TEST_F(SurroundingsTest, NoRoomForTheLinksAnywhereEndsBeforeTheCommandBegins) {
  if (!MayMount()) GTEST_SKIP() << "this machine allows no mount here";
  StartMachine();
  const TempDir own;
  const std::string first = absl::StrCat(daemon_->dir(), "/driver");
  const std::string second = absl::StrCat(own.path(), "/lgpu/driver");
  const std::string third = absl::StrCat("/tmp/lgpu-driver-", ::geteuid());
  // The third stays afterwards: it is also the folder of every other test of this user.
  for (const std::string& folder : {first, second, third}) fs::create_directories(folder);
  const auto full = [](const std::string& folder) {
    return absl::StrCat("mount -t tmpfs -o nr_inodes=1,mode=755 tmpfs ", folder);
  };
  const ChildProgram::Environment more = {{"XDG_RUNTIME_DIR", own.path()}};
  const std::vector<std::string> command = {"/bin/sh", "-c", "echo \"$LD_LIBRARY_PATH\""};
  const std::string two = absl::StrCat(full(first), "; ", full(second));
  const ProgramResult next = RunCommand(command, Mounted(full(first)), more);
  EXPECT_EQ(next.code, 0) << next.err;
  EXPECT_THAT(next.out, StartsWith(absl::StrCat(second, "/"))) << "the next place is taken";
  const ProgramResult none = RunCommand(command, Mounted(absl::StrCat(two, "; ", full(third))), more);
  EXPECT_EQ(none.code, 125) << none.err;
  EXPECT_EQ(none.out, "") << "the command did not begin";
  EXPECT_THAT(
      none.err,
      AllOf(HasSubstr("no place for the links"), HasSubstr(absl::StrCat(first, ": No space left on device")),
            HasSubstr(absl::StrCat(second, ": No space left on device")),
            HasSubstr(absl::StrCat(third, ": No space left on device")), HasSubstr("try: ")));
  EXPECT_TRUE(Eventually([&] { return Stats().leases_size() == 0; })) << "nothing is left of it";
}

TEST_F(SurroundingsTest, AProgramWhoseFolderOfLinksIsGoneFindsNoDriverInPlaceOfAnUnlimitedOne) {
  StartMachine();
  const char* const script =
      "import ctypes, os, shutil\n"
      "shutil.rmtree(os.environ['LD_LIBRARY_PATH'].split(':')[0])\n"
      "try:\n"
      "  ctypes.CDLL('libcuda.so.1')\n"
      "  print('a driver')\n"
      "except OSError as error:\n"
      "  print(error)\n";
  const ProgramResult result = RunCommand({"python3", "-c", script});
  EXPECT_THAT(result.out,
              AllOf(HasSubstr("/libcuda.so.1: cannot open shared object file"), Not(HasSubstr("a driver"))))
      << result.err;
  EXPECT_EQ(RunCommand({"/bin/sh", "-c", "test -e \"${LD_LIBRARY_PATH%%:*}/libcuda.so.1\""}).code, 0)
      << "the next run makes the folder anew";
}

TEST_F(SurroundingsTest, ADriverOlderThanTheShimIsLimitedInTheCallsThatItHas) {
  StartDriver(LGPU_OLDER_DRIVER);
  auto client = Start("64MiB", {Client("dlopen"), "dlopen", "libcuda.so.1"}, driver_);
  EXPECT_EQ(Ask(*client, absl::StrCat("alloc a async ", 20 * kMiB)), "error 801") << "it has no pools";
  EXPECT_EQ(Ask(*client, absl::StrCat("alloc a graph ", 20 * kMiB)), "error -1") << "the call is not there";
  EXPECT_EQ(Ask(*client, "call cuLaunchKernelEx"), "error -1") << "nor is one that the shim passes on";
  EXPECT_EQ(Ask(*client, "call cuCtxSynchronize"), "ok");
  for (const char* const kind : {"plain", "managed", "pitched", "virtual", "array"}) {
    EXPECT_EQ(Ask(*client, absl::StrCat("alloc a ", kind, " ", 40 * kMiB)), "ok") << kind;
    EXPECT_EQ(Ask(*client, absl::StrCat("alloc b ", kind, " ", 40 * kMiB)), "error 2") << kind;
    EXPECT_EQ(Ask(*client, "free a"), "ok") << kind;
  }
  EXPECT_EQ(Ask(*client, "info"), absl::StrCat("ok ", 64 * kMiB, " ", 64 * kMiB));
  End(*client);
}

TEST_F(SurroundingsTest, ADriverWithoutTheSecondFormOfLookUpsAnswersThemByTheFirst) {
  machine_.state().driver_version = 11040;
  StartDriver(LGPU_DRIVER_WITHOUT_LOOKUP_V2);
  auto bare = StartProgram({Client("dlopen"), "dlopen", LGPU_DRIVER_WITHOUT_LOOKUP_V2}, driver_);
  EXPECT_EQ(Ask(*bare, "lookup_v2 cuMemAlloc cuMemAlloc_v2"), "ok -1 -1 other") << "the call is not there";
  End(*bare);
  auto client = Start("64MiB", {Client("dlopen"), "dlopen", "libcuda.so.1"}, driver_);
  EXPECT_EQ(Ask(*client, "lookup_v2 cuMemAlloc cuMemAlloc_v2"), "ok 0 0 same") << "the shim's";
  EXPECT_EQ(Ask(*client, "lookup_v2 cuGetProcAddress cuGetProcAddress"), "ok 0 0 same")
      << "the form that the driver has";
  EXPECT_EQ(Ask(*client, "lookup_v2 cuCtxGetDevice cuCtxGetDevice"), "ok 0 0 same") << "the driver's own";
  EXPECT_EQ(Ask(*client, "lookup_v2 cuNoSuchCall cuNoSuchCall"), "ok 0 1 same") << "there is none";
  EXPECT_EQ(Ask(*client, absl::StrCat("alloc a plain ", 40 * kMiB)), "ok");
  EXPECT_EQ(Ask(*client, absl::StrCat("alloc b plain ", 40 * kMiB)), "error 2");
  End(*client);
}

TEST_F(SurroundingsTest, ADriverNewerThanTheShimIsLimitedWhereItIsKnownAndDoctorNamesTheRest) {
  StartDriver(LGPU_NEWER_DRIVER);
  auto client = Start("64MiB", {Client("dlopen"), "dlopen", "libcuda.so.1"}, driver_);
  EXPECT_EQ(Ask(*client, "call cuUnheardOf"), "error 4711") << "the driver's own answer";
  EXPECT_EQ(Ask(*client, absl::StrCat("alloc a plain ", 40 * kMiB)), "ok");
  EXPECT_EQ(Ask(*client, absl::StrCat("alloc b plain ", 40 * kMiB)), "error 2");
  End(*client);
  ChildProgram::Options options = Lgpu({"doctor", "-v", "--no-self-test"});
  for (const auto& [name, value] : machine_.environment()) options.environment[name] = value;
  for (const auto& [name, value] : driver_) options.environment[name] = value;
  const absl::StatusOr<ProgramResult> result = RunProgram(options);
  ASSERT_TRUE(result.ok());
  EXPECT_THAT(result->out,
              HasSubstr("has calls that this lgpu does not count: cuMemAlloc_v3, cuMemFreeAsync_v2"));
}

TEST_F(SurroundingsTest, ALookUpOfAFormThatOnlyTheDriverKnowsIsTheDriversOwn) {
  StartDriver(LGPU_NEWER_DRIVER);
  for (const auto& [way, freed] :
       {std::pair("lookup", "error 802"), std::pair("lookup_per_thread", "error 803")}) {
    auto client = Start("64MiB", {Client(way), way, "libcuda.so.1"}, driver_);
    EXPECT_EQ(Ask(*client, "later cuMemAlloc"), "error 801")
        << "another form of the call has other parameters";
    EXPECT_EQ(Ask(*client, "later cuMemFreeAsync"), freed);
    EXPECT_EQ(Ask(*client, absl::StrCat("alloc a async ", 40 * kMiB)), "ok");
    EXPECT_EQ(Ask(*client, absl::StrCat("alloc b plain ", 40 * kMiB)), "error 2")
        << "the forms of today are limited";
    EXPECT_EQ(Ask(*client, "free a"), "ok");
    EXPECT_EQ(Ask(*client, absl::StrCat("alloc b plain ", 40 * kMiB)), "ok");
    End(*client);
  }
}

TEST_F(SurroundingsTest, RunSaysEarlyThatSimulatedGpusLimitNoProgramOfTheDriver) {
  StartSimulated();
  ChildProgram::Options options = Lgpu({"run", "-m", "64MiB", "--", "cat"});
  auto program = ChildProgram::Start(options);
  ASSERT_TRUE(program.ok()) << program.status();
  EXPECT_TRUE(Eventually([&] {
    return (*program)->Errors().find("its GPUs are simulated: only programs that use liblgpu are limited") !=
           std::string::npos;
  })) << (*program)->Errors();
  (*program)->CloseStdin();
  EXPECT_EQ((*program)->Wait(), 0);
}

class ManyProgramsTest : public ShimTest {
 protected:
  ManyProgramsTest() : ShimTest({.total = 16_GiB, .context = 1_MiB}) {}
};

TEST_F(ManyProgramsTest, TwoHundredProgramsAtOnceAllStartAndShareTheLimit) {
  constexpr int kPrograms = 200;
  constexpr int kFit = 150;  // of 2 MiB each
  StartMachine();
  // Each has its memory until all have asked. The fifo keeps a line for each of them, also for one that comes
  // to read late.
  const TempDir folder;
  const std::string script = absl::StrCat(
      "mkfifo ", folder.path(), "/end; for i in $(seq ", kPrograms, "); do { echo alloc a plain ", 2 * kMiB,
      "; read line <", folder.path(), "/end; } | ", Client("dlopen"), " dlopen libcuda.so.1 >", folder.path(),
      "/out$i & done; until [ \"$(cat ", folder.path(), "/out* | grep -c .)\" -ge ", 2 * kPrograms,
      " ]; do sleep 0.1; done; exec 3<>", folder.path(), "/end; yes '' | head -n ", kPrograms,
      " >&3; wait; cat ", folder.path(), "/out*");
  ChildProgram::Options options = Lgpu({"run", "-m", absl::StrCat(2 * kFit, "MiB"), "--memory-wait", "500ms",
                                        "--", "/bin/sh", "-c", script, "sh"});
  auto program = StartProgram(options.argv, options.environment);
  const std::string out = program->ReadAll(std::chrono::minutes(4));
  EXPECT_EQ(program->Wait(), 0) << program->Errors();
  const std::vector<std::string> lines = absl::StrSplit(out, '\n', absl::SkipEmpty());
  EXPECT_EQ(std::count(lines.begin(), lines.end(), "ok"), kPrograms + kFit) << out;
  EXPECT_EQ(std::count(lines.begin(), lines.end(), "error 2"), kPrograms - kFit);
}

}  // namespace
}  // namespace lgpu::testing
