// Memory that the driver refuses although it is charged, on the fake driver.

#include "absl/strings/str_cat.h"
#include "tests/driver/shim_fixture.h"

namespace lgpu::testing {
namespace {

using ::testing::HasSubstr;

struct Refusing {
  const char* kind;
  const char* call;  // of the driver
};

class DriverRefusesTest : public ShimTest, public ::testing::WithParamInterface<Refusing> {};

TEST_P(DriverRefusesTest, OnceIsTriedAgainAndTwiceIsOutOfMemory) {
  StartMachine();
  const std::string ask = absl::StrCat("alloc a ", GetParam().kind, " ", 40 * kMiB);
  auto client = Start("64MiB", {Client("lookup"), "lookup", "libcuda.so.1"});
  machine_.FailCall(GetParam().call, /*result=*/2, /*skip=*/0, /*times=*/1);
  EXPECT_EQ(Ask(*client, ask), "ok");
  EXPECT_EQ(Ask(*client, "free a"), "ok");
  const std::uint64_t before = machine_.CallsOf(GetParam().call);
  machine_.FailCall(GetParam().call, /*result=*/2, /*skip=*/0, /*times=*/2);
  EXPECT_EQ(Ask(*client, ask), "error 2");
  EXPECT_EQ(machine_.CallsOf(GetParam().call) - before, 2U);
  EXPECT_EQ(Ask(*client, absl::StrCat("alloc b plain ", 60 * kMiB)), "ok") << "nothing stays charged";
  End(*client);
  EXPECT_THAT(client->Errors(), HasSubstr("driver or machine had less memory than expected"));
}

INSTANTIATE_TEST_SUITE_P(
    All, DriverRefusesTest,
    ::testing::Values(Refusing{"plain", "cuMemAlloc"}, Refusing{"pitched", "cuMemAllocPitch"},
                      Refusing{"managed", "cuMemAllocManaged"}, Refusing{"async", "cuMemAllocAsync"},
                      Refusing{"virtual", "cuMemCreate"}, Refusing{"graph", "cuGraphLaunch"}),
    [](const ::testing::TestParamInfo<Refusing>& refusing) { return std::string(refusing.param.kind); });

TEST_F(ShimTest, MemoryThatComesBackLateIsWaitedFor) {
  StartMachine();
  auto one = StartIn(CreateLease("200MiB"));
  ChildProgram::Environment environment = EnvironmentOf(CreateLease("200MiB"));
  environment["LGPU_MEMORY_WAIT_MS"] = "60000";
  auto two = StartProgram({Client("dlopen"), "dlopen", "libcuda.so.1"}, environment);
  EXPECT_EQ(Ask(*one, absl::StrCat("alloc a plain ", 160 * kMiB)), "ok");
  machine_.state().freed_late_ms = 1500;
  EXPECT_EQ(Ask(*one, "free a"), "ok");
  EXPECT_EQ(Ask(*two, absl::StrCat("alloc a plain ", 160 * kMiB)), "ok");
  machine_.state().freed_late_ms = 0;
  End(*one);
  End(*two);
}

TEST_F(ShimTest, MemoryOutsideLgpuIsForeignAfterTheDriverRefused) {
  StartMachine();
  auto outsider = StartProgram({Client("dlopen"), "dlopen", "libcuda.so.1"}, {});
  auto client = Start("128MiB", {Client("dlopen"), "dlopen", "libcuda.so.1"});
  EXPECT_EQ(Ask(*outsider, absl::StrCat("alloc a plain ", 180 * kMiB)), "ok");
  EXPECT_EQ(Ask(*client, absl::StrCat("alloc a plain ", 100 * kMiB)), "error 2");
  EXPECT_GE(Stats().cards(0).foreign_bytes(), 180 * kMiB);
  End(*outsider);
  EXPECT_TRUE(Eventually([&] { return Ask(*client, absl::StrCat("alloc a plain ", 100 * kMiB)) == "ok"; }));
  End(*client);
}

}  // namespace
}  // namespace lgpu::testing
