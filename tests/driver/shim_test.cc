// Programs that know nothing of lgpu, inside `lgpu run` and `lgpu env`, on the fake driver.

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/driver/shim_fixture.h"
#include "tests/support/sanitizers.h"

namespace lgpu::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

struct Way {
  const char* name;
  const char* way;
  const char* opens;  // "ABSOLUTE": the real file's path
};

class WaysInTest : public ShimTest, public ::testing::WithParamInterface<Way> {};

TEST_P(WaysInTest, TheLimitHoldsAndTheFiguresFit) {
  const std::string_view way = GetParam().way;
  if (kAddressSanitizer && (way == "deepbind" || way == "dlmopen")) {
    GTEST_SKIP() << "AddressSanitizer refuses RTLD_DEEPBIND, and its library cannot be there twice";
  }
  StartMachine();
  const std::string opens = std::string(GetParam().opens) == "ABSOLUTE" ? FakeDriver() : GetParam().opens;
  auto client = Start("64MiB", {Client(GetParam().way), GetParam().way, opens});
  EXPECT_EQ(Ask(*client, "total"), absl::StrCat("ok ", 64 * kMiB));
  EXPECT_EQ(Ask(*client, "info"), absl::StrCat("ok ", 64 * kMiB, " ", 64 * kMiB));
  EXPECT_EQ(Ask(*client, absl::StrCat("alloc a plain ", 40 * kMiB)), "ok");
  EXPECT_EQ(Ask(*client, "info"), absl::StrCat("ok ", 24 * kMiB, " ", 64 * kMiB));
  EXPECT_EQ(Ask(*client, absl::StrCat("alloc b plain ", 40 * kMiB)), "error 2");
  EXPECT_EQ(Ask(*client, "free a"), "ok");
  EXPECT_EQ(Ask(*client, absl::StrCat("alloc b plain ", 40 * kMiB)), "ok") << "the cache was freed";
  End(*client);
  EXPECT_THAT(client->Errors(),
              AllOf(HasSubstr("refused"), HasSubstr("cuMemAlloc_v2"), Not(HasSubstr("never attached"))));
}

INSTANTIATE_TEST_SUITE_P(
    All, WaysInTest,
    ::testing::Values(Way{"Linked", "linked", ""}, Way{"Dlopen", "dlopen", "libcuda.so.1"},
                      Way{"DlopenWithoutNumber", "dlopen", "libcuda.so"},
                      Way{"AbsolutePath", "dlopen", "ABSOLUTE"}, Way{"Deepbind", "deepbind", "libcuda.so.1"},
                      Way{"Dlmopen", "dlmopen", "libcuda.so.1"},
                      Way{"DlmopenAbsolute", "dlmopen", "ABSOLUTE"}, Way{"Lookup", "lookup", "libcuda.so.1"},
                      Way{"LookupPerThread", "lookup_per_thread", "libcuda.so.1"}),
    [](const ::testing::TestParamInfo<Way>& way) { return way.param.name; });

class KindsTest : public ShimTest, public ::testing::WithParamInterface<const char*> {};

TEST_P(KindsTest, EveryKindIsChargedRefusedAndGivenBack) {
  StartMachine();
  const std::string kind = GetParam();
  auto client = Start("64MiB", {Client("lookup"), "lookup", "libcuda.so.1"});
  EXPECT_EQ(Ask(*client, absl::StrCat("alloc a ", kind, " ", 40 * kMiB)), "ok");
  EXPECT_EQ(Ask(*client, absl::StrCat("alloc b ", kind, " ", 40 * kMiB)), "error 2");
  EXPECT_EQ(Ask(*client, absl::StrCat("alloc b plain ", 40 * kMiB)), "error 2");
  EXPECT_EQ(Ask(*client, "free a"), "ok");
  EXPECT_EQ(Ask(*client, "trim_graphs"), "ok") << "until then the driver keeps what graphs freed";
  EXPECT_EQ(Ask(*client, absl::StrCat("alloc b plain ", 60 * kMiB)), "ok");
  EXPECT_EQ(Ask(*client, "free b"), "ok");
  EXPECT_EQ(Ask(*client, absl::StrCat("alloc c ", kind, " ", 60 * kMiB)), "ok");
  EXPECT_EQ(Ask(*client, "free c"), "ok");
  EXPECT_EQ(Ask(*client, "trim_graphs"), "ok");
  // Requests smaller than a block are summed.
  EXPECT_EQ(Ask(*client, absl::StrCat("info")), absl::StrCat("ok ", 64 * kMiB, " ", 64 * kMiB));
  End(*client);
}

INSTANTIATE_TEST_SUITE_P(All, KindsTest,
                         ::testing::Values("plain", "managed", "pitched", "async", "virtual", "array",
                                           "mipmapped", "graph", "captured", "uploaded", "gone_graph", "pool",
                                           "managed_pool"),
                         [](const ::testing::TestParamInfo<const char*>& kind) {
                           return std::string(kind.param);
                         });

TEST_F(ShimTest, EveryLevelOfALayeredArrayHasAllLayers) {
  StartMachine();
  auto client = Start("64MiB", {Client("dlopen"), "dlopen", "libcuda.so.1"});
  EXPECT_EQ(Ask(*client, absl::StrCat("alloc a layered ", 40 * kMiB)), "ok");
  EXPECT_EQ(Ask(*client, "info"), absl::StrCat("ok ", 24 * kMiB, " ", 64 * kMiB));
  EXPECT_EQ(Ask(*client, "free a"), "ok");
  EXPECT_EQ(Ask(*client, "info"), absl::StrCat("ok ", 64 * kMiB, " ", 64 * kMiB));
  End(*client);
}

TEST_F(ShimTest, MemGetInfoTakesNullForAFigureThatTheProgramDoesNotWant) {  // as OptiX calls it
  StartMachine();
  auto client = Start("64MiB", {Client("dlopen"), "dlopen", "libcuda.so.1"});
  EXPECT_EQ(Ask(*client, absl::StrCat("alloc a plain ", 40 * kMiB)), "ok");
  EXPECT_EQ(Ask(*client, "info_with_null"), absl::StrCat("ok ", 24 * kMiB, " ", 64 * kMiB));
  End(*client);
}

TEST_F(ShimTest, TheDriverAnswersACallThatHasNoPlaceForItsResult) {
  StartMachine();
  auto client = Start("64MiB", {Client("lookup"), "lookup", "libcuda.so.1"});
  for (const char* const call :
       {"cuDeviceTotalMem", "cuMemAlloc", "cuMemAllocPitch", "cuMemAllocManaged", "cuMemAllocAsync",
        "cuMemPoolCreate", "cuMemCreate", "cuMemRetainAllocationHandle", "cuMemImportFromShareableHandle",
        "cuIpcOpenMemHandle", "cuArrayCreate", "cuMipmappedArrayCreate", "cuGraphInstantiateWithFlags",
        "cuCtxAttach", "cuGetProcAddress"}) {
    EXPECT_EQ(Ask(*client, absl::StrCat("null ", call)), "error 1") << call;
  }
  EXPECT_EQ(Ask(*client, "null nvmlDeviceGetMemoryInfo"), "error 2") << "invalid argument, in NVML's numbers";
  EXPECT_EQ(Ask(*client, "info"), absl::StrCat("ok ", 64 * kMiB, " ", 64 * kMiB)) << "nothing is charged";
  End(*client);
}

TEST_F(ShimTest, RunSaysThatAProgramSeesLogicalDevicesOfOneCardAsOneGpu) {
  StartMachine();
  ChildProgram::Options options =
      Lgpu({"run", "-n", "2", "-m", "64MiB", "--", Client("dlopen"), "dlopen", "libcuda.so.1"});
  auto client = StartProgram(options.argv, options.environment);
  EXPECT_EQ(Ask(*client, "total"), absl::StrCat("ok ", 128 * kMiB));
  End(*client);
  EXPECT_THAT(client->Errors(),
              HasSubstr("lgpu: note: a program that does not use liblgpu sees one GPU of 128.00MiB in place "
                        "of the 2 logical devices on GPU 0\n"));
  auto alone = Start("64MiB", {Client("dlopen"), "dlopen", "libcuda.so.1"});
  End(*alone);
  EXPECT_THAT(alone->Errors(), Not(HasSubstr("sees one GPU")));
}

class TwoCardsTest : public ShimTest {
 protected:
  TwoCardsTest() : ShimTest({}, 2) {}
};

TEST_F(TwoCardsTest, StreamOrderedMemoryIsChargedToTheDeviceThatHasIt) {
  StartMachine();
  ASSERT_EQ(Run({"create", "-q", "-n", "2", "--gpus", "all", "-m", "64MiB", "--name", "two"}).code, 0);
  auto client = StartIn("two");
  const std::string all = absl::StrCat("ok ", 64 * kMiB, " ", 64 * kMiB);
  const std::string rest = absl::StrCat("ok ", 24 * kMiB, " ", 64 * kMiB);
  for (const char* const kind : {"stream_of_one", "pool_of_one"}) {
    EXPECT_EQ(Ask(*client, absl::StrCat("alloc a ", kind, " ", 40 * kMiB)), "ok") << kind;
    EXPECT_EQ(Ask(*client, "info"), all) << kind << ": device 0 has none of it";
    EXPECT_EQ(Ask(*client, "info_of_one"), rest) << kind;
    EXPECT_EQ(Ask(*client, absl::StrCat("alloc b plain ", 60 * kMiB)), "ok") << kind << ": on device 0";
    EXPECT_EQ(Ask(*client, absl::StrCat("alloc c ", kind, " ", 40 * kMiB)), "error 2") << kind;
    EXPECT_EQ(Ask(*client, "free b"), "ok");
    EXPECT_EQ(Ask(*client, "free a"), "ok");
    EXPECT_EQ(Ask(*client, "info_of_one"), all) << kind;
  }
  End(*client);
}

TEST_F(TwoCardsTest, APoolThatWasRefusedWithoutADaemonIsChargedToItsOwnDeviceLater) {
  StartMachine();
  ASSERT_EQ(Run({"create", "-q", "-n", "2", "--gpus", "all", "-m", "64MiB", "--name", "two"}).code, 0);
  const ChildProgram::Environment environment = EnvironmentOf("two");
  KillDaemon();
  auto client = StartProgram({Client("dlopen"), "dlopen", "libcuda.so.1"}, environment);
  EXPECT_EQ(Ask(*client, absl::StrCat("alloc a pool_of_one ", 40 * kMiB)), "error 2");
  StartMachine();
  EXPECT_EQ(Ask(*client, absl::StrCat("alloc a pool_of_one ", 40 * kMiB)), "ok");
  EXPECT_EQ(Ask(*client, "info"), absl::StrCat("ok ", 64 * kMiB, " ", 64 * kMiB))
      << "device 0 has none of it";
  EXPECT_EQ(Ask(*client, "info_of_one"), absl::StrCat("ok ", 24 * kMiB, " ", 64 * kMiB));
  End(*client);
}

TEST_F(ShimTest, AGraphThatIsGoneLeavesMemoryInUseCharged) {
  StartMachine();
  auto client = Start("64MiB", {Client("dlopen"), "dlopen", "libcuda.so.1"});
  EXPECT_EQ(Ask(*client, absl::StrCat("alloc a gone_graph ", 40 * kMiB)), "ok");
  EXPECT_EQ(Ask(*client, absl::StrCat("alloc b graph ", 40 * kMiB)), "error 2");
  EXPECT_EQ(Ask(*client, absl::StrCat("alloc b graph ", 20 * kMiB)), "ok") << "what is left";
  EXPECT_LE(machine_.Used(0).count(), (64 + 16) * kMiB) << "and a context";
  EXPECT_EQ(Ask(*client, "free a"), "ok");
  EXPECT_EQ(Ask(*client, "free b"), "ok");
  EXPECT_EQ(Ask(*client, absl::StrCat("alloc c graph ", 40 * kMiB)), "ok") << "what graphs kept is trimmed";
  EXPECT_LE(machine_.Used(0).count(), (64 + 16) * kMiB);
  End(*client);
}

TEST_F(ShimTest, AGraphThatTheDriverRefusesIsNotCharged) {
  StartMachine();
  auto client = Start("64MiB", {Client("dlopen"), "dlopen", "libcuda.so.1"});
  machine_.FailCall("cuGraphLaunch", 1);
  EXPECT_EQ(Ask(*client, absl::StrCat("alloc a graph ", 40 * kMiB)), "error 1");
  EXPECT_EQ(Ask(*client, absl::StrCat("alloc a plain ", 60 * kMiB)), "ok");
  End(*client);
}

TEST_F(ShimTest, TheLastDetachOfAContextGivesItsMemoryBack) {  // as pycuda ends its contexts
  StartMachine();
  auto client = Start("64MiB", {Client("lookup"), "lookup", "libcuda.so.1"});
  EXPECT_EQ(Ask(*client, "make_context"), "ok");
  EXPECT_EQ(Ask(*client, "attach"), "ok");
  EXPECT_EQ(Ask(*client, absl::StrCat("alloc a plain ", 40 * kMiB)), "ok");
  EXPECT_EQ(Ask(*client, "detach"), "ok");
  EXPECT_EQ(Ask(*client, absl::StrCat("alloc b plain ", 40 * kMiB)), "error 2") << "the context is there";
  EXPECT_EQ(Ask(*client, "detach"), "ok");
  EXPECT_EQ(Ask(*client, "forget a"), "ok");
  EXPECT_EQ(Ask(*client, absl::StrCat("alloc b plain ", 60 * kMiB)), "ok");
  End(*client);
}

TEST_F(ShimTest, APoolThatKeepsFreedMemoryStaysChargedUntilItIsNeeded) {  // PyTorch's release threshold
  StartMachine();
  auto client = Start("64MiB", {Client("dlopen"), "dlopen", "libcuda.so.1"});
  EXPECT_EQ(Ask(*client, "keep_default_pool"), "ok");
  EXPECT_EQ(Ask(*client, absl::StrCat("alloc a async ", 40 * kMiB)), "ok");
  EXPECT_EQ(Ask(*client, "free a"), "ok");
  EXPECT_EQ(Ask(*client, "info"), absl::StrCat("ok ", 24 * kMiB, " ", 64 * kMiB)) << "the pool has it";
  EXPECT_EQ(Ask(*client, absl::StrCat("alloc b async ", 40 * kMiB)), "ok") << "from the pool";
  EXPECT_EQ(Ask(*client, "free b"), "ok");
  EXPECT_EQ(Ask(*client, absl::StrCat("alloc b plain ", 40 * kMiB)), "ok") << "which is trimmed for it";
  End(*client);
}

TEST_F(ShimTest, SmallRequestsShareBlocks) {
  StartMachine();
  auto client = Start("64MiB", {Client("dlopen"), "dlopen", "libcuda.so.1"});
  for (int i = 0; i < 100; ++i) ASSERT_EQ(Ask(*client, absl::StrCat("alloc s", i, " plain 4")), "ok");
  EXPECT_EQ(Ask(*client, "info"), absl::StrCat("ok ", 62 * kMiB, " ", 64 * kMiB)) << "one block for all";
  End(*client);
}

TEST_F(ShimTest, AFullCardRefusesAfterTheWait) {
  StartMachine();
  auto one = StartIn(CreateLease("200MiB"));
  auto two = StartIn(CreateLease("200MiB"));
  EXPECT_EQ(Ask(*one, absl::StrCat("alloc a plain ", 160 * kMiB)), "ok");
  EXPECT_EQ(Ask(*two, absl::StrCat("alloc a plain ", 160 * kMiB)), "error 2");
  EXPECT_EQ(Ask(*one, "free a"), "ok");
  // The request does not wait now: the daemon may hear of it before it hears of the free.
  EXPECT_TRUE(Eventually([&] { return Ask(*two, absl::StrCat("alloc a plain ", 160 * kMiB)) == "ok"; }));
  End(*one);
  End(*two);
}

TEST_F(ShimTest, EachRefusalOfAProgramThatTriesSmallerSizesIsAnEvent) {  // as JAX does at its start
  StartMachine();
  auto one = StartIn(CreateLease("200MiB"));
  ChildProgram::Environment environment = EnvironmentOf(CreateLease("200MiB"));
  environment["LGPU_MEMORY_WAIT_MS"] = "2000";
  auto two = StartProgram({Client("dlopen"), "dlopen", "libcuda.so.1"}, environment);
  EXPECT_EQ(Ask(*one, absl::StrCat("alloc a plain ", 160 * kMiB)), "ok");
  for (std::uint64_t size = 160; size > 100; size -= 6) {
    EXPECT_EQ(Ask(*two, absl::StrCat("alloc a plain ", size * kMiB)), "error 2") << size;
  }
  EXPECT_THAT(Run({"events"}).out, AllOf(HasSubstr("asked for 160.00MiB"), HasSubstr("asked for 106.00MiB")));
  End(*one);
  End(*two);
}

TEST_F(ShimTest, ARemovedLeaseGivesNoMore) {
  StartMachine();
  const std::string lease = CreateLease("64MiB");
  auto client = StartIn(lease);
  EXPECT_EQ(Ask(*client, absl::StrCat("alloc a plain ", 20 * kMiB)), "ok");
  EXPECT_EQ(Run({"rm", lease}).code, 0);
  EXPECT_EQ(Ask(*client, absl::StrCat("alloc b plain ", 20 * kMiB)), "error 2");
  EXPECT_THAT(Ask(*client, "info"), ::testing::StartsWith("ok 0 ")) << "nothing is free";
  EXPECT_EQ(Ask(*client, "free a"), "ok");
  End(*client);
}

TEST_F(ShimTest, RmWithKillEndsThePrograms) {
  StartMachine();
  const std::string lease = CreateLease("64MiB");
  auto obedient = StartIn(lease);
  auto stubborn = StartIn(lease);
  const std::string other = CreateLease("64MiB");
  auto bystander = StartIn(other);
  EXPECT_EQ(Ask(*stubborn, absl::StrCat("alloc a plain ", 20 * kMiB)), "ok");
  EXPECT_EQ(Ask(*stubborn, "ignore_term"), "ok");
  // The obedient one, too, needs a moment to be gone.
  const json removed = RunJson({"rm", "--kill", "--grace", "5s", lease});
  EXPECT_EQ(removed["terminated"], json::array({obedient->pid()}));
  EXPECT_EQ(removed["killed"], json::array({stubborn->pid()}));
  EXPECT_EQ(obedient->Wait(), 128 + SIGTERM);
  EXPECT_EQ(stubborn->Wait(), 128 + SIGKILL);
  EXPECT_EQ(Ask(*bystander, "info"), absl::StrCat("ok ", 64 * kMiB, " ", 64 * kMiB));
  EXPECT_EQ(Run({"rm", "--kill", "nothing"}).code, 6);
  EXPECT_EQ(Run({"rm", "--grace", "1s", other}).code, 2) << "only with --kill";
  End(*bystander);
}

TEST_F(ShimTest, ALimitBelowTheChargesGivesNoMore) {
  StartMachine();
  const std::string lease = CreateLease("64MiB");
  auto client = StartIn(lease);
  EXPECT_EQ(Ask(*client, absl::StrCat("alloc a plain ", 40 * kMiB)), "ok");
  EXPECT_EQ(Run({"resize", lease, "-m", "32MiB"}).code, 0);
  EXPECT_EQ(Ask(*client, "info"), absl::StrCat("ok 0 ", 32 * kMiB));
  EXPECT_EQ(Ask(*client, "alloc b plain 4096"), "error 2");
  EXPECT_EQ(Ask(*client, "free a"), "ok");
  EXPECT_EQ(Ask(*client, absl::StrCat("alloc b plain ", 20 * kMiB)), "ok");
  End(*client);
}

TEST_F(ShimTest, AProgramWithLiblgpuCountsEachByteOnce) {
  StartMachine();
  std::vector<std::string> words = {"run", "-m", "64MiB", "--"};
  for (const std::string& word : Shell("printf 'open c\\nalloc c t 41943040\\nexit\\n' | " LGPU_E2E_CLIENT)) {
    words.push_back(word);
  }
  ChildProgram::Options options = Lgpu(words);
  for (const auto& [name, value] : machine_.environment()) options.environment[name] = value;
  const absl::StatusOr<ProgramResult> result = RunProgram(options);
  ASSERT_TRUE(result.ok());
  EXPECT_THAT(result->out, Not(HasSubstr("error"))) << "40 MiB twice would not fit";
  EXPECT_EQ(result->code, 0) << result->err;
}

TEST_F(ShimTest, DoctorComparesTheShimWithTheDriver) {
  StartMachine();
  ChildProgram::Options options = Lgpu({"doctor", "-v", "--no-self-test"});
  for (const auto& [name, value] : machine_.environment()) options.environment[name] = value;
  const absl::StatusOr<ProgramResult> result = RunProgram(options);
  ASSERT_TRUE(result.ok());
  EXPECT_THAT(result->out, HasSubstr(absl::StrCat("counts every call of ",
                                                  std::filesystem::canonical(FakeDriver()).string())));
}

TEST_F(ShimTest, WithoutADaemonNothingIsAllocated) {
  StartMachine();
  const std::string lease = CreateLease("64MiB");
  ChildProgram::Environment environment = EnvironmentOf(lease);
  environment["LGPU_ENDPOINT"] = "/nowhere";
  auto client = StartProgram({Client("dlopen"), "dlopen", "libcuda.so.1"}, environment);
  EXPECT_EQ(Ask(*client, "alloc a plain 1048576"), "error 2");
  EXPECT_THAT(Ask(*client, "info"), ::testing::StartsWith("ok 0 "));
  End(*client);
}

TEST_F(ShimTest, AProgramThatBeganWithoutADaemonIsServedWhenOneComes) {
  StartMachine();
  const std::string lease = CreateLease("64MiB");
  const ChildProgram::Environment environment = EnvironmentOf(lease);
  KillDaemon();
  auto client = StartProgram({Client("dlopen"), "dlopen", "libcuda.so.1"}, environment);
  for (const char* const kind : {"plain", "async", "pool", "graph"}) {
    EXPECT_EQ(Ask(*client, absl::StrCat("alloc a ", kind, " ", 40 * kMiB)), "error 2") << kind;
  }
  EXPECT_EQ(Ask(*client, "make_pool"), "ok");
  StartMachine();
  for (const char* const kind : {"plain", "async", "pool", "of_made_pool", "graph"}) {
    EXPECT_EQ(Ask(*client, absl::StrCat("alloc a ", kind, " ", 40 * kMiB)), "ok") << kind;
    EXPECT_EQ(Ask(*client, absl::StrCat("alloc b ", kind, " ", 40 * kMiB)), "error 2") << kind;
    EXPECT_EQ(Ask(*client, "free a"), "ok") << kind;
    EXPECT_EQ(Ask(*client, "trim_graphs"), "ok");
  }
  End(*client);
}

TEST_F(ShimTest, ACommandThatComesPastTheShimIsNamedWhileItRuns) {
  StartMachine();
  const std::string real = std::filesystem::path(FakeDriver()).parent_path().string();
  auto client = Start("16MiB", {"/usr/bin/env", "-u", "LD_PRELOAD", absl::StrCat("LD_LIBRARY_PATH=", real),
                                Client("dlopen"), "dlopen", "libcuda.so.1"});
  EXPECT_EQ(Ask(*client, absl::StrCat("alloc a plain ", 64 * kMiB)), "ok");
  EXPECT_TRUE(Eventually([&] {
    return client->Errors().find(", bypassing lgpu: it never attached") != std::string::npos;
  })) << client->Errors();
  End(*client);
  EXPECT_THAT(client->Errors(), HasSubstr("never attached: its memory was not limited"));
}

TEST_F(ShimTest, RefusalsAreToldAfterARestartOfTheDaemonAsWell) {
  StartMachine();
  auto client = Start("64MiB", {Client("dlopen"), "dlopen", "libcuda.so.1"});
  EXPECT_EQ(Ask(*client, absl::StrCat("alloc a plain ", 40 * kMiB)), "ok");
  KillDaemon();
  std::this_thread::sleep_for(std::chrono::seconds(3));  // a look without a daemon
  StartMachine();
  EXPECT_TRUE(Eventually([&] { return client->Errors().find("started again") != std::string::npos; }));
  EXPECT_EQ(Ask(*client, absl::StrCat("alloc b pitched ", 40 * kMiB)), "error 2");
  EXPECT_TRUE(Eventually([&] { return client->Errors().find("cuMemAllocPitch_v2") != std::string::npos; }))
      << client->Errors();
  End(*client);
}

TEST_F(ShimTest, ManyRefusalsAreToldInShort) {
  StartMachine();
  auto client = Start("64MiB", {Client("dlopen"), "dlopen", "libcuda.so.1"});
  for (int i = 0; i < 40; ++i) {
    ASSERT_EQ(Ask(*client, absl::StrCat("alloc a plain ", 80 * kMiB)), "error 2");
    ASSERT_EQ(Ask(*client, absl::StrCat("alloc a managed ", 80 * kMiB)), "error 2");
  }
  const std::string events = Run({"events"}).out;
  EXPECT_THAT(events, HasSubstr("; asked for 80.00MiB by cuMemAllocManaged"));
  End(*client);
  const std::string told = client->Errors();
  const std::vector<std::string> lines = absl::StrSplit(told, '\n', absl::SkipEmpty());
  const auto with = [&](const char* text) {
    return std::count_if(lines.begin(), lines.end(),
                         [&](const std::string& line) { return line.find(text) != std::string::npos; });
  };
  EXPECT_EQ(with("cuMemAlloc_v2"), 1) << told;
  EXPECT_EQ(with("cuMemAllocManaged"), 1) << told;
  EXPECT_GE(with(" more request"), 1) << told;
  EXPECT_LE(lines.size(), 25U) << told;
}

TEST_F(ShimTest, RequireAttachEndsACommandThatComesPastTheShim) {
  StartMachine();
  const std::string real = std::filesystem::path(FakeDriver()).parent_path().string();
  ChildProgram::Options options =
      Lgpu({"run", "--require-attach", "-m", "16MiB", "--", "/usr/bin/env", "-u", "LD_PRELOAD",
            absl::StrCat("LD_LIBRARY_PATH=", real), Client("dlopen"), "dlopen", "libcuda.so.1"});
  auto client = StartProgram(options.argv, options.environment);
  EXPECT_EQ(client->Wait(), 125) << "it was not told to end";
  EXPECT_THAT(client->Errors(), HasSubstr("bypassed lgpu on a GPU"));
}

TEST_F(ShimTest, TurnedOffTheShimChangesNothing) {
  StartMachine();
  auto client = Start("16MiB", {Client("dlopen"), "dlopen", "libcuda.so.1"}, {{"LGPU_SHIM", "off"}});
  EXPECT_EQ(Ask(*client, absl::StrCat("alloc a plain ", 64 * kMiB)), "ok");
  End(*client);
  EXPECT_THAT(client->Errors(), AllOf(HasSubstr("LGPU_SHIM=off"), HasSubstr("never attached")));
}

TEST_F(ShimTest, ProgramsWithoutAGpuAreUntouched) {
  StartMachine();
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"/bin/true"},
        {"/bin/sh", "-c", "LD_LIBRARY_PATH=/nowhere /bin/true"},
        {"/bin/sh", "-c", "test \"$(echo $LD_LIBRARY_PATH | grep -c '::')\" = 0"}}) {
    auto program = Start("16MiB", command);
    EXPECT_EQ(program->Wait(), 0) << program->Errors();
    EXPECT_THAT(program->Errors(), Not(HasSubstr("ERROR: ld.so")));
  }
}

TEST_F(ShimTest, ALeaseOnSimulatedGpusHidesNoRealOne) {
  StartSimulated();
  auto program = Start("16MiB", {"/bin/sh", "-c", "echo \"[$CUDA_VISIBLE_DEVICES][$LD_PRELOAD]\""},
                       {{"CUDA_VISIBLE_DEVICES", std::nullopt}});
  EXPECT_EQ(program->ReadLine(), "[][]");
  EXPECT_EQ(program->Wait(), 0);
}

}  // namespace
}  // namespace lgpu::testing
