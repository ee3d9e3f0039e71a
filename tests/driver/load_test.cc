// How busy GPUs and programs are, as the fake NVML tells: in JSON, tables, `top` and metrics.

#include <gmock/gmock.h>

#include "absl/strings/str_cat.h"
#include "tests/driver/shim_fixture.h"

namespace lgpu::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class LoadTest : public ShimTest {};

// Of the fake NVML: 20 % for each process with a context, 40 C and one more for each, 70.5 of 700 W.
TEST_F(LoadTest, EachViewHasTheFiguresOfNvml) {
  StartMachine();
  auto client = Start("64MiB", {Client("dlopen"), "dlopen", "libcuda.so.1"});
  ASSERT_EQ(Ask(*client, "alloc a plain 4096"), "ok");
  json card;
  ASSERT_TRUE(Eventually([&] {
    card = RunJson({"ls"})["cards"][0];
    return card.value("utilization_percent", 0) == 20;
  })) << card;
  EXPECT_EQ(card["temperature_celsius"], 41);
  EXPECT_NEAR(card["power_watts"].get<double>(), 70.5, 1e-9);
  EXPECT_NEAR(card["power_limit_watts"].get<double>(), 700, 1e-9);
  EXPECT_THAT(Run({"top", "--once", "--ascii"}).out,
              AllOf(HasSubstr("util 20%"), HasSubstr("temp 41C"), HasSubstr("power 71W/700W")));
  EXPECT_EQ(Run({"ls", "--query", "gpu.utilization,gpu.temperature,gpu.power", "--format=csv,noheader"}).out,
            "20,41,70\n");
  const json sessions = RunJson({"ps"})["sessions"];
  bool found = false;
  for (const json& session : sessions) found = found || session.value("sm_percent", 0) == 20;
  EXPECT_TRUE(found) << sessions;
  EXPECT_THAT(Run({"ps"}).out, HasSubstr(" 20%"));
  End(*client);
}

TEST_F(LoadTest, AFigureThatTheDriverDoesNotTellIsMissing) {
  StartMachine();
  constexpr int kNotSupported = 3;
  for (const char* const call : {"nvmlDeviceGetUtilizationRates", "nvmlDeviceGetProcessUtilization"}) {
    machine_.FailCall(call, kNotSupported, 0, -1);
  }
  auto client = Start("64MiB", {Client("dlopen"), "dlopen", "libcuda.so.1"});
  ASSERT_EQ(Ask(*client, "alloc a plain 4096"), "ok");
  json card;
  ASSERT_TRUE(Eventually([&] {
    card = RunJson({"ls"})["cards"][0];
    return card.value("temperature_celsius", 0) == 41;
  })) << card;
  EXPECT_FALSE(card.contains("utilization_percent"));
  EXPECT_THAT(Run({"top", "--once", "--ascii"}).out, AllOf(HasSubstr("util -"), HasSubstr("temp 41C")));
  End(*client);
}

TEST_F(LoadTest, SimulatedGpusHaveNone) {
  StartSimulated();
  EXPECT_FALSE(RunJson({"ls"})["cards"][0].contains("temperature_celsius"));
  EXPECT_THAT(Run({"top", "--once", "--ascii"}).out,
              AllOf(HasSubstr("util -"), HasSubstr("temp -"), HasSubstr("power -")));
}

}  // namespace
}  // namespace lgpu::testing
